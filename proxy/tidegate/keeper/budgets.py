"""Budgets, counted for all workers, per session, policy and owner.

A window slides in ten steps; eleven are counted, since a slice drawn late in one step may be spent
early in the tenth after it (see `session.budget`). So the sum never exceeds the limit.
"""

from typing import Final, final

import msgspec

from tidegate.clock import Clock
from tidegate.keeper.store import Store, keep, walk

__all__ = ["BudgetBook"]

_SHELF: Final = "budgets"
_STEPS: Final = 10
_MOST_NAMES: Final = 10_000


class _Count(msgspec.Struct):
    """Spent by step (wall time divided by a tenth of the window); `names` by the step last seen."""

    window: int
    steps: dict[int, int] = {}
    names: dict[str, int] = {}


@final
class BudgetBook:
    """Draws on budgets. Kept by the wall clock, so that neither a restart nor a reboot refills one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._counts: dict[str, _Count] = dict(walk(store, _SHELF, _Count))

    def draw(self, bucket: str, *, amount: int, limit: int, window: int) -> int:
        """Grant up to `amount` of what is left in the bucket's window."""
        count, step = self._current(bucket, window)
        granted = max(min(amount, limit - sum(count.steps.values())), 0)
        if granted:
            count.steps[step] = count.steps.get(step, 0) + granted
            self._keep(bucket, count)
        return granted

    def draw_name(self, bucket: str, name: str, *, limit: int, window: int) -> int:
        """Grant 1 if the name was seen in the window already, or there is room for one more."""
        count, step = self._current(bucket, window)
        if name not in count.names and len(count.names) >= min(limit, _MOST_NAMES):
            return 0
        if count.names.get(name) != step:
            count.names[name] = step
            self._keep(bucket, count)
        return 1

    def drop(self, prefix: str) -> None:
        """Forget the buckets of a session that has ended."""
        for bucket in [bucket for bucket in self._counts if bucket.startswith(prefix)]:
            del self._counts[bucket]
            self._store.drop(_SHELF, bucket)

    def _current(self, bucket: str, window: int) -> tuple[_Count, int]:
        step = int(self._clock.wall() * _STEPS / window)
        count = self._counts.get(bucket)
        if count is None or count.window != window:
            count = self._counts[bucket] = _Count(window)
        # A wall clock that steps back must not forget: what seems to lie ahead is counted as of now.
        oldest = step - _STEPS
        count.steps = _moved(count.steps, oldest, step)
        count.names = {name: min(at, step) for name, at in count.names.items() if at >= oldest}
        return count, step

    def _keep(self, bucket: str, count: _Count) -> None:
        keep(self._store, _SHELF, bucket, count, hurried=True)


def _moved(steps: dict[int, int], oldest: int, newest: int) -> dict[int, int]:
    moved: dict[int, int] = {}
    for at, spent in steps.items():
        if at >= oldest:
            moved[min(at, newest)] = moved.get(min(at, newest), 0) + spent
    return moved
