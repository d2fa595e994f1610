"""The entries of a tar stream, strictly: what is broken or cut short is refused, never half read.

`tarfile` ends in silence at a header that it cannot read, and reads a whole extended header into memory.
"""

import io
import re
import tarfile
from collections.abc import Iterator
from typing import IO, Final, Self

from tidegate.errors import LaunchError
from tidegate_launcher.image.caps import Caps
from tidegate_launcher.image.inflow import Inflow

__all__ = ["Entries", "EntryRefused", "parts_of"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST_EXTENDED: Final = 1024 * 1024
_BLOCK: Final = 1024 * 1024
_FAULTS: Final = (tarfile.TarError, ValueError, OverflowError, RecursionError)
_EXTENDED: Final = (b"x", b"g", b"X", b"L", b"K")


class EntryRefused(LaunchError):
    """One entry that no honest archive holds; the stream itself can be read on."""


class _Strict(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as fault:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the end
            raise LaunchError(f"this is no whole tar: {fault}", hint="it may have been cut short") from fault
        if info.size < 0 or (info.type in _EXTENDED and info.size > _LONGEST_EXTENDED):
            raise LaunchError("an entry's header is larger than any that is meant", where="tar")
        return info


class _Reader(tarfile.TarFile):
    members: list[tarfile.TarInfo]  # which its types leave out


class _Flow(io.RawIOBase):
    """What `tarfile` takes for a file."""

    def __init__(self, flow: Inflow) -> None:
        super().__init__()
        self._flow = flow

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._flow.read(size)


class Entries:
    """Reads a tar from a stream once."""

    def __init__(self, flow: Inflow) -> None:
        self._file: IO[bytes] | None = None
        try:
            self._tar = _Reader.open(
                fileobj=_Flow(flow), mode="r|", tarinfo=_Strict, encoding="utf-8", errors="surrogateescape"
            )
        except tarfile.TarError as fault:
            raise LaunchError(f"this is no tar: {fault}") from fault

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        try:
            while (entry := self._tar.next()) is not None:
                # It keeps every entry that it has read, for which a million of them has no room.
                self._tar.members.clear()
                yield entry
        except _FAULTS as fault:
            raise LaunchError(f"this is no whole tar: {fault}") from fault

    def chunks(self, entry: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the bytes of a regular file; exactly as many as its size says, or `LaunchError`."""
        left = entry.size
        while left:
            data = self._read(entry, min(left, _BLOCK), fresh=left == entry.size)
            if not data:
                raise LaunchError("the tar ends within a file", where=entry.name)
            left -= len(data)
            yield data

    def _read(self, entry: tarfile.TarInfo, size: int, *, fresh: bool) -> bytes:
        try:
            if fresh:
                self._file = self._tar.extractfile(entry)
            return self._file.read(size) if self._file is not None else b""
        except _FAULTS as fault:
            raise LaunchError(f"this is no whole tar: {fault}", where=entry.name) from fault


def parts_of(name: str, caps: Caps) -> tuple[str, ...]:
    """Return the parts of an entry's name, none for the root itself; raises `EntryRefused` for one that leads out."""
    if name.startswith("/"):
        raise EntryRefused("an entry has an absolute name", where=name)
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise EntryRefused("an entry's name leads out of the root", where=name)
    if _CONTROL.search(name):
        raise EntryRefused("an entry's name holds a control character", where=name)
    longest = max((len(_bytes(part)) for part in parts), default=0)
    if longest > caps.name_bytes or len(_bytes(name)) > caps.path_bytes:
        raise EntryRefused("an entry's name is too long", where=name)
    if len(parts) > caps.depth:
        raise EntryRefused(f"an entry lies deeper than {caps.depth} folders", where=name)
    return parts


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
