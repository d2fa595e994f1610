"""Whether the files of a configuration have changed since one last looked."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["FileWatch"]

type _Mark = tuple[int, int, int]


class FileWatch:
    """Tells whether a configuration has changed, by the stat of its files and of all YAML and locks beside them.

    Those too, since a file that it names may not be there yet: then there is no other sign of its coming.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: frozenset[Path] = frozenset(files)
        # The first look is a change: what was read may have become another while it was read.
        self._seen: Mapping[Path, _Mark] | None = None

    def follow(self, files: Iterable[Path]) -> None:
        """Watch these from now on. One that is new counts as a change, since it may have become another meanwhile."""
        self._files = frozenset(files)

    def changed(self) -> bool:
        """Return whether anything differs from the last look."""
        now = self._look()
        changed, self._seen = now != self._seen, now
        return changed

    def _look(self) -> Mapping[Path, _Mark]:
        marks: dict[Path, _Mark] = {}
        paths = {path for folder in {file.parent for file in self._files} for path in _kin(folder)}
        for path in self._files | paths:
            try:
                stat = path.stat()
            except OSError:
                continue
            marks[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return marks


def _kin(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.endswith((".yaml", ".yml", ".lock"))]
    except OSError:
        return []  # a folder that is being replaced; the next look sees the new one
