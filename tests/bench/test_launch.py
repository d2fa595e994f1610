"""Launches are timed, compared and told: the whole part runs once, and each row is there."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.launch.bare import BareRunsc
from tests.bench.launch.contender import TO_THE_END, LaunchContender, Task, Unusable, timed
from tests.bench.launch.crowd import crowd
from tests.bench.launch.suite import ALL, Found, Race, run
from tests.bench.launch.yard import Yard, yard
from tests.bench.report import LAUNCHES, table
from tests.lab.roots import why_no_gvisor

gvisor = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")
pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(kw_only=True)
class Steady(LaunchContender):
    """Takes as long as it is told to, and fails in the launches that it is told to."""

    task: Task = TO_THE_END
    takes: float
    fails: tuple[int, ...] = ()
    launches: int = 0

    def once(self) -> float:
        self.launches += 1
        if self.launches in self.fails:
            raise Unusable("it fell")
        return self.takes


def measured(*contenders: LaunchContender, rounds: int = 3) -> Found:
    found = Found()
    run(Race("launch", contenders), rounds, found, lambda _: None)
    return found


def test_a_row_is_compared_with_its_yardstick_and_judged() -> None:
    found = measured(
        Steady(name="bare", takes=0.2),
        Steady(name="quick", takes=0.24, against="bare", most=1.25),
        Steady(name="slow", takes=0.26, against="bare", most=1.25),
        Steady(name="other", takes=0.1),
    )
    assert [(line.figure, line.direct, line.ratio, line.target, line.met) for line in found.lines] == [
        ("quick", "200 ms (200–200)", "1.20× (1.20–1.20)", "≤ 1.25×", True),
        ("slow", "200 ms (200–200)", "1.30× (1.30–1.30)", "≤ 1.25×", False),
        ("other", "–", "–", "", None),
    ]
    told = table(found.lines, LAUNCHES).splitlines()
    assert told[0].split() == ["runsc", "run", "launcher", "ratio", "(low–high)", "target"]
    assert [line.split()[-1] for line in told[1:3]] == ["ok", "MISSED"]


@pytest.mark.parametrize(
    ("fails", "times"),
    [
        pytest.param((3,), [0.1, None, 0.1], id="in-a-round"),
        pytest.param((1,), None, id="before-the-first"),
    ],
)
def test_a_launch_that_failed_has_no_time_and_is_a_fault(fails: tuple[int, ...], times: list[float] | None) -> None:
    found = measured(Steady(name="bare", takes=0.2), Steady(name="falls", takes=0.1, fails=fails, against="bare"))
    assert found.rounds["launch"].results.get("falls") == times
    assert len(found.faults) == 1
    assert "falls" in found.faults[0]
    assert found.rounds["launch"].results["bare"] == [0.2] * 3


def test_every_contender_of_a_race_launches_once_uncounted() -> None:
    one = Steady(name="one", takes=0.1)
    assert measured(one, rounds=2).rounds["launch"].results == {"one": [0.1, 0.1]}
    assert one.launches == 3


def program(code: str, *, says: bytes = b"here\n", until_first: bool = False) -> float:
    line = ["/bin/sh", "-c", code]
    return timed(line, Task((), says, until_first=until_first), env={"PATH": "/usr/bin:/bin"}, cwd=Path("/"))


def test_the_clock_stops_at_the_first_byte_or_at_the_end() -> None:
    code = "echo here; sleep 0.5"
    assert program(code, until_first=True) < 0.5 <= program(code)


@pytest.mark.parametrize("code", ["echo here; exit 3", "echo there", ":"], ids=["code", "words", "silence"])
def test_a_program_that_did_something_else_has_no_time(code: str) -> None:
    with pytest.raises(Unusable):
        program(code, until_first=True)


# -- by gVisor -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Yard]:
    with yard() as place:
        yield place


@gvisor
@pytest.mark.parametrize(("net", "bound"), [("none", set()), ("veth", {"/tidegate", "/etc/resolv.conf"})])
def test_the_yardstick_has_what_the_launch_has(place: Yard, net: Any, bound: set[str]) -> None:
    bare = BareRunsc(name="bare", task=TO_THE_END, yard=place, net=net)
    with contextlib.ExitStack() as stack:
        bare.prepare(stack)
        assert bare.once() > 0
        (config,) = place.gate.folder.glob("bare-*/gvisor/bundle/config.json")
        bundle = json.loads(config.read_text())
    assert bundle["process"]["args"] == list(TO_THE_END.argv)
    assert any(word.startswith("BENCH_TOKEN=") for word in bundle["process"]["env"]) == bool(bound)
    assert {mount["destination"] for mount in bundle["mounts"]} - {
        "/proc", "/sys", "/dev", "/work", "/tmp", "/dev/shm"
    } == bound  # fmt: skip
    (network,) = (one for one in bundle["linux"]["namespaces"] if one["type"] == "network")
    assert ("path" in network) == bool(bound)
    assert not list(place.gate.folder.glob("bare-*"))


@gvisor
def test_many_stand_at_once_and_one_that_never_does_holds_up_none(place: Yard) -> None:
    came = crowd(place, 3)
    assert (came.together, came.faults) == (3, ())
    nowhere = crowd(dataclasses.replace(place, root=place.root / "nothing"), 2)
    assert ["no such root" in fault for fault in nowhere.faults] == [True, True]
    assert nowhere.seconds < 60


@gvisor
def test_all_rows_are_told_and_all_figures_kept(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "tests.bench", "--only", "launch", "--rounds", "1", "--into", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (kept,) = tmp_path.glob("*.json")
    told = json.loads(kept.read_text())
    ways = ["in process, no network", "in process, wall and session", "tidegate run, wall and session",
            "claimed from a pool, wall and session", "in a live sandbox, wall and session", "bubblewrap, no network",
            ]  # fmt: skip
    assert [(line["job"], line["figure"]) for line in told["lines"]] == [
        *(("launch to clean delete", way) for way in ways),
        *(("launch to first output", way) for way in ways),
        ("launch in WebAssembly", "cold: a worker is started"),
        ("launch in WebAssembly", "warm: a worker is there"),
        ("launcher's memory", "tidegate run, peak"),
        ("20 launches at once", "in process, wall and session: failed"),
        ("20 launches at once", "until the last is deleted"),
    ]
    rows = done.stdout.splitlines()
    for one in told["lines"]:
        assert any(one["figure"] in row and one["ours"] in row for row in rows), one
        assert one["ours"] != "–"
        assert (one["met"] is None) == (one["target"] == "")
    assert sorted(told["launches"]) == sorted(ALL)
    assert all(figures and all(figures) for race in told["launches"].values() for figures in race.values())
    assert told["rounds"] == {}
