"""What the launcher asks of a worker, and what it answers: one frame each, length and msgpack."""

from typing import IO, Final, Literal

import msgspec

__all__ = ["Answer", "Call", "Limit", "read_frame", "write_frame"]

type Limit = Literal["", "time", "fuel", "output"]

_HEADER: Final = 4
_MOST: Final = 1 << 30


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the guest."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    stdin: bytes
    seconds: float
    memory_bytes: int
    output_bytes: int
    fuel: int | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: the code as a shell has it, and which limit it was, if one."""

    code: int
    limit: Limit = ""
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0


def write_frame(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Write one message. Raises OSError."""
    body = msgspec.msgpack.encode(message)
    left = memoryview(len(body).to_bytes(_HEADER, "big") + body)
    while left:
        left = left[stream.write(left) or 0 :]


def read_frame[T](stream: IO[bytes], kind: type[T]) -> T | None:
    """Read one message; None at the end. Raises OSError and `msgspec.DecodeError`."""
    header = _exactly(stream, _HEADER)
    size = int.from_bytes(header, "big")
    if len(header) < _HEADER or size > _MOST:
        return None
    body = _exactly(stream, size)
    return msgspec.msgpack.decode(body, type=kind) if len(body) == size else None


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = stream.read(count - len(found))
        if not more:
            break
        found += more
    return bytes(found)
