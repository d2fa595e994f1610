"""What the supervisor makes of a watch's reports, and of none."""

import msgspec
import pytest

from tidegate.keeper.protocol import WallDrop, WallReport
from tidegate.runtime.walls import SILENT_SECONDS, Walls, WatchReport

DROP = WallDrop("tg0", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443, 1, "a", "b")


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.put: list[WallReport] = []
        self.walls = Walls(self.put.append, clock=lambda: self.now)

    def report(self, *problems: str, drops: tuple[WallDrop, ...] = (), ending: bool = False) -> None:
        self.walls.take(WatchReport(("tg0",), problems, drops, ending))

    @property
    def problems(self) -> list[str]:
        return self.walls.problems(required=False)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_without_a_watch_nothing_is_wrong_unless_one_is_required(scene: Scene) -> None:
    assert scene.problems == []
    assert "wall.watch is required" in scene.walls.problems(required=True)[0]
    scene.report()
    assert scene.walls.problems(required=True) == []


def test_silence_is_told_once_and_keeps_the_gate_from_being_ready(scene: Scene) -> None:
    scene.report()
    scene.now += SILENT_SECONDS
    scene.walls.look()
    assert (scene.problems, scene.put) == ([], [])
    scene.now += 0.1
    for _ in range(3):
        scene.walls.look()
    assert scene.put == [WallReport((), (("wall_watch_silent", "tg0"),))]
    assert "silent for 5 s" in scene.problems[0]
    scene.report()
    assert scene.problems == []
    scene.now += 6
    scene.walls.look()
    assert len(scene.put) == 2, "each silence is one"


def test_a_watch_that_says_farewell_is_not_missed(scene: Scene) -> None:
    scene.report()
    scene.report(ending=True)
    scene.now += 60
    scene.walls.look()
    assert (scene.problems, scene.put) == ([], [])
    assert scene.walls.problems(required=True)


def test_one_that_watches_more_takes_the_place_of_one_that_watched_less(scene: Scene) -> None:
    scene.report()
    scene.now += 60
    scene.walls.take(WatchReport(("tg0", "tg1")))
    assert scene.problems == []
    scene.walls.take(WatchReport(("tg2",)))
    scene.now += 6
    assert len(scene.problems) == 2, "another's place is its own"


def test_what_is_wrong_is_an_incident_once(scene: Scene) -> None:
    for _ in range(3):
        scene.report("tg0: missing: rule 'all tcp ip' of chain capture")
    assert [one.incidents[0][0] for one in scene.put] == ["wall_broken"]
    assert scene.problems == ["wall: tg0: missing: rule 'all tcp ip' of chain capture"]
    scene.report()
    assert scene.problems == []


def test_drops_are_put_on_record(scene: Scene) -> None:
    scene.report(drops=(DROP,))
    assert scene.put == [WallReport((DROP,), ())]


@pytest.mark.parametrize(
    "body",
    [
        {"watches": []},
        {"watches": ["a"], "drops": [{}]},
        {"watches": ["a"], "other": 1},
        {"watches": ["a"], "drops": [msgspec.to_builtins(DROP)] * 257},
        {},
    ],
)
def test_a_report_of_another_form_is_refused(body: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(body), type=WatchReport)
