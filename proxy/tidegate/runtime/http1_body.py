"""One HTTP/1 body out of a buffer: counted, chunked, or to the end of the connection (RFC 9112 6)."""

from enum import Enum, auto

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer

from tidegate.exchange.framing import Framing

__all__ = ["Body", "BodyFault", "LegState"]

_FRAMING_BYTES = 16 * 1024

BodyFault = h11.ProtocolError
"""What `Body.take` raises when the framing is broken."""


class LegState(Enum):
    """Where a leg stands in its message; see `http1_downstream` and `http1_upstream`."""

    HEAD = auto()
    BODY = auto()
    WAIT = auto()
    DRAIN = auto()
    PIPE = auto()
    DONE = auto()


class Body:
    """Takes one body out of a buffer. `length`: bytes, None chunked, -1 to the end. `framing`: its connection's."""

    def __init__(self, length: int | None, framing: Framing) -> None:
        self.left = length
        self.framing = framing
        self.reader = ChunkedReader() if length is None else None
        self.buffer = ReceiveBuffer()
        self.whole = length == 0
        self.trailers = False

    def take(self, buffer: bytearray) -> list[bytes]:
        """Return the pieces that are there now; sets `whole` at the end. Raises h11.ProtocolError."""
        if self.whole:
            return []
        if self.reader is None:
            return self._take_counted(buffer)
        self.buffer += bytes(buffer)
        buffer.clear()
        pieces: list[bytes] = []
        while True:
            event = self.reader(self.buffer)
            if event is None:
                if len(self.buffer) > _FRAMING_BYTES:
                    raise h11.RemoteProtocolError("a chunk's size line or the trailers have no end")
                return pieces
            if isinstance(event, h11.EndOfMessage):
                self.whole = True
                self.trailers = bool(event.headers)
                rest = self.buffer.maybe_extract_at_most(len(self.buffer)) if len(self.buffer) else None
                buffer += rest or b""
                return pieces
            if not self.framing.spend(1, received=len(event.data)):
                raise h11.RemoteProtocolError("too much framing for too little payload")
            if event.data:
                pieces.append(bytes(event.data))

    def _take_counted(self, buffer: bytearray) -> list[bytes]:
        left = self.left or 0
        if left < 0:
            data = bytes(buffer)
            buffer.clear()
            return [data] if data else []
        if len(buffer) <= left:
            data = bytes(buffer)
            buffer.clear()
        else:
            data = bytes(buffer[:left])
            del buffer[:left]
        self.left = left - len(data)
        self.whole = self.left == 0
        return [data] if data else []
