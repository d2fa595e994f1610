"""What the wall's watch reports: whether the rules stand, what they dropped, and that it is still there.

A watch has no say in what passes. Its silence for `SILENT_SECONDS`, or a rule that is not as it was put up, keeps the
gate from being ready and is an incident; what was dropped is put on record. What the gate's own user was kept from is
an incident too: no worker of ours does that.
"""

import time
from collections.abc import Callable, Collection
from typing import Annotated, Final

import msgspec

from tidegate.keeper.protocol import GATE_USER, WallDrop, WallReport

__all__ = ["SILENT_SECONDS", "PlaceReport", "Walls", "WatchReport"]

SILENT_SECONDS: Final = 5.0
_MOST_PROBLEMS: Final = 20
_MOST_WATCHES: Final = 64


class PlaceReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wall that is watched, by its device or by whom it holds: what is wrong with it, and what it was made for."""

    name: str
    problems: tuple[str, ...] = ()
    made_for: tuple[str, ...] = ()


class WatchReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One report of a watch, once a second. One that was not taken comes again, with the same number.

    `space` is the number of the network namespace that the watch looks at. `ending`: this is its last one.
    """

    watch: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    number: int
    space: int
    places: Annotated[tuple[PlaceReport, ...], msgspec.Meta(max_length=1024)]
    drops: Annotated[tuple[WallDrop, ...], msgspec.Meta(max_length=256)] = ()
    ending: bool = False


class _Watched:
    """What the last report said about one place."""

    def __init__(self, heard: float) -> None:
        self.heard = heard
        self.silent = False
        self.watch = ""
        self.space = 0
        self.problems: tuple[str, ...] = ()
        self.made_for: tuple[str, ...] = ()


class Walls:
    """The walls that are watched. `put` takes what is to be put on record."""

    def __init__(self, put: Callable[[WallReport], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._put = put
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._numbers: dict[str, int] = {}

    def take(self, report: WatchReport) -> None:
        """Take a report."""
        repeated = report.number <= self._numbers.get(report.watch, 0)
        self._numbers[report.watch] = max(report.number, self._numbers.pop(report.watch, 0))
        if len(self._numbers) > _MOST_WATCHES:
            del self._numbers[next(iter(self._numbers))]
        incidents = self._places(report, repeated=repeated)
        if repeated:
            return
        incidents += [("gate_user_held", _told(drop)) for drop in report.drops if drop.device == GATE_USER]
        if report.drops or incidents:
            self._put(WallReport(report.drops, tuple(incidents)))

    def _places(self, report: WatchReport, *, repeated: bool) -> list[tuple[str, str]]:
        """Take what is said of each place; return the incidents that it is."""
        said = {place.name: place.problems[:_MOST_PROBLEMS] for place in report.places}
        for name in [name for name, one in self._watched.items() if one.watch == report.watch]:
            if report.ending or name not in said:
                del self._watched[name]  # its link is gone, or nobody is to watch it
        if report.ending:
            # Without a link left there was nothing to watch any more: a sandbox may end.
            return [] if repeated or not said else [("wall_watch_ended", ", ".join(said))]
        incidents = []
        for place in report.places:
            one, problems = self._watched.setdefault(place.name, _Watched(self._clock())), said[place.name]
            incidents += [("wall_broken", f"{place.name}: {text}") for text in problems if text not in one.problems]
            one.heard, one.silent, one.watch, one.space = self._clock(), False, report.watch, report.space
            one.problems, one.made_for = problems, place.made_for
        return incidents

    def look(self) -> None:
        """Look for a watch that has fallen silent; to be called each second."""
        fallen = [name for name, one in self._watched.items() if not one.silent and self._silence(one) > SILENT_SECONDS]
        for name in fallen:
            self._watched[name].silent = True
        if fallen:
            self._put(WallReport((), (("wall_watch_silent", ", ".join(fallen)),)))

    def problems(self, required: Collection[str] | None) -> list[str]:
        """Return what keeps the gate from being ready; `required` are the devices that must be watched.

        None: nothing need be. Empty: something must, though this process sees no device to be watched.
        """
        found = []
        missing = sorted(set(required or ()) - self._watched.keys())
        if required is not None and (missing or not self._watched):
            of = f" of {', '.join(missing)}" if missing else ""
            found.append(f"nobody watches the wall{of} (wall.watch is required): tidegate wall watch")
        for name, one in self._watched.items():
            if self._silence(one) > SILENT_SECONDS:
                found.append(f"the wall's watch over {name} has been silent for {self._silence(one):.0f} s")
            found += [f"wall: {name}: {text}" for text in one.problems]
        return found

    def made_for(self) -> dict[str, tuple[str, ...]]:
        """Return what each wall that is watched was made for, in words."""
        return {name: one.made_for for name, one in self._watched.items()}

    def elsewhere(self, space: int) -> list[str]:
        """Return what is watched in another network namespace than this one, which its rules do not hold."""
        return [name for name, one in self._watched.items() if one.space != space]

    def _silence(self, one: _Watched) -> float:
        return self._clock() - one.heard


def _told(drop: WallDrop) -> str:
    times = f", {drop.times} times" if drop.times > 1 else ""
    return f"kept from {drop.address or 'an address'} ({drop.transport}, port {drop.port}), {drop.rule}{times}"
