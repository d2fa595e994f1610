"""Time as records write it: RFC 3339, microseconds, Z. The part up to the second is kept, since most lines share it."""

import time

__all__ = ["TimeText"]


class TimeText:
    """Formats wall-clock seconds; cheap when called again within one second."""

    __slots__ = ("_prefix", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def format(self, wall: float) -> str:
        """Return `2030-01-02T03:04:05.678901Z`."""
        second = int(wall)
        if second != self._second:
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._prefix}.{int((wall - second) * 1e6):06d}Z"
