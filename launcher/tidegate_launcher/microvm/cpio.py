"""An archive as the kernel unpacks it into the first root of a machine: cpio, «newc» (initramfs buffer format)."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.errors import LaunchError

__all__ = ["Archive"]

_MOST_BYTES: Final = 0xFFFFFFFF
_BLOCK: Final = 1024 * 1024


class Archive:
    """Writes entries one by one; `close` writes the end. Names are below the root, without a slash in front."""

    def __init__(self, file: BinaryIO) -> None:
        """Take what is written to, which stays open."""
        self._file = file
        self._count = 0

    def folder(self, name: str, *, mode: int = 0o755) -> None:
        """Add a folder."""
        self._entry(name, stat.S_IFDIR | mode, b"")

    def data(self, name: str, data: bytes, *, mode: int = 0o644) -> None:
        """Add a file."""
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._entry(name, stat.S_IFLNK | 0o777, os.fsencode(target))

    def tree(self, name: str, source: Path) -> None:
        """Add a file or a folder with all that is in it; a link stays a link. Raises `LaunchError` for another."""
        found = source.lstat()
        if stat.S_ISDIR(found.st_mode):
            self.folder(name, mode=stat.S_IMODE(found.st_mode))
            for below in sorted(os.listdir(source)):
                self.tree(f"{name}/{below}", source / below)
        elif stat.S_ISLNK(found.st_mode):
            self.link(name, os.readlink(source))
        elif stat.S_ISREG(found.st_mode):
            self._copy(name, source)
        else:
            raise LaunchError("what a sandbox is given holds what is neither file nor folder", where=str(source))

    def close(self) -> None:
        """Write the end."""
        self._entry("TRAILER!!!", 0, b"")

    def _copy(self, name: str, source: Path) -> None:
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            self._head(name, stat.S_IFREG | stat.S_IMODE(found.st_mode), found.st_size)
            left = found.st_size
            while left:
                block = file.read(min(left, _BLOCK))
                if not block:
                    raise LaunchError("a file became shorter while it was read", where=str(source))
                self._file.write(block)
                left -= len(block)
            self._pad(found.st_size)

    def _entry(self, name: str, mode: int, data: bytes) -> None:
        self._head(name, mode, len(data))
        self._file.write(data)
        self._pad(len(data))

    def _head(self, name: str, mode: int, size: int) -> None:
        if size > _MOST_BYTES:
            raise LaunchError("a file is over 4 GiB, and an archive for the kernel has no word for it", where=name)
        self._count += 1
        text = os.fsencode(name) + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(text), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + text
        self._file.write(head)
        self._pad(len(head))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % 4))
