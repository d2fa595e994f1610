"""One frame of a link between two of the gate's processes: four bytes of length, big-endian, then a body.

What a body holds is the link's own: open maps between supervisor and workers (`runtime/control.py`), typed asks
and secrets on the keeper's links (`keeper/wire.py`), which no other encoder carries (invariant 5).
"""

import asyncio
from typing import Final

__all__ = ["HEADER_BYTES", "FrameTooLong", "body_bytes", "framed", "read_body"]

HEADER_BYTES: Final = 4


class FrameTooLong(ConnectionError):
    """The peer announces more than this link takes; an `OSError`, since it ends the link as a loss does."""


def framed(body: bytes) -> bytes:
    """Return the body as one frame."""
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_bytes(header: bytes, most: int) -> int:
    """Return the length that a header announces. Raises `FrameTooLong`."""
    size = int.from_bytes(header, "big")
    if size > most:
        raise FrameTooLong(f"a frame of {size} bytes is over the limit of {most}")
    return size


async def read_body(reader: asyncio.StreamReader, most: int) -> bytes:
    """Read one frame. Raises `FrameTooLong`, `asyncio.IncompleteReadError` at the end, `OSError`."""
    return await reader.readexactly(body_bytes(await reader.readexactly(HEADER_BYTES), most))
