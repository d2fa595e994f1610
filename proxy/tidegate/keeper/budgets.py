"""Budgets, counted for all workers, per session, policy and owner.

A window slides in ten steps; eleven are counted, since a slice drawn late in one step may be spent
early in the tenth after it (see `session.budget`). So the sum never exceeds the limit.

The names of a bucket lie in `_SHARDS` rows, so that a new one costs the writing of its own row, however many
there are: a session that asks for a new name each time makes nobody else wait.
"""

from typing import Final, final

import msgspec

from tidegate.clock import Clock
from tidegate.keeper.store import Store, keep, walk

__all__ = ["BudgetBook"]

_SHELF: Final = "budgets"
_NAME_SHELF: Final = "budget_names"
_STEPS: Final = 10
_MOST_NAMES: Final = 10_000
_SHARDS: Final = 64


class _Count(msgspec.Struct):
    """Spent by step: wall time divided by a tenth of the window, which the bucket's own name tells."""

    steps: dict[int, int] = {}


class _Shard(msgspec.Struct):
    """Names, each with the step in which it was last seen."""

    names: dict[str, int] = {}


@final
class _Names:
    """The names of one bucket. Forgets once a step, not with each look."""

    def __init__(self) -> None:
        self.shards: dict[int, _Shard] = {}
        self._where: dict[str, int] = {}
        self._step = -1
        self._turn = 0

    def __len__(self) -> int:
        return len(self._where)

    def take(self, index: int, shard: _Shard) -> None:
        """Take a shard as it was kept."""
        self.shards[index] = shard
        self._where.update(dict.fromkeys(shard.names, index))

    def find(self, name: str) -> tuple[int, _Shard] | None:
        """Return number and shard of a name that was seen."""
        index = self._where.get(name)
        return None if index is None else (index, self.shards[index])

    def add(self, name: str) -> tuple[int, _Shard]:
        """Give a new name its shard: the next one in turn, so that no choice of names can fill one alone."""
        self._turn = (self._turn + 1) % _SHARDS
        self._where[name] = self._turn
        return self._turn, self.shards.setdefault(self._turn, _Shard())

    def forget(self, step: int) -> None:
        """Forget what was last seen before the window that ends with `step`."""
        if step == self._step:
            return
        self._step = step
        for shard in self.shards.values():
            # A wall clock that steps back must not forget: what seems to lie ahead is counted as of now.
            shard.names = {name: min(at, step) for name, at in shard.names.items() if at >= step - _STEPS}
        self._where = {name: index for index, shard in self.shards.items() for name in shard.names}


@final
class BudgetBook:
    """Draws on budgets. Kept by the wall clock, so that neither a restart nor a reboot refills one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._counts: dict[str, _Count] = dict(walk(store, _SHELF, _Count))
        self._names: dict[str, _Names] = {}
        for key, shard in walk(store, _NAME_SHELF, _Shard):
            bucket, _, index = key.rpartition("#")
            self._names.setdefault(bucket, _Names()).take(int(index), shard)

    def draw(self, bucket: str, *, amount: int, limit: int, window: int) -> int:
        """Grant up to `amount` of what is left in the bucket's window."""
        step = self._step(window)
        count = self._counts.setdefault(bucket, _Count())
        count.steps = _moved(count.steps, step - _STEPS, step)
        granted = max(min(amount, limit - sum(count.steps.values())), 0)
        if granted:
            count.steps[step] = count.steps.get(step, 0) + granted
            keep(self._store, _SHELF, bucket, count, hurried=True)
        return granted

    def draw_name(self, bucket: str, name: str, *, limit: int, window: int) -> int:
        """Grant 1 if the name was seen in the window already, or there is room for one more."""
        step = self._step(window)
        names = self._names.setdefault(bucket, _Names())
        names.forget(step)
        found = names.find(name)
        if found is None:
            if len(names) >= min(limit, _MOST_NAMES):
                return 0
            found = names.add(name)
        index, shard = found
        if shard.names.get(name) != step:
            shard.names[name] = step
            keep(self._store, _NAME_SHELF, f"{bucket}#{index}", shard, hurried=True)
        return 1

    def drop(self, prefix: str) -> None:
        """Forget the buckets of a session that has ended."""
        for bucket in [bucket for bucket in self._counts if bucket.startswith(prefix)]:
            del self._counts[bucket]
            self._store.drop(_SHELF, bucket)
        for bucket in [bucket for bucket in self._names if bucket.startswith(prefix)]:
            for index in self._names.pop(bucket).shards:
                self._store.drop(_NAME_SHELF, f"{bucket}#{index}")

    def _step(self, window: int) -> int:
        return int(self._clock.wall() * _STEPS / window)


def _moved(steps: dict[int, int], oldest: int, newest: int) -> dict[int, int]:
    """Return the steps that still count; a wall clock that steps back must not forget (see `_Names.forget`)."""
    moved: dict[int, int] = {}
    for at, spent in steps.items():
        if at >= oldest:
            moved[min(at, newest)] = moved.get(min(at, newest), 0) + spent
    return moved
