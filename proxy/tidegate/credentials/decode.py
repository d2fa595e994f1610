"""Content codings, decoded as they stream and within bounds.

Sources: RFC 9110 section 8.4.1 (gzip, x-gzip, deflate), RFC 7932 (br), RFC 8878 and RFC 9659 (zstd, window
at most 8 MiB). Every stage hands on pieces of at most `PIECE` bytes, so that memory stays flat whatever
the input expands to (V-05), and counts what it gave against what it took; so does the whole, since the ratios of
two codings multiply.

| bound | value | against |
|---|---|---|
| output of each stage | `cap` of the caller | long bombs |
| output to input, of each stage and of the whole | `RATIO`, after the first `SLACK` bytes | short bombs |
| gzip members and zstd frames, of all stages | one for each `MEMBER_BYTES` received, after `MEMBERS` | empty ones |
| codings | `MAX_CODINGS` | nested bombs |
"""

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli
from backports import zstd

__all__ = ["Decoder", "Unscannable", "parse_codings"]

PIECE = 1 << 16
RATIO = 256
SLACK = 1 << 20
MAX_CODINGS = 2
MEMBERS = 64
MEMBER_BYTES = 16  # no honest one is shorter: an empty gzip member has 20 bytes
_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
_GZIP_WBITS = 31


class Unscannable(Exception):
    """The body cannot be searched: an unknown, lying or cut coding, or one past a bound.

    `why` is a fixed text without any byte of the peer's.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Stage(Protocol):
    """One coding. `pieces` may be left early only by an error; `done` tells a complete stream."""

    @property
    def done(self) -> bool: ...

    def pieces(self, data: bytes) -> Iterator[bytes]: ...


class _Input:
    """What was received of a body, and how many members came of it."""

    def __init__(self) -> None:
        self.received = self._members = 0

    def begin_member(self) -> None:
        """Take note of one more. Raises Unscannable when there are more than the bytes received can be."""
        self._members += 1
        if self._members > MEMBERS + self.received // MEMBER_BYTES:
            raise Unscannable("too many members for so few bytes")


class _Gzip:
    """gzip of one or more members (RFC 1952 section 2.2)."""

    def __init__(self, given: _Input) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self._input = given
        self.done = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self.done:
                self._input.begin_member()
                self._member, self.done = zlib.decompressobj(_GZIP_WBITS), False
            yield (self._member.decompress(data, PIECE))
            self.done = self._member.eof
            data = self._member.unused_data if self.done else self._member.unconsumed_tail
            while not data and not self.done and (rest := self._member.decompress(b"", PIECE)):
                yield (rest)
                self.done = self._member.eof
                data = self._member.unused_data


class _Deflate:
    """deflate as the RFC says (zlib) and as some servers send it (raw), told apart by the first two bytes."""

    def __init__(self, _: _Input) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None

    @property
    def done(self) -> bool:
        return self._stream is not None and self._stream.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._head += data
            if len(self._head) < 2:
                return
            data = self._head
            zlib_form = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            self._stream = zlib.decompressobj(15 if zlib_form else -15)
        while data:
            if self._stream.eof:
                raise Unscannable("bytes after the end of a deflate body")
            yield self._stream.decompress(data, PIECE)
            data = self._stream.unused_data or self._stream.unconsumed_tail
        while not self._stream.eof and (rest := self._stream.decompress(b"", PIECE)):
            yield rest


class _Brotli:
    def __init__(self, _: _Input) -> None:
        self._stream = brotli.Decompressor()

    @property
    def done(self) -> bool:
        return bool(self._stream.is_finished())

    def pieces(self, data: bytes) -> Iterator[bytes]:
        piece = self._stream.process(data, output_buffer_limit=PIECE)
        yield piece
        # All input taken does not mean all output given: what is left comes on asking, until nothing does.
        while not self._stream.is_finished() and (piece or not self._stream.can_accept_more_data()):
            piece = self._stream.process(b"", output_buffer_limit=PIECE)
            yield piece


class _Zstd:
    """zstd of one or more frames (RFC 8878 section 3)."""

    def __init__(self, given: _Input) -> None:
        self._frame = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
        self._input = given

    @property
    def done(self) -> bool:
        return self._frame.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._frame.eof:
                self._input.begin_member()
                self._frame = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
            yield (self._frame.decompress(data, PIECE))
            while not self._frame.eof and not self._frame.needs_input:
                yield (self._frame.decompress(b"", PIECE))
            data = self._frame.unused_data if self._frame.eof else b""


_STAGES: dict[str, type[_Gzip | _Deflate | _Brotli | _Zstd]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}


def parse_codings(content_encoding: bytes) -> tuple[str, ...]:
    """Return the codings in the order in which they were applied, identity left out; raise Unscannable."""
    names = [part.strip().lower() for part in content_encoding.decode("latin-1").split(",")]
    codings = tuple(name for name in names if name not in ("", "identity"))
    if any(name not in _STAGES for name in codings):
        raise Unscannable("unknown content coding")
    if len(codings) > MAX_CODINGS:
        raise Unscannable("too many content codings")
    return codings


class _Bounded:
    """A stage with its counts; turns the libraries' errors into Unscannable."""

    def __init__(self, coding: str, cap: int, given: _Input) -> None:
        self._stage: _Stage = _STAGES[coding](given)
        self._cap = cap
        self._taken = 0
        self._given = 0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        self._taken += len(data)
        try:
            for piece in self._stage.pieces(data):
                self._given += len(piece)
                if self._given > self._cap:
                    raise Unscannable("decoded body past the cap")
                if self._given > SLACK and self._given > RATIO * self._taken:
                    raise Unscannable("decoded body out of proportion")
                if piece:
                    yield piece
        except (zlib.error, brotli.error, zstd.ZstdError, EOFError) as error:
            raise Unscannable("the body is not in its content coding") from error

    def finish(self) -> None:
        # A body of no bytes (HEAD, 304, an empty 200) is no lie.
        if self._taken and not self._stage.done:
            raise Unscannable("the body ends inside its content coding")


class Decoder:
    """Decodes one body. Raises Unscannable from the constructor, `pieces` and `finish`."""

    def __init__(self, content_encoding: bytes, *, cap: int) -> None:
        self._input = _Input()
        self._given = 0
        self._stages = [_Bounded(coding, cap, self._input) for coding in reversed(parse_codings(content_encoding))]

    def __bool__(self) -> bool:
        """Tell whether there is any coding to undo."""
        return bool(self._stages)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decode a chunk, in pieces of at most `PIECE` bytes."""
        self._input.received += len(data)
        for piece in _through(self._stages, data):
            self._given += len(piece)
            if self._given > SLACK and self._given > RATIO * self._input.received:
                raise Unscannable("decoded body out of proportion")
            yield piece

    def finish(self) -> None:
        """Raise Unscannable if the body ended too early."""
        for stage in self._stages:
            stage.finish()


def _through(stages: list[_Bounded], data: bytes) -> Iterator[bytes]:
    if not stages:
        yield data
        return
    for piece in stages[0].pieces(data):
        yield from _through(stages[1:], piece)
