"""The lines of a segment, whoever else may write to it meanwhile.

Theory of operation. A segment belongs to the worker that writes it, which may have fallen. So a reader

| is not | because |
|---|---|
| led elsewhere | neither the chain's folder nor the file may be a link, and only a regular file is read |
| held | nothing waits (a pipe, a lease), and what is added after the first look is left for the next one |
| filled | a line has a cap, and so has a segment: a file of a tebibyte costs its owner nothing |
| out of descriptors | none is open between two blocks, since chains are as many as their owners like |
| out of memory | for the same reason: between two lines a small block of whole lines is held, or nothing |
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.audit.segment import open_segment
from tidegate.audit.unread import Unreadable, reading

__all__ = ["LINE_CAP", "read_lines"]

LINE_CAP: Final = 1 << 20
"""Bytes of a line that are read; a record is much shorter."""
_SEGMENT_CAP: Final = 256 << 20
"""Four times what a writer puts in one segment."""
_BLOCK: Final = 1 << 13
"""Bytes that may be held for each chain while others are read: a merge waits on all of them."""


def read_lines(path: Path, at: int = 0) -> Iterator[tuple[bytes, bool]]:
    """Yield each line from byte `at` on, without its newline, and whether it had one; raises `Unreadable`.

    One without is the last, and of `LINE_CAP` bytes where it was cut off.
    """
    block, first = _read(path, at, _BLOCK)
    end = min(first.st_size, _SEGMENT_CAP)
    while at < end:
        block = block[: end - at]
        # What follows the last newline is read again: a hole of a file costs no disk, and would cost memory here.
        cut = block.rfind(b"\n") + 1
        block = block[:cut]
        if cut:
            yield from _split(block)
        else:
            line, whole = _one(path, at, min(LINE_CAP, end - at))
            cut = len(line) + 1
            if line or whole:
                # Popped, so that this frame does not hold it while it waits.
                held = [line]
                del line
                yield held.pop(), whole
            if not whole:
                return
        at += cut
        block, now = _read(path, at, _BLOCK)
        if not os.path.samestat(first, now):
            raise Unreadable("another file took its place while it was read", where=_where(path))
    if first.st_size > end:
        raise Unreadable(f"this is longer than a segment: read up to {end} bytes", where=_where(path))


def _split(block: bytes) -> Iterator[tuple[bytes, bool]]:
    start = 0
    while start < len(block):
        stop = block.index(b"\n", start)
        yield block[start:stop], True
        start = stop + 1


def _one(path: Path, at: int, most: int) -> tuple[bytes, bool]:
    line, newline, _ = _read(path, at, most)[0].partition(b"\n")
    return line, bool(newline)


def _read(path: Path, at: int, size: int) -> tuple[bytes, os.stat_result]:
    with reading(_where(path)), open_segment(path) as file:
        return os.pread(file.fileno(), size, at), os.fstat(file.fileno())


def _where(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
