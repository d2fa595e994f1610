"""Making an unpacked tree ours, and naming it by what it holds.

One walk by descriptor, no link followed: every entry goes to root (where we are root), loses what others may write,
and is hashed. The name is the SHA-256 of the sorted entries: path, kind, mode, and content or target. So the same tree
has the same name wherever it came from, and nobody else's word is taken for it.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError

__all__ = ["Sealed", "discard", "seal"]

_BLOCK: Final = 1024 * 1024
_DEEPEST: Final = 128
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Sealed(msgspec.Struct, frozen=True):
    """The tree's name, and what is in it."""

    digest: str
    entries: int
    bytes: int


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.entries = self.bytes = 0
        self.root = os.geteuid() == 0

    def folder(self, descriptor: int, path: bytes, depth: int) -> None:
        if depth > _DEEPEST:
            raise LaunchError("the tree is too deep", where=loggable(path))
        for name in sorted(os.listdir(descriptor), key=os.fsencode):
            self.entries += 1
            self._entry(descriptor, name, path + b"/" + os.fsencode(name), depth)
        self._ours(descriptor, os.fstat(descriptor))

    def _entry(self, folder: int, name: str, path: bytes, depth: int) -> None:
        found = os.lstat(name, dir_fd=folder)
        if stat.S_ISLNK(found.st_mode):
            self._note(b"l", 0, path, os.fsencode(os.readlink(name, dir_fd=folder)))
            if self.root:
                os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)
        elif stat.S_ISDIR(found.st_mode):
            self._note(b"d", found.st_mode & 0o755, path, b"")
            inner = os.open(name, _OPEN_FOLDER, dir_fd=folder)
            try:
                self.folder(inner, path, depth + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                self._note(b"f", found.st_mode & 0o755, path, self._content(file))
                self._ours(file, found)
            finally:
                os.close(file)
        else:
            raise LaunchError("the tree holds what is no file, folder or link", where=loggable(path))

    def _content(self, file: int) -> bytes:
        content = hashlib.sha256()
        while data := os.read(file, _BLOCK):
            self.bytes += len(data)
            content.update(data)
        return content.digest()

    def _ours(self, descriptor: int, found: os.stat_result) -> None:
        if self.root:
            os.fchown(descriptor, 0, 0)
        os.fchmod(descriptor, found.st_mode & 0o755)

    def _note(self, kind: bytes, mode: int, path: bytes, more: bytes) -> None:
        # A name holds no NUL; a target is the last of its line, and its length is told.
        self.hash.update(b"%s %o %d\0%s\0%s\n" % (kind, mode, len(more), path, more))


def seal(root: int) -> Sealed:
    """Take over the tree below a folder's descriptor, and return its name. Raises `LaunchError`, OSError."""
    walk = _Walk()
    os.fchmod(root, 0o755)
    walk.folder(root, b"", 0)
    return Sealed(walk.hash.hexdigest(), walk.entries, walk.bytes)


def discard(path: Path) -> None:
    """Remove a tree, whatever is in it; what is not there is no fault."""
    import shutil

    def open_up(_: object, name: str, fault: BaseException) -> None:
        if isinstance(fault, FileNotFoundError):
            return
        raise fault

    shutil.rmtree(path, onexc=open_up)
