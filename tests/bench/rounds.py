"""Interleaved rounds: everybody in every round, every other round backwards.

A machine's speed drifts by a fifth from minute to minute. Figures are therefore compared within a
round only, and what is reported is the median of the rounds' ratios with the lowest and the highest.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Self

__all__ = ["Rounds", "Spread", "order"]


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of the rounds' figures or ratios, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the spread of some values, or None when there are none."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


class Rounds[T]:
    """The results of one job: by contender, one a round (None: that run was invalid)."""

    def __init__(self) -> None:
        self.results: dict[str, list[T | None]] = {}

    def add(self, contender: str, result: T | None) -> None:
        """Add the result of the next round."""
        self.results.setdefault(contender, []).append(result)

    def median(self, contender: str, figure: Callable[[T], float]) -> float | None:
        """Return the median of `figure` over the valid rounds, or None when there is none."""
        found = self.spread(contender, figure)
        return None if found is None else found.median

    def spread(self, contender: str, figure: Callable[[T], float]) -> Spread | None:
        """Return the spread of `figure` over the valid rounds, or None when there is none."""
        return Spread.of([figure(result) for result in self.results.get(contender, []) if result is not None])

    def ratio(self, over: str, under: str, figure: Callable[[T], float]) -> Spread | None:
        """Return the ratio of `over` to `under`, round by round, or None when no round has both."""
        pairs = zip(self.results.get(over, []), self.results.get(under, []), strict=False)
        return Spread.of([figure(a) / figure(b) for a, b in pairs if a is not None and b is not None and figure(b)])


def order[T](contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, contender): all in each round, every other round backwards."""
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            yield number, contender
