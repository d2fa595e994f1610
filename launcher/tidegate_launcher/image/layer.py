"""One layer of an image upon the tree of those below it (OCI image-spec, layer.md).

| entry | meaning |
|---|---|
| `.wh.NAME` | NAME of the layers below is gone |
| `.wh..wh..opq` | all of the layers below is gone from this folder |
| `.wh..wh.*` else | book-keeping of an old file system: left out |

Both mean the layers below alone: what this layer itself brings stays, in whatever order its entries come.
"""

import os
import stat
import tarfile
from collections.abc import Iterable
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.image.tree import Parts, Tree

__all__ = ["Layer"]

_MARK: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_KEEPING: Final = ".wh..wh."


class Layer:
    """Applies the entries of one layer to a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._mine: set[Parts] = set()

    def add(self, entry: tarfile.TarInfo, chunks: Iterable[bytes]) -> None:
        """Put one entry into the tree, or do what a whiteout says. Raises `LaunchError`."""
        name = entry.name.rstrip("/").rpartition("/")[2]
        if not name.startswith(_MARK):
            if (parts := self._tree.add(entry, chunks)) is not None:
                self._mine.update(parts[:size] for size in range(1, len(parts) + 1))
            return
        above = self._tree.checked(entry.name)[:-1]
        if name == _OPAQUE:
            self._clear(above)
        elif name.startswith(_KEEPING):
            self._tree.left_out["whiteout of an old kind"] += 1
        else:
            self._white_out(above, name.removeprefix(_MARK), entry.name)

    def _white_out(self, above: Parts, name: str, where: str) -> None:
        if name in ("", ".", ".."):
            raise LaunchError("a whiteout names no entry", where=where)
        parts = (*above, name)
        if parts not in self._mine:
            self._tree.remove(parts)
        else:
            self._clear(parts)

    def _clear(self, parts: Parts) -> None:
        """Remove below a folder what is not of this layer."""
        try:
            folder = self._tree.open(parts)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            inner = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            for name in os.listdir(inner):
                below = (*parts, name)
                if below not in self._mine:
                    self._tree.remove(below)
                elif stat.S_ISDIR(os.lstat(name, dir_fd=inner).st_mode):
                    self._clear(below)
        finally:
            os.close(inner)
