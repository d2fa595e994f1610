"""The wall's watch: reads what was dropped and whether the rules stand, and reports both, each second.

A tiny process that needs CAP_NET_ADMIN and nothing else. It has no say: what it reports the gate records, and its
silence keeps the gate from being ready.

| each | is done |
|---|---|
| second | a report: what was dropped since the last one, and what is wrong |
| 2 seconds | the rules as they stand are compared with the rules as they were put up |
| packet in the log | kept for the next report, with its repeats as one; the counters tell what the log did not |

A report has a number. One that was not taken is sent again as it was, so that nothing is told twice. A link that is
gone is watched no more: nothing can come by it, and a sandbox may end. With the last of them the watch ends.
"""

import datetime
import secrets
import select
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import LaunchError, TidegateError
from tidegate_launcher import nft, noted
from tidegate_launcher.nflog import Dropped

__all__ = ["Log", "Place", "Watch"]

_REPORT_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0
_REPLACED_SECONDS: Final = 0.25
_FAREWELL_SECONDS: Final = 3.0
_MOST_DROPS: Final = 64
"""Different packets of one place at a time; more of them count by their rule alone."""
_MOST_IN_REPORT: Final = 100


class Log(Protocol):
    """The packet log."""

    def fileno(self) -> int: ...  # noqa: D102 - as PacketLog
    def read(self) -> list[Dropped]: ...  # noqa: D102


class Place(NamedTuple):
    """One set of rules that is watched: how it is spoken of, and the device that it stands at, if it does."""

    table: str
    shown: str
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
        self._id = secrets.token_hex(8)
        self._number = 0
        self._unsent: Mapping[str, Any] | None = None
        self._seen: dict[Dropped, _Seen] = {}
        self._told: Counter[tuple[str, str]] = Counter()
        self._counted: dict[tuple[str, str], int] | None = None
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
        return any(place.device is not None for place in self._places)

    def _farewell(self) -> None:
        """Send what waits, and that this is the last; for as long as a gate that is away may take to come back."""
        end = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < end:
            last = self._unsent is None and len(self._seen) <= _MOST_IN_REPORT
            self._report(ending=last)
            if self._unsent is not None:
                time.sleep(0.2)
            elif last:
                return

    def turn(self, now: float) -> None:
        """Do what is due: check, and report."""
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._check()
        self._report(ending=False)

    # -- what was dropped -------------------------------------------------------------------------

    def _take(self, packets: list[Dropped]) -> None:
        moment, shown = _now(), {place.shown for place in self._places}
        kept = Counter(packet.device for packet in self._seen)
        for packet in packets:
            if packet.device not in shown:
                continue
            key = packet if packet in self._seen or kept[packet.device] < _MOST_DROPS else _by_rule(*packet[:2])
            old = self._seen.get(key)
            kept[packet.device] += old is None
            self._seen[key] = _Seen(1, moment, moment) if old is None else _Seen(old.times + 1, old.first, moment)
            self._told[packet.device, packet.rule] += 1

    def _count(self, counted: dict[tuple[str, str], int]) -> None:
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
                key = _by_rule(*name)
                old = self._seen.get(key)
                self._seen[key] = _Seen(rest + (old.times if old else 0), old.first if old else moment, moment)

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

    def _look(self) -> tuple[dict[str, list[str]], dict[tuple[str, str], int] | None]:
        """Return what is wrong, by place, and the counts of the rules that drop; None when they cannot be read."""
        problems: dict[str, list[str]] = {}
        counted: dict[tuple[str, str], int] = {}
        try:
            standing = nft.read()
        except LaunchError as fault:
            return {place.shown: [str(fault)] for place in self._places}, None
        for place in list(self._places):
            try:
                if place.device is not None and noted.gone(place.table, place.device):
                    self._places.remove(place)
                    self._say(f"{place.shown}: the link is gone, and watched no more")
                    continue
                problems[place.shown] = noted.wrong(place.table, standing, device=place.device)
            except LaunchError as fault:
                problems[place.shown] = [str(fault)]
            for name, (packets, _) in standing.counts(place.table).items():
                counted[place.shown, name.partition(": ")[2]] = packets
        return problems, counted

    # -- what is told -----------------------------------------------------------------------------

    def _report(self, *, ending: bool) -> None:
        if self._unsent is None:
            self._unsent = self._made(ending=ending)
        try:
            self._send(self._unsent)
        except TidegateError as fault:
            if not self._silent:
                self._say(f"the gate takes no reports: they wait, and are tried again each second: {fault}")
            self._silent = True
            return
        if self._silent:
            self._say("the gate takes reports again")
        self._silent, self._unsent = False, None

    def _made(self, *, ending: bool) -> dict[str, Any]:
        some = list(self._seen)[:_MOST_IN_REPORT]
        self._number += 1
        return {
            "watch": self._id,
            "number": self._number,
            "places": [
                {"name": place.shown, "problems": self._problems.get(place.shown, [])} for place in self._places
            ],
            "drops": [{**packet._asdict(), **self._seen.pop(packet)._asdict()} for packet in some],
            "ending": ending,
        }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _by_rule(device: str, rule: str) -> Dropped:
    return Dropped(device, rule, None, "other", None, None)
