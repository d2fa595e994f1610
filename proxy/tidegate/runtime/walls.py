"""What the wall's watch reports: whether the rules stand, what they dropped, and that it is still there.

A watch has no say in what passes. Its silence for `SILENT_SECONDS`, or a rule that is not as it was put up, keeps the
gate from being ready and is an incident; what was dropped is put on record.
"""

import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from tidegate.keeper.protocol import WallDrop, WallReport

__all__ = ["SILENT_SECONDS", "Walls", "WatchReport"]

SILENT_SECONDS: Final = 5.0
_MOST_PROBLEMS: Final = 20


class WatchReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One report of a watch, once a second. `ending`: it was told to end, and this is its last one."""

    watches: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1024)]
    problems: tuple[str, ...] = ()
    drops: Annotated[tuple[WallDrop, ...], msgspec.Meta(max_length=256)] = ()
    ending: bool = False


class _Watched:
    """What the last report said about one place."""

    def __init__(self) -> None:
        self.heard = 0.0
        self.silent = False
        self.problems: tuple[str, ...] = ()


class Walls:
    """The walls that are watched. `put` takes what is to be put on record."""

    def __init__(self, put: Callable[[WallReport], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._put = put
        self._clock = clock
        self._watched: dict[tuple[str, ...], _Watched] = {}

    def take(self, report: WatchReport) -> None:
        """Take a report."""
        incidents = []
        if report.ending:
            self._watched.pop(report.watches, None)
        else:
            # One that watches more has taken the place of one that watched some of it.
            for other in [other for other in self._watched if set(other) < set(report.watches)]:
                del self._watched[other]
            one = self._watched.setdefault(report.watches, _Watched())
            problems = report.problems[:_MOST_PROBLEMS]
            incidents = [("wall_broken", text) for text in problems if text not in one.problems]
            one.heard, one.silent, one.problems = self._clock(), False, problems
        if report.drops or incidents:
            self._put(WallReport(report.drops, tuple(incidents)))

    def look(self) -> None:
        """Look for a watch that has fallen silent; to be called each second."""
        for places, one in self._watched.items():
            if not one.silent and self._clock() - one.heard > SILENT_SECONDS:
                one.silent = True
                self._put(WallReport((), (("wall_watch_silent", ", ".join(places)),)))

    def problems(self, *, required: bool) -> list[str]:
        """Return what keeps the gate from being ready."""
        if required and not self._watched:
            return ["nobody watches the wall (wall.watch is required): tidegate wall watch"]
        found = []
        for places, one in self._watched.items():
            silent = self._clock() - one.heard
            if silent > SILENT_SECONDS:
                found.append(f"the wall's watch ({', '.join(places)}) has been silent for {silent:.0f} s")
            found += [f"wall: {text}" for text in one.problems]
        return found
