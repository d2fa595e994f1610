"""How many descriptors this process may still open, asked of the kernel in two calls whatever their number.

The kernel gives the lowest free number (POSIX, dup(2)): when that is near the limit, nearly all below it are in use.
"""

import os
import resource

__all__ = ["Descriptors"]

_RESERVE = 256


class Descriptors:
    """The limit of this process, and a reserve below it that only what is needed for others may use."""

    def __init__(self) -> None:
        self.limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.reserve = min(_RESERVE, self.limit // 8)

    def short(self) -> bool:
        """Tell whether only the reserve is left, or not even that."""
        try:
            lowest = os.dup(2)
        except OSError:
            return True
        os.close(lowest)
        return lowest >= self.limit - self.reserve

    def problem(self) -> str | None:
        """Say what is wrong and what to do, when they run out."""
        if not self.short():
            return None
        return f"open files are running out ({self.limit} allowed): raise the limit (LimitNOFILE=, ulimit -n)"
