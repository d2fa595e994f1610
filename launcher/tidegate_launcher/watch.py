"""The wall's watch: reads what was dropped and whether the rules stand, and reports both, each second.

A tiny process that needs CAP_NET_ADMIN and nothing else. It has no say: what it reports the gate records, and its
silence keeps the gate from being ready.

| each | is done |
|---|---|
| second | a report: what was dropped since the last one, and what is wrong |
| 2 seconds | the rules as they stand are compared with the rules as they were put up |
| packet in the log | kept for the next report, with its repeats as one; the counters tell what the log did not |
"""

import datetime
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import LaunchError, TidegateError
from tidegate_launcher import nft, noted
from tidegate_launcher.nflog import Dropped

__all__ = ["Log", "Place", "Watch"]

_REPORT_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0
_REPLACED_SECONDS: Final = 0.25
_MOST_DROPS: Final = 64
"""Different packets of one report; more of them count by their rule alone."""


class Log(Protocol):
    """The packet log."""

    def fileno(self) -> int: ...  # noqa: D102 - as PacketLog
    def read(self) -> list[Dropped]: ...  # noqa: D102


class Place(NamedTuple):
    """One set of rules that is watched; `device` None: those that hold the gate's own user."""

    table: str
    device: str | None


class _Seen(NamedTuple):
    times: int
    first: str
    last: str


class Watch:
    """Watches places. `send` delivers a report and raises `TidegateError` when it cannot: it is tried again."""

    def __init__(
        self, log: Log, places: list[Place], send: Callable[[Mapping[str, Any]], object], say: Callable[[str], None]
    ) -> None:
        self._log = log
        self._places = places
        self._send = send
        self._say = say
        self._seen: dict[Dropped, _Seen] = {}
        self._told: dict[str, int] = {}
        self._counted: dict[str, int] | None = None
        self._problems: list[str] = []
        self._checked = -_CHECK_SECONDS
        self._silent = False
        self._ended = False

    def end(self) -> None:
        """Have `run` end with its next turn."""
        self._ended = True

    def run(self) -> None:
        """Watch until `end` is called, then say so."""
        begun = time.monotonic()
        while not self._ended:
            left = begun + _REPORT_SECONDS - time.monotonic()
            if left > 0:
                ready, _, _ = select.select([self._log], [], [], left)
                if ready:
                    self._take(self._log.read())
                continue
            begun = time.monotonic()
            self.turn(begun)
        self._report(ending=True)

    def turn(self, now: float) -> None:
        """Do what is due: check, and report."""
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._check()
        self._report(ending=False)

    def _take(self, packets: list[Dropped]) -> None:
        moment = _now()
        for packet in packets:
            if not any(packet.device == place.device for place in self._places):
                continue
            key = packet if packet in self._seen or len(self._seen) < _MOST_DROPS else _by_rule(packet)
            old = self._seen.get(key)
            self._seen[key] = _Seen(1, moment, moment) if old is None else _Seen(old.times + 1, old.first, moment)
            name = f"{packet.device}: {packet.rule}"
            self._told[name] = self._told.get(name, 0) + 1

    def _check(self) -> None:
        problems, counted = self._look()
        if problems:
            # While a wall is replaced, what stands and what was noted differ for a moment.
            time.sleep(_REPLACED_SECONDS)
            problems, counted = self._look()
        for problem in problems:
            if problem not in self._problems:
                self._say(problem)
        self._problems = problems
        self._take(self._log.read())  # after the counters: what they have, the log has told by now if it tells it
        self._count(counted)

    def _look(self) -> tuple[list[str], dict[str, int]]:
        """Return what is wrong, and the counts of the rules that drop."""
        problems: list[str] = []
        counted: dict[str, int] = {}
        for place in self._places:
            shown = place.device or "the gate's user"
            try:
                rules, counts = nft.read(place.table)
                problems += [f"{shown}: {text}" for text in noted.wrong(place.table, rules, device=place.device)]
            except LaunchError as fault:
                problems.append(f"{shown}: {fault}")
                continue
            counted |= {
                f"{shown}: {name.partition(': ')[2]}": packets
                for name, (packets, _) in counts.items()
                if place.device is not None
            }
        return problems, counted

    def _count(self, counted: dict[str, int]) -> None:
        """Add, by rule, what the counters have that the log has not told: it is written at a bounded rate."""
        before, self._counted = self._counted, counted
        moment = _now()
        for name, packets in counted.items():
            if before is None or packets < before.get(name, 0):
                self._told.pop(name, None)  # the counters begin anew
                continue
            rest = packets - before.get(name, 0) - self._told.pop(name, 0)
            if rest < 0:
                self._told[name] = -rest  # logged after the counters were read
            elif rest:
                device, _, rule = name.partition(": ")
                key = Dropped(device, rule, None, "other", None, None)
                old = self._seen.get(key)
                self._seen[key] = _Seen(rest + (old.times if old else 0), old.first if old else moment, moment)

    def _report(self, *, ending: bool) -> None:
        drops = [{**packet._asdict(), **seen._asdict()} for packet, seen in self._seen.items()]
        report = {
            "watches": [place.device or "gate" for place in self._places],
            "problems": self._problems,
            "drops": drops,
            "ending": ending,
        }
        try:
            self._send(report)
        except TidegateError as fault:
            if not self._silent:
                self._say(f"the gate does not take reports: {fault}")
            self._silent = True
            return  # what was seen stays for the next one, in its bounds
        self._silent = False
        self._seen.clear()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _by_rule(packet: Dropped) -> Dropped:
    return Dropped(packet.device, packet.rule, None, "other", None, None)
