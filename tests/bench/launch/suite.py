"""What is launched against what, in rounds, and what it must reach.

A row more is a contender more in `races`: what it needs stands in `prepare`, and `once` says how long one command took.
"""

import contextlib
import dataclasses
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tests.bench.cores import on
from tests.bench.launch.bare import BareRunsc
from tests.bench.launch.contender import FIRST_OUTPUT, TO_THE_END, LaunchContender, Task, Unusable
from tests.bench.launch.crowd import crowd
from tests.bench.launch.ways import Claimed, ColdWasm, InProcess, Live, Typed
from tests.bench.launch.yard import Yard, yard
from tests.bench.rounds import Rounds, Spread, order
from tests.bench.suite import Line, number, ratio_text
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.bubblewrap.boundary import Bubblewrap
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.wasm.boundary import Wasm

__all__ = ["ALL", "Found", "Race", "measure", "races", "run"]

_CORES: Final = (0, 1)
_CROWD: Final = 20
_FEW: Final = 3
"""Rounds of what takes long, or hardly differs."""
_PEAK_MB: Final = 60
_END, _FIRST, _WASM = "launch to clean delete", "launch to first output", "launch in WebAssembly"
_MEMORY, _AT_ONCE = "launcher's memory", f"{_CROWD} launches at once"
ALL: Final = (_END, _FIRST, _WASM, _MEMORY, _AT_ONCE)
"""The names of what there is."""
_SUM: Final = Task(("qjs", "--std", "-e", "console.log(6 * 7)"), b"42\n")

type Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Race:
    """Contenders whose times stand together."""

    name: str
    contenders: tuple[LaunchContender, ...]


@dataclasses.dataclass
class Found:
    """What was measured: lines for the table, every time by job and contender, and what must not be used."""

    lines: list[Line] = dataclasses.field(default_factory=list)
    rounds: dict[str, Rounds[float]] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)


def races(yard: Yard) -> tuple[Race, ...]:
    """Return who is measured, in the order of the table."""
    wasm = Wasm()
    return (
        Race(_END, tuple(_launchers(yard, TO_THE_END, 1.25))),
        Race(_FIRST, tuple(_launchers(yard, FIRST_OUTPUT, 1.2))),
        Race(
            _WASM,
            (
                ColdWasm(name="cold: a worker is started", task=_SUM, yard=yard),
                InProcess(name="warm: a worker is there", task=_SUM, yard=yard, boundary=wasm),
            ),
        ),
    )


def _launchers(yard: Yard, task: Task, most: float) -> Iterator[LaunchContender]:
    """Yield the ways to launch one task; each yardstick is of the very bundle that is compared with it."""
    bare, bare_walled = "runsc run", "runsc run, bundle of a session"
    yield BareRunsc(name=bare, task=task, yard=yard, net="none")
    yield BareRunsc(name=bare_walled, task=task, yard=yard, net="veth")
    yield InProcess(
        name="in process, no network", task=task, against=bare, most=most, yard=yard, boundary=GVisor(), net="none"
    )
    yield InProcess(
        name="in process, wall and session", task=task, against=bare_walled, most=most, yard=yard, boundary=GVisor(),
        net="veth",
    )  # fmt: skip
    yield Typed(name="tidegate run, wall and session", task=task, against=bare_walled, most=most, yard=yard)
    yield Claimed(
        name="claimed from a pool, wall and session", task=task, against=bare_walled, most=0.45, yard=yard, net="veth"
    )
    yield Live(
        name="in a live sandbox, wall and session", task=task, against=bare_walled, most=0.3, yard=yard, net="veth"
    )
    yield InProcess(name="bubblewrap, no network", task=task, against=bare, yard=yard, boundary=Bubblewrap())


def measure(names: Sequence[str], rounds_wanted: int, say: Say) -> Found:
    """Measure what was asked for by name, on two CPUs, at a gate of its own."""
    found = Found()
    if not names:
        return found
    if (why := why_no_gvisor()) is not None:
        say(f"left out, launches: {why}")
        return found
    with on(*_CORES), yard() as place:
        for race in races(place):
            if race.name in names:
                run(race, rounds_wanted, found, say)
        few = min(rounds_wanted, _FEW)
        if _MEMORY in names:
            found.lines.append(_memory(place, few, found, say))
        if _AT_ONCE in names:
            found.lines += _at_once(place, few, found, say)
    return found


