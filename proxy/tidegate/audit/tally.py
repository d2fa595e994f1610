"""A count with its first and last time: what a counted record says."""

from typing import NamedTuple

__all__ = ["Count", "Tally"]


class Count(NamedTuple):
    """How many, from when to when (record times)."""

    times: int
    first: str
    last: str


class Tally:
    """Counts until it is taken."""

    __slots__ = ("count", "first", "last")

    def __init__(self) -> None:
        self.count = 0
        self.first = ""
        self.last = ""

    def add(self, at: str, count: int = 1) -> None:
        """Count `count` more at record time `at`."""
        if not self.count:
            self.first = at
        self.count += count
        self.last = at

    def take(self) -> Count:
        """Return what was counted and begin anew."""
        taken = Count(self.count, self.first, self.last)
        self.count = 0
        return taken
