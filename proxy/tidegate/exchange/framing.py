"""How much framing a peer may send for how little payload: what carries nothing costs the worker all the same.

An empty HTTP/2 or WebSocket frame or a chunk of one byte costs some five microseconds, and one read holds ten thousand
of them: who sends them on a few connections would leave no turn to the others. Each frame that is looked into, each
setting and each chunk costs one unit. Units come back with time, with payload and with requests, so that honest traffic
does not run short: the busiest client known to us sends two WINDOW_UPDATE for each 4 KiB that it reads.
"""

import time
from typing import Final

__all__ = ["CLIENT", "UPSTREAM", "Frames", "Framing"]

CLIENT: Final = (300, 500)
"""Units at the start and units a second, for a client's connection."""
UPSTREAM: Final = (5000, 5000)
"""The same for an upstream's, which may send events in small pieces."""

_BYTES_RECEIVED: Final = 256
_BYTES_SENT: Final = 1024
_MOST_EARNED: Final = 16384
_REQUEST: Final = 20
_HEADER: Final = 9
_SETTING: Final = 6
_DATA, _HEADERS, _SETTINGS = 0, 1, 4


class Framing:
    """The units of one connection."""

    def __init__(self, bounds: tuple[int, int]) -> None:
        self._most, self._rate = bounds
        self._left = float(self._most)
        self._earned = 0.0
        self._at = time.monotonic()

    def spend(self, units: int, *, received: int = 0, sent: int = 0) -> bool:
        """Take units, and give back for payload in bytes. Return whether any were left."""
        # What was sent may wait in buffers for long before the peer acknowledges it, so it is kept apart.
        self._earned = min(self._earned + sent / _BYTES_SENT, _MOST_EARNED)
        self._left += received / _BYTES_RECEIVED - units
        if self._left < 0:
            drawn = min(-self._left, self._earned)
            self._left, self._earned = self._left + drawn, self._earned - drawn
        if self._left < self._most / 2 or self._left > self._most:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._rate)
            self._at = now
        return self._left >= 0


class Frames:
    """Counts the frames of one HTTP/2 connection by their headers alone, before anything reads them.

    `skip`: bytes that come before the first frame, 24 of the client's preface.
    """

    def __init__(self, bounds: tuple[int, int], *, skip: int = 0) -> None:
        self._framing = Framing(bounds)
        self._skip = skip
        self._begun = b""
        self._newest = 0

    def sent(self, size: int) -> None:
        """Give back for payload that the peer was sent, in bytes."""
        self._framing.spend(0, sent=size)

    def received(self, data: bytes) -> bool:
        """Count what begins in `data`; return False when the peer has sent more than it may."""
        if self._begun:
            data = self._begun + data
            self._begun = b""
        at, end = self._skip, len(data)
        units = payload = 0
        while at + _HEADER <= end:
            size, kind = int.from_bytes(data[at : at + 3]), data[at + 3]
            units += 1
            if kind == _DATA:
                payload += size
            elif kind == _HEADERS:
                stream = int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF
                if stream > self._newest:  # a request; on a stream that was reset h2 reads heads without end
                    self._newest = stream
                    units -= _REQUEST
            elif kind == _SETTINGS:
                units += size // _SETTING
            at += _HEADER + size
        if at < end:
            self._begun = data[at:]
        self._skip = max(0, at - end)
        return self._framing.spend(units, received=payload)
