"""Interleaved rounds: everybody in every round, every other round backwards.

A machine's speed drifts by a fifth from minute to minute. Figures are therefore compared within a
round only, and what is reported is the median of the rounds' ratios with the lowest and the highest.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence

from tests.bench.load import Result

__all__ = ["Ratio", "Rounds", "order"]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, with the lowest and the highest."""

    median: float
    low: float
    high: float


class Rounds:
    """The results of one job: by contender, one a round (None: that run was invalid)."""

    def __init__(self) -> None:
        self.results: dict[str, list[Result | None]] = {}

    def add(self, contender: str, result: Result | None) -> None:
        """Add the result of the next round."""
        self.results.setdefault(contender, []).append(result)

    def median(self, contender: str, figure: Callable[[Result], float]) -> float | None:
        """Return the median of `figure` over the valid rounds, or None when there is none."""
        values = [figure(result) for result in self.results.get(contender, []) if result]
        return statistics.median(values) if values else None

    def ratio(self, over: str, under: str, figure: Callable[[Result], float]) -> Ratio | None:
        """Return the ratio of `over` to `under`, round by round, or None when no round has both."""
        pairs = zip(self.results.get(over, []), self.results.get(under, []), strict=False)
        ratios = [figure(a) / figure(b) for a, b in pairs if a and b and figure(b)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def order[T](contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, contender): all in each round, every other round backwards."""
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            yield number, contender
