"""A token bucket on the boot clock."""

from typing import final

__all__ = ["Rate"]


@final
class Rate:
    """Allows `burst` at once and `per_second` after that."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, *, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._left = min(self._burst, self._left + max(now - self._at, 0.0) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
