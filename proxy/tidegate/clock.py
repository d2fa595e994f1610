"""Time, as a seam: the wall clock for people, the boot clock for lifetimes."""

import time
from typing import Protocol

__all__ = ["SYSTEM", "Clock", "SystemClock"]


class Clock(Protocol):
    """Two clocks. Lifetimes use `boot`, which no one can step; records carry both."""

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        ...

    def boot(self) -> float:
        """Return seconds since boot, suspend included; it never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def boot(self) -> float:
        """Return `CLOCK_BOOTTIME` in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


SYSTEM = SystemClock()
