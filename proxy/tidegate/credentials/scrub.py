"""Responses: every live secret of the session, raw or encoded, becomes its placeholder again."""

from collections.abc import Sequence

from tidegate.credentials.decode import Unscannable
from tidegate.secret import Secret

__all__ = ["Needles", "Scrubber", "Unscannable"]


class Needles:
    """The secrets of a session, compiled for one pass over any text. Immutable; make a new one on a lease change."""

    @classmethod
    def compile(cls, pairs: Sequence[tuple[Secret, bytes]]) -> "Needles":
        """Compile (secret, placeholder) pairs; takes about a millisecond a pair."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    def scrub(self, text: bytes) -> tuple[bytes, int]:
        """Clean a whole text (a reason phrase, a WebSocket message); returns it with the number of hits."""
        raise NotImplementedError

    def scrub_headers(self, headers: list[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], int]:
        """Clean names and values of header or trailer fields; returns them with the number of hits."""
        raise NotImplementedError


class Scrubber:
    """Cleans one response body as it streams.

    `identity`: Content-Encoding must be removed from the headers, since the body goes on decoded.
    `length_may_change`: Content-Length must be removed (and ETag, Digest and the like are no longer true).
    Raises Unscannable: from the constructor for an unknown coding, from feed and finish for a lying one.
    """

    def __init__(self, needles: Needles, content_encoding: bytes = b"", *, decoded_cap: int = 1 << 30) -> None:
        self.hits = 0
        self.identity = False
        self.length_may_change = False
        raise NotImplementedError

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk of the body as received and return what may go on; may be empty."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the rest at the end of the body."""
        raise NotImplementedError

    def renew(self, needles: Needles) -> None:
        """Use other needles from here on (a lease was added or ended)."""
        raise NotImplementedError
