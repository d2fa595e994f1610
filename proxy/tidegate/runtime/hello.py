"""The ClientHello, as far as a decision needs it: name, ALPN offers, ECH (RFC 8446 4.1.2, RFC 9849).

Records may split it anywhere and a post-quantum key share makes it long, so bytes are collected up
to a bound. What is not well formed is refused, never passed on for another parser to read.
"""

import msgspec

__all__ = ["MAX_HELLO_BYTES", "BadHello", "Hello", "HelloReader", "parse_hello"]

MAX_HELLO_BYTES = 64 * 1024

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_ALPN = 16
_ECH = 0xFE0D


class BadHello(Exception):
    """The bytes are no ClientHello."""


class Hello(msgspec.Struct, frozen=True):
    """`sni` None: the client sent none."""

    sni: str | None
    alpn: tuple[bytes, ...]
    ech: bool


class _Cursor:
    """Reads lengths and fields of one structure; running out is `BadHello`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise BadHello("a field is longer than what holds it")
        piece, self.at = self.data[self.at : end], end
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def done(self) -> bool:
        return self.at >= len(self.data)


class HelloReader:
    """Collects a ClientHello that comes in pieces. Each record is looked at once, and the whole is read once.

    To begin again with each piece would cost the square of what comes, and records may be of one byte.
    """

    def __init__(self) -> None:
        self._message = bytearray()
        self._at = 0

    def read(self, data: bytes | bytearray) -> Hello | None:
        """Return the ClientHello at the start of `data`, all that came so far; None when more is needed.

        Raises `BadHello`, also when `MAX_HELLO_BYTES` have not made one.
        """
        message = self._reassemble(data)
        if message is None:
            if len(data) > MAX_HELLO_BYTES:
                raise BadHello("the ClientHello is too long")
            return None
        return _read(message)

    def _reassemble(self, data: bytes | bytearray) -> bytes | None:
        """Join the handshake records' payloads until the first message is whole."""
        out = self._message
        while True:
            if len(out) >= 4:
                if out[0] != _CLIENT_HELLO:
                    raise BadHello("the first message is no ClientHello")
                size = int.from_bytes(out[1:4])
                if size > MAX_HELLO_BYTES:
                    raise BadHello("the ClientHello is too long")
                if len(out) >= 4 + size:
                    return bytes(out[4 : 4 + size])
            header = data[self._at : self._at + 5]
            if (header and header[0] != _HANDSHAKE) or (len(header) > 1 and header[1] != 3):
                raise BadHello("no TLS handshake record")
            if len(header) < 5:
                return None
            size = int.from_bytes(header[3:5])
            if not 0 < size <= 1 << 14:
                raise BadHello("a record has no or too much in it")
            end = self._at + 5 + size
            if len(data) < end:
                return None
            out += data[self._at + 5 : end]
            self._at = end


def parse_hello(data: bytes) -> Hello | None:
    """Return the ClientHello at the start of `data`, None when more bytes are needed; raise `BadHello`."""
    return HelloReader().read(data)


def _read(message: bytes) -> Hello:
    body = _Cursor(message)
    body.take(2 + 32)
    body.vector(1)
    body.vector(2)
    body.vector(1)
    sni: str | None = None
    alpn: tuple[bytes, ...] = ()
    ech = False
    extensions = _Cursor(b"" if body.done else body.vector(2))
    if not body.done:
        raise BadHello("bytes behind the extensions")
    seen: set[int] = set()
    while not extensions.done:
        kind, value = extensions.number(2), extensions.vector(2)
        if kind in seen:
            raise BadHello("an extension stands twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            sni = _server_name(value)
        elif kind == _ALPN:
            alpn = _protocols(value)
        elif kind == _ECH:
            ech = True
    return Hello(sni, alpn, ech)


def _whole(value: bytes) -> _Cursor:
    """Return the one list that an extension holds, with nothing behind it."""
    outer = _Cursor(value)
    inner = _Cursor(outer.vector(2))
    if not outer.done:
        raise BadHello("bytes behind a list")
    return inner


def _server_name(value: bytes) -> str:
    names = _whole(value)
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or not names.done or not name:
        raise BadHello("the server name list does not hold one name")
    return name.decode("latin-1")


def _protocols(value: bytes) -> tuple[bytes, ...]:
    names = _whole(value)
    out = []
    while not names.done:
        out.append(names.vector(1))
    return tuple(out)
