"""How many descriptors this process may still open, asked of the kernel in two calls whatever their number.

The kernel gives the lowest free number (POSIX, dup(2)): when that is near the limit, nearly all below it are in use.
"""

import math
import os
import resource
import time

__all__ = ["Descriptors"]

_RESERVE = 256
_TOLD_SECONDS = 10.0


class Descriptors:
    """The limit of this process, and the reserve below it that newcomers are let in by while others are ended."""

    def __init__(self) -> None:
        self._short_at = -math.inf

    @property
    def limit(self) -> int:
        """The limit as it is now: it may be changed from outside."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def reserve(self) -> int:
        """How many are kept free."""
        return min(_RESERVE, self.limit // 8)

    def short(self) -> bool:
        """Tell whether only the reserve is left, or not even that."""
        try:
            lowest = os.dup(2)
        except OSError:
            lowest = self.limit
        else:
            os.close(lowest)
        short = lowest >= self.limit - self.reserve
        if short:
            self._short_at = time.monotonic()
        return short

    def problem(self) -> str | None:
        """Say what is wrong and what to do, when they run out or did a moment ago: room is made at others' cost."""
        if not self.short() and time.monotonic() - self._short_at > _TOLD_SECONDS:
            return None
        return f"open files are running out ({self.limit} allowed): raise the limit (LimitNOFILE=, ulimit -n)"