def run(race: Race, rounds_wanted: int, found: Found, say: Say) -> None:
    """Have all contenders of a race launch in every round, and add what was found."""
    these = found.rounds[race.name] = Rounds()
    with contextlib.ExitStack() as stack:
        ready = [each for each in race.contenders if _prepared(each, stack, f"{race.name}, {each.name}", found, say)]
        for at, each in order(ready, rounds_wanted):
            where = f"{race.name}, {each.name}, round {at + 1}"
            seconds = None
            with _told(where, found, say):
                seconds = each.once()
                say(f"{where}: {seconds * 1e3:.1f} ms")
            these.add(each.name, seconds)
    compared_with = {each.against for each in race.contenders}
    found.lines += [_line(race, each, these) for each in race.contenders if each.name not in compared_with]


def _prepared(each: LaunchContender, stack: contextlib.ExitStack, where: str, found: Found, say: Say) -> bool:
    """Prepare it, and launch once uncounted, with which caches are filled."""
    with _told(where, found, say):
        each.prepare(stack)
        each.once()
        return True
    return False


@contextlib.contextmanager
def _told(where: str, found: Found, say: Say) -> Iterator[None]:
    """Keep what goes wrong as a fault: one figure is missing then, and the others are not."""
    try:
        yield
    except (Unusable, LaunchError, subprocess.TimeoutExpired) as fault:
        found.faults.append(f"{where}: {fault}")
        say(found.faults[-1])


def _line(race: Race, each: LaunchContender, these: Rounds[float]) -> Line:
    ratio = these.ratio(each.name, each.against, _itself)
    return Line(
        race.name,
        each.name,
        _ms(these.spread(each.against, _itself)),
        "",
        _ms(these.spread(each.name, _itself)),
        ratio_text(ratio),
        "" if each.most is None else f"≤ {each.most}×",
        None if each.most is None or ratio is None else ratio.median <= each.most,
    )


def _itself(seconds: float) -> float:
    return seconds


def _ms(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    low, high = (number(value * 1e3, "").strip() for value in (spread.low, spread.high))
    return f"{number(spread.median * 1e3, 'ms')} ({low}–{high})"


def _memory(place: Yard, rounds_wanted: int, found: Found, say: Say) -> Line:
    typed = Typed(name="tidegate run", task=TO_THE_END, yard=place)
    these = found.rounds[_MEMORY] = Rounds()
    for _ in range(rounds_wanted):
        peak = None
        with _told(_MEMORY, found, say):
            peak = typed.peak_mb()
        these.add(typed.name, peak)
    spread = these.spread(typed.name, _itself)
    shown = "–" if spread is None else f"{spread.median:.1f} MB ({spread.low:.1f}–{spread.high:.1f})"
    say(f"{_MEMORY}, {typed.name}: {shown}")
    met = None if spread is None else spread.high < _PEAK_MB
    return Line(_MEMORY, "tidegate run, peak", "–", "", shown, "–", f"< {_PEAK_MB} MB", met)


def _at_once(place: Yard, rounds_wanted: int, found: Found, say: Say) -> list[Line]:
    these = found.rounds[_AT_ONCE] = Rounds()
    failed, together = 0, _CROWD
    for _ in range(rounds_wanted):
        came = crowd(place, _CROWD)
        # A launch that failed is a figure here, and its seconds would be those of fewer.
        these.add("in process, wall and session", None if came.faults else came.seconds)
        failed += len(came.faults)
        together = min(together, came.together)
        say(f"{_AT_ONCE}: {came.together} stood together, {len(came.faults)} failed, {came.seconds:.1f} s")
        for fault in came.faults:
            say(f"{_AT_ONCE}: {fault}")
    spread = these.spread("in process, wall and session", _itself)
    shown = "–" if spread is None else f"{spread.median:.1f} s ({spread.low:.1f}–{spread.high:.1f})"
    met = failed == 0 and together == _CROWD
    of = f"{failed} of {rounds_wanted * _CROWD}, {together} together"
    return [
        Line(_AT_ONCE, "in process, wall and session: failed", "–", "", of, "–", f"none, {_CROWD} together", met),
        Line(_AT_ONCE, "until the last is deleted", "–", "", shown, "–"),
    ]
