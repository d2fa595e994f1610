"""Copying a tree by descriptors: each entry is opened once, looked at, and read from what was opened.

No name is used twice, so nothing can be swapped between the look and the use; no link is followed; and what is no file
or folder is never opened at all, since already opening a device can do something.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final

import msgspec

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.files.beneath import open_beneath, reopen

__all__ = ["Budget", "Bulk", "OverBudget", "copy_bytes", "kind", "opened"]

_BLOCK: Final = 1024 * 1024
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be copied."""

    entries: int = 10_000
    bytes: int = 256 * 1024 * 1024
    depth: int = 64


class OverBudget(LaunchError):
    """More than may be copied."""


class Budget:
    """What is left of it."""

    def __init__(self, bulk: Bulk, option: str) -> None:
        self._bulk, self._option = bulk, option
        self.entries = self.bytes = 0

    def entry(self, path: str, depth: int) -> None:
        """Count an entry. Raises `OverBudget` past the bound."""
        self.entries += 1
        if self.entries > self._bulk.entries:
            raise OverBudget(
                f"there are more than {self._bulk.entries} entries", where=self._option, hint=loggable(path)
            )
        if depth > self._bulk.depth:
            raise OverBudget(f"it is deeper than {self._bulk.depth} folders", where=loggable(path))

    def read(self, count: int, path: str) -> None:
        """Count bytes. Raises `OverBudget` past the bound."""
        self.bytes += count
        if self.bytes > self._bulk.bytes:
            raise OverBudget(f"there are more than {self._bulk.bytes} bytes", where=loggable(path))


@contextlib.contextmanager
def opened(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield an O_PATH descriptor of an entry of a folder, and what it is; a link is yielded as a link."""
    found = open_beneath(folder, name, os.O_PATH | os.O_NOFOLLOW)
    try:
        yield found, os.fstat(found)
    finally:
        os.close(found)


def copy_bytes(found: int, folder: int, name: str, *, mode: int, budget: Budget, path: str) -> None:
    """Copy a regular file, given as an O_PATH descriptor, to a new file of a folder. Raises `LaunchError`, OSError."""
    source = reopen(found, os.O_RDONLY | os.O_NONBLOCK)
    try:
        target = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            while data := os.read(source, _BLOCK):
                budget.read(len(data), path)
                _write(target, data)
            os.fchmod(target, mode)
        finally:
            os.close(target)
    finally:
        os.close(source)


def kind(mode: int) -> str:
    """Return what an error calls an entry of this mode."""
    known = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISFIFO, "FIFO"))
    more = ((stat.S_ISSOCK, "socket"), (stat.S_ISBLK, "device"), (stat.S_ISCHR, "device"))
    return next((name for test, name in (*known, *more) if test(mode)), "thing of an unknown kind")


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
