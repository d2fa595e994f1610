"""A bounded cache of answers: each lives for its TTL, never longer than the configured bound.

There is no stale answer and no negative one: a failure is asked again, and a name that has just
begun to exist is found (D-15, D-18).
"""

from collections import OrderedDict

from tidegate.clock import Clock

__all__ = ["TtlCache"]


class TtlCache[K, V]:
    """Values by key with an end; the least recently used goes first when it is full (D-20)."""

    def __init__(self, *, capacity: int, max_ttl: float, clock: Clock) -> None:
        self._capacity = capacity
        self._max_ttl = max_ttl
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> tuple[V, float] | None:
        """Return the value and the seconds it still has, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, end = entry
        left = end - self._clock.boot()
        if left <= 0:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value, left

    def put(self, key: K, value: V, *, ttl: float) -> None:
        """Keep `value` for `ttl` seconds, at most for the bound; a TTL of 0 is not kept."""
        ttl = min(ttl, self._max_ttl)
        if ttl <= 0:
            return
        self._entries[key] = value, self._clock.boot() + ttl
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
