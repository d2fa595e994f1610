"""What one half of a gate is told by the wall's watch: what one does not take keeps nothing from the other.

A report has a number. One that was not taken is sent again with the same one, so that no drop is told twice; how the
wall stands it says as of now. What waits is bounded: beyond some different packets of a place, by their rule alone.
"""

import datetime
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tidegate.errors import TidegateError
from tidegate_launcher.wall.nflog import Dropped

__all__ = ["Absent", "Half", "by_rule"]

_MOST_DROPS: Final = 64
_MOST_IN_REPORT: Final = 100


class Absent(TidegateError):
    """This half does not run here: perhaps both are one."""


class _Seen(NamedTuple):
    times: int
    first: str
    last: str


class Half:
    """One that is told. `send` delivers a report; raises `TidegateError` if it cannot, `Absent` if nobody is there."""

    def __init__(self, send: Callable[[Mapping[str, Any]], object]) -> None:
        self._send = send
        self._id = secrets.token_hex(8)
        self._number = 0
        self._seen: dict[Dropped, _Seen] = {}
        self._unsent: dict[str, Any] | None = None
        self.fault: TidegateError | None = None
        """Why the last report was not taken."""
        self.ended = False
        """Whether the last report was the last of all, and was taken."""

    def saw(self, packet: Dropped, *, times: int = 1) -> None:
        """Keep what was dropped for the next report."""
        moment = _now()
        if packet not in self._seen and sum(one.device == packet.device for one in self._seen) >= _MOST_DROPS:
            packet = by_rule(packet.device, packet.rule)
        old = self._seen.get(packet, _Seen(0, moment, moment))
        self._seen[packet] = _Seen(old.times + times, old.first, moment)

    def report(self, stands: Mapping[str, Any], *, ending: bool) -> None:
        """Send the report that waits, or the next one; `ending`: no more is to come."""
        if self._unsent is None:
            self._unsent = self._next(ending=ending)
        try:
            self._send({**self._unsent, **stands})
        except TidegateError as fault:
            self.fault = fault
            return
        except Exception as fault:  # whatever one half answers: the other is told, and the watch goes on
            self.fault = TidegateError(f"a report could not be sent: {type(fault).__name__}")
            return
        self.fault, self.ended, self._unsent = None, self._unsent["ending"], None

    def _next(self, *, ending: bool) -> dict[str, Any]:
        some = list(self._seen)[:_MOST_IN_REPORT]
        self._number += 1
        return {
            "watch": self._id,
            "number": self._number,
            "drops": [{**packet._asdict(), **self._seen.pop(packet)._asdict()} for packet in some],
            "ending": ending and not self._seen,
        }


def by_rule(device: str, rule: str) -> Dropped:
    """Return what stands for packets of which no more is told than the rule that dropped them."""
    return Dropped(device, rule, None, "other", None, None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
