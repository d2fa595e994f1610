"""WebSocket frames on their way to the client: a message is searched whole, however it is cut into frames.

Theory of operation. RFC 6455 section 5.2: each frame is a header and a payload; a message may be split over frames,
with control frames between them. What is searched is the payload of one message, without the headers; what goes on
are the bytes as they came, but for an end that may be the beginning of a secret. Nothing is replaced: a hit is
counted, and the caller ends the connection. An upstream's frame that cannot be read so is refused: masked, compressed
(no extension was agreed on) or of an unknown kind; and so are more frames for less payload than `framing` lets an
upstream send. A secret that is split over several *messages* is not found.
"""

from collections import deque

from tidegate.credentials.scrub import Needles, Scrubber, Unscannable
from tidegate.exchange.framing import UPSTREAM, Framing

__all__ = ["FrameScrubber"]

_CONTINUATION = 0
_DATA = (1, 2)
_CONTROL = (8, 9, 10)
_LENGTH_BYTES = {126: 2, 127: 8}
_MOST_CONTROL = 125
_MOST_WAITING = 1 << 17


class FrameScrubber:
    """Searches the frames of one upstream. `hits` counts, `found` by placeholder; raises Unscannable."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._message = Scrubber(needles)
        self._framing = Framing(UPSTREAM)
        self._header = b""
        self._left = 0
        self._final = self._open = False
        self._control: bytearray | None = None
        # What has not gone on yet: pieces of the wire, and how many of their bytes are a message's.
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = self._waiting_text = 0
        self.found = self._message.found
        self.hits = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes as received and return what may go on."""
        out = bytearray()
        view, at = self._header + data, 0
        self._header = b""
        while at < len(view):
            if not self._left:
                size = self._begin(view, at)
                if not size:
                    self._header = view[at:]
                    break
                self._wait(view[at : at + size], 0)
                at += size
            piece = view[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            self._framing.spend(0, received=len(piece))
            self._take(piece, out)
        return bytes(out)

    def _begin(self, view: bytes, at: int) -> int:
        """Read a frame's header; return its size, 0 if there is more to come."""
        if len(view) < at + 2:
            return 0
        first, second = view[at], view[at + 1]
        more = _LENGTH_BYTES.get(second & 0x7F, 0)
        if first & 0x70 or second & 0x80:
            raise Unscannable("a frame is masked or uses an extension")
        if len(view) < at + 2 + more:
            return 0
        kind, self._final = first & 0x0F, bool(first & 0x80)
        self._left = int.from_bytes(view[at + 2 : at + 2 + more]) if more else second
        if not self._framing.spend(1):
            raise Unscannable("too many frames for too little payload")
        if kind in _CONTROL:
            if not self._final or self._left > _MOST_CONTROL:
                raise Unscannable("a control frame is cut or too long")
            self._control = bytearray()
        elif (kind == _CONTINUATION) is not self._open or (kind != _CONTINUATION and kind not in _DATA):
            raise Unscannable("a frame is out of order")
        else:
            self._open, self._control = not self._final, None
        return 2 + more

    def _wait(self, piece: bytes, size: int) -> None:
        self._waiting.append((piece, size))
        self._waiting_bytes += len(piece)
        self._waiting_text += size
        if self._waiting_bytes > _MOST_WAITING + len(piece):
            raise Unscannable("too much stands between the pieces of a message")

    def _take(self, piece: bytes, out: bytearray) -> None:
        if self._control is not None:
            self._control += piece
            self._wait(piece, 0)
            if not self._left:
                self.hits += self._needles.scrub(bytes(self._control), found=self.found)[1]
                self._release(out)
            return
        self._message.feed(piece)
        self._wait(piece, len(piece))
        if self._final and not self._left:
            self._message.finish()
        self.hits += self._message.hits
        self._message.hits = 0
        self._release(out)

    def _release(self, out: bytearray) -> None:
        """Hand on all that waits but the last bytes of the message that the scrubber holds."""
        keep = self._message.held
        while self._waiting:
            piece, size = self._waiting[0]
            if keep and self._waiting_text - size < keep:
                ready = max(self._waiting_text - keep, 0)  # what is no text waits with the text before it
                if size and ready:
                    out += piece[:ready]
                    self._waiting[0] = piece[ready:], size - ready
                    self._waiting_bytes -= ready
                    self._waiting_text -= ready
                return
            out += piece
            self._waiting_bytes -= len(piece)
            self._waiting_text -= size
            self._waiting.popleft()

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        self._message.finish()
        self.hits += self._message.hits
        self._message.hits = 0
        out = bytearray()
        self._release(out)
        return bytes(out) + self._header

    def renew(self, needles: Needles) -> None:
        """Use other needles from here on."""
        self._needles = needles
        self._message.renew(needles)
