"""What the supervisor makes of a watch's reports, and of none."""

import msgspec
import pytest

from tidegate.keeper.protocol import WallDrop, WallReport
from tidegate.runtime.walls import SILENT_SECONDS, PlaceReport, Walls, WatchReport

DROP = WallDrop("tg0", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443, 1, "a", "b")


GOOD = {"watch": "watch-one", "number": 1, "space": 7, "places": [{"name": "tg0"}]}


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.put: list[WallReport] = []
        self.walls = Walls(self.put.append, clock=lambda: self.now)
        self.number = 0

    def report(
        self,
        *problems: str,
        places: tuple[str, ...] = ("tg0",),
        drops: tuple[WallDrop, ...] = (),
        ending: bool = False,
        watch: str = "watch-one",
        again: bool = False,
        space: int = 7,
        made_for: tuple[str, ...] = (),
    ) -> None:
        self.number += not again
        told = tuple(PlaceReport(name, problems, made_for) for name in places)
        self.walls.take(WatchReport(watch, self.number, space, told, drops, ending))

    @property
    def problems(self) -> list[str]:
        return self.walls.problems(None)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_without_a_watch_nothing_is_wrong_unless_one_is_required(scene: Scene) -> None:
    assert scene.problems == []
    for required in ((), ("tg0",)):
        assert "wall.watch is required" in scene.walls.problems(required)[0]
    scene.report()
    assert scene.walls.problems(()) == scene.walls.problems(("tg0",)) == []


def test_each_device_that_must_be_watched_must_be(scene: Scene) -> None:
    scene.report(places=("tg0", "the gate's user"))
    assert scene.walls.problems(("tg0", "tg1")) == [
        "nobody watches the wall of tg1 (wall.watch is required): tidegate wall watch"
    ]


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
    assert (scene.problems, scene.put) == ([], [WallReport((), (("wall_watch_ended", "tg0"),))])
    assert scene.walls.problems(())


@pytest.mark.parametrize("places", [("tg1", "tg0"), ("tg0", "tg1", "tg2"), ("tg1",)], ids=str)
def test_another_watch_takes_the_place_of_one_that_was_killed(scene: Scene, places: tuple[str, ...]) -> None:
    scene.report(places=("tg0", "tg1"))
    scene.now += 60
    scene.report(places=places, watch="watch-two")
    left = {"tg0", "tg1"} - set(places)
    assert len(scene.problems) == len(left), "what nobody watches any more is missed"


def test_a_link_that_is_gone_is_not_missed(scene: Scene) -> None:
    scene.report(places=("tg0", "tg1"))
    scene.report(places=("tg1",))
    scene.now += 4
    scene.report(places=("tg1",))
    scene.now += 4
    assert scene.problems == []


def test_a_report_that_comes_again_is_recorded_once(scene: Scene) -> None:
    scene.report(drops=(DROP,))
    scene.report(drops=(DROP,), again=True)
    assert len(scene.put) == 1
    scene.now += 4
    scene.report(drops=(DROP,), again=True)
    scene.now += 4
    assert scene.problems == [], "it was heard all the same"


def test_what_the_gates_user_was_kept_from_is_an_incident(scene: Scene) -> None:
    held = msgspec.structs.replace(
        DROP, device="the gate's user", rule="metadata ip", address="169.254.169.254", times=3
    )
    scene.report(drops=(held, DROP))
    [put] = scene.put
    assert put.incidents == (("gate_user_held", "kept from 169.254.169.254 (udp, port 443), metadata ip, 3 times"),)


def test_what_is_wrong_is_an_incident_once(scene: Scene) -> None:
    for _ in range(3):
        scene.report("missing: rule 'all tcp ip' of chain capture")
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
        {"watch": "watch-one", "number": 1},
        {"watch": "short", "number": 1, "places": []},
        {**GOOD, "drops": [{}]},
        {**GOOD, "other": 1},
        {**GOOD, "drops": [msgspec.to_builtins(DROP)] * 257},
        {},
    ],
)
def test_a_report_of_another_form_is_refused(body: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(body), type=WatchReport)


def test_a_watch_of_another_namespace_is_told_apart(scene: Scene) -> None:
    scene.report(space=7)
    assert scene.walls.elsewhere(7) == []
    assert scene.walls.elsewhere(8) == ["tg0"]


def test_what_a_wall_was_made_for_is_as_last_said(scene: Scene) -> None:
    scene.report(made_for=("listen.tls 10.77.0.1:443",))
    scene.report(made_for=("listen.tls 10.77.0.1:8443",))
    assert scene.walls.made_for() == {"tg0": ("listen.tls 10.77.0.1:8443",)}


def test_a_watch_without_a_link_left_ends_without_an_incident(scene: Scene) -> None:
    scene.report()
    scene.report(places=(), ending=True)
    assert (scene.problems, scene.put) == ([], [])
