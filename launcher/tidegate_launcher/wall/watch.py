"""The wall's watch: reads what was dropped and whether the rules stand, and reports both, each second.

A tiny process that needs CAP_NET_ADMIN and nothing else. It has no say: what it reports the gate records, and its
silence keeps the gate from being ready.

| each | is done |
|---|---|
| second | a report to each half (`half`): what was dropped since the last one, what is wrong, and where this looks |
| 2 seconds | the rules as they stand are compared with the rules as they were put up |
| packet in the log | kept for the next report, with its repeats as one; the counters tell what the log did not |

A link that is gone is watched no more: nothing can come by it, and a sandbox may end. One that comes back under its
name is watched again, and is not what the wall was put up around. With the last of them the watch ends.
"""

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import LaunchError
from tidegate_launcher.wall import nft, noted
from tidegate_launcher.wall.half import Absent, Half, by_rule
from tidegate_launcher.wall.nflog import Dropped

__all__ = ["Log", "Place", "Watch"]

_REPORT_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0
_REPLACED_SECONDS: Final = 0.25
_FAREWELL_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 0.2
_MOST_PROBLEMS: Final = 20
"""Of one place, in a report: a table that was made anew differs in each of its rules."""

type _Packets = dict[tuple[str, str], int]
"""Counts by place and rule."""


class Log(Protocol):
    """The packet log."""

    def fileno(self) -> int: ...  # noqa: D102 - as PacketLog
    def read(self) -> list[Dropped]: ...  # noqa: D102


class Place(NamedTuple):
    """One set of rules that is watched: how it is spoken of, and the device that it stands at, if it does."""

    table: str
    shown: str
    device: str | None


class Watch:
    """Watches places, and tells each half that runs."""

    def __init__(self, log: Log, places: list[Place], halves: Sequence[Half], say: Callable[[str], None]) -> None:
        self._log = log
        self._places = places
        self._gone: set[Place] = set()
        self._halves = halves
        self._say = say
        self._told: Counter[tuple[str, str]] = Counter()
        self._counted: _Packets | None = None
        self._problems: dict[str, list[str]] = {}
        self._checked = -_CHECK_SECONDS
        self._silent = False
        self._ended = False

    def end(self) -> None:
        """Have `run` end with its next turn."""
        self._ended = True

    def run(self) -> bool:
        """Watch until `end` is called, and return True; or until none of its links is left."""
        begun = time.monotonic()
        linked = self._linked()
        while not self._ended and self._linked() == linked:
            left = begun + _REPORT_SECONDS - time.monotonic()
            if left > 0:
                ready, _, _ = select.select([self._log], [], [], left)
                if ready:
                    self._take(self._log.read())
                continue
            begun = time.monotonic()
            self.turn(begun)
        self._farewell()
        return self._ended

    def _linked(self) -> bool:
        return any(place.device is not None for place in self._watched())

    def _watched(self) -> list[Place]:
        return [place for place in self._places if place not in self._gone]

    def _farewell(self) -> None:
        """Send what waits, and that this is the last; for as long as a gate that is away may take to come back."""
        end = time.monotonic() + _FAREWELL_SECONDS
        while not self._report(ending=True) and time.monotonic() < end:
            time.sleep(_AGAIN_SECONDS)

    def turn(self, now: float) -> None:
        """Do what is due: check, and report."""
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._check()
        self._report(ending=False)

    # -- what was dropped -------------------------------------------------------------------------

    def _take(self, packets: list[Dropped]) -> None:
        shown = {place.shown for place in self._places}
        for packet in packets:
            if packet.device in shown:
                self._saw(packet)
                self._told[packet.device, packet.rule] += 1

    def _saw(self, packet: Dropped, *, times: int = 1) -> None:
        for half in self._halves:
            half.saw(packet, times=times)

    def _count(self, counted: _Packets) -> None:
        """Add, by rule, what the counters have that the log has not told: it is written at a bounded rate."""
        before, self._counted = self._counted, counted
        for name, packets in counted.items():
            if before is None or packets < before.get(name, 0):
                self._told.pop(name, None)  # the counters begin anew
                continue
            rest = packets - before.get(name, 0) - self._told.pop(name, 0)
            if rest < 0:
                self._told[name] = -rest  # logged after the counters were read
            elif rest:
                self._saw(by_rule(*name), times=rest)

    # -- what stands ------------------------------------------------------------------------------

    def _check(self) -> None:
        problems, counted = self._look()
        if any(problems.values()):
            # While a wall is replaced, what stands and what was noted differ for a moment.
            time.sleep(_REPLACED_SECONDS)
            problems, counted = self._look()
        for shown, texts in problems.items():
            for text in texts:
                if text not in self._problems.get(shown, ()):
                    self._say(f"{shown}: {text}")
        self._problems = problems
        self._take(self._log.read())  # after the counters: what they have, the log has told by now if it tells it
        if counted is not None:
            self._count(counted)

    def _look(self) -> tuple[dict[str, list[str]], _Packets | None]:
        """Return what is wrong, by place, and the counts of the rules that drop; None when they cannot be read."""
        problems: dict[str, list[str]] = {}
        counted: _Packets = {}
        try:
            standing = nft.read()
        except LaunchError as fault:
            return {place.shown: [str(fault)] for place in self._watched()}, None
        for place in self._places:
            try:
                if place.device is not None and noted.gone(place.table, place.device):
                    self._leave(place)
                    continue
                self._gone.discard(place)
                problems[place.shown] = noted.wrong(place.table, standing, device=place.device)
            except LaunchError as fault:
                problems[place.shown] = [str(fault)]
            for name, (packets, _) in standing.counts(place.table).items():
                counted[place.shown, name.partition(": ")[2]] = packets
        return problems, counted

    def _leave(self, place: Place) -> None:
        if place not in self._gone:
            self._gone.add(place)
            self._say(f"{place.shown}: the link is gone, and watched no more")

    # -- what is told -----------------------------------------------------------------------------

    def _report(self, *, ending: bool) -> bool:
        """Report to each half; return whether each that runs has heard its last."""
        space = os.stat("/proc/self/ns/net").st_ino
        stands = {"space": space, "places": [self._stands(one) for one in self._watched()]}
        for half in self._halves:
            if not half.ended:
                half.report(stands, ending=ending)
        self._say_faults()
        return all(half.ended or isinstance(half.fault, Absent) for half in self._halves)

    def _stands(self, place: Place) -> dict[str, Any]:
        try:
            made_for = noted.made_for(place.table)
        except LaunchError:
            made_for = ()
        found = self._problems.get(place.shown, [])
        if (more := len(found) - _MOST_PROBLEMS) > 0:
            found = [*found[: _MOST_PROBLEMS - 1], f"{more + 1} more"]
        return {"name": place.shown, "problems": found, "made_for": made_for}

    def _say_faults(self) -> None:
        faults = [half.fault for half in self._halves if half.fault is not None]
        there = [fault for fault in faults if not isinstance(fault, Absent)]
        told = there[0] if there else faults[0] if len(faults) == len(self._halves) else None
        if told is not None and not self._silent:
            self._say(f"reports wait until they are taken: {told}")
        elif told is None and self._silent:
            self._say("reports are taken again")
        self._silent = told is not None
