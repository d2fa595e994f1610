"""Where launches have their folders, and what a launcher that was killed has left there.

A folder is named by its launcher (`owner`), so that one that is left behind is known from one in use.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.limits.owner import owned_name, stale

__all__ = ["ROOM", "LaunchPlace"]

_ROOT: Final = Path("/run/tidegate-launch")
_ROOM_BYTES: Final = 8 * 1024 * 1024
_ROOM_FILES: Final = 256
ROOM: Final = "make room there: 8 MiB and 256 files at the least, and what goes in"
"""What to do about a place that is full."""


class LaunchPlace:
    """The folder that holds one folder a launch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def below(self, name: str) -> Path:
        """Return a folder in it, 0700, that stays. Raises `LaunchError`."""
        path = self._path / name
        try:
            for one in (self._path, path):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
                _own(one)
        except OSError as fault:
            raise LaunchError(f"this folder cannot be made: {fault.strerror}", where=str(path)) from fault
        return path

    @classmethod
    def of_this_user(cls) -> "LaunchPlace":
        """Return root's place in /run, or the user's own runtime folder. Raises `LaunchError`."""
        if os.geteuid() == 0:
            return cls(_ROOT)
        given = os.environ.get("XDG_RUNTIME_DIR", "")
        if not given.startswith("/"):
            raise LaunchError("there is no place for a launch", where="XDG_RUNTIME_DIR", hint="set it to a folder")
        return cls(Path(given) / "tidegate-launch")

    @contextlib.contextmanager
    def folder(self, one: str) -> Iterator[Path]:
        """Yield a fresh folder, 0700, which goes with all that is in it. Raises `LaunchError`, also if it stays."""
        path = self._path / owned_name(one)
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own(self._path)
            _need_room(self._path)
            path.mkdir(mode=0o700)
        except OSError as fault:
            raise LaunchError(f"a launch has no folder: {fault.strerror}", where=str(path)) from fault
        try:
            yield path
        finally:
            if not _remove(path):
                raise LaunchError("a launch's folder stays", where=str(path), hint="the next launch tries it again")

    def sweep(self) -> list[str]:
        """Remove the folders of launchers that are gone; return their names."""
        names = [path.name for path in self._path.glob("*-*-*-*")]
        return [name for name in stale(names) if _remove(self._path / name)]


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _need_room(path: Path) -> None:
    """Refuse before anything runs: what has no room to say that it failed, fails as if the command had."""
    found = os.statvfs(path)
    if found.f_bavail * found.f_frsize < _ROOM_BYTES or (found.f_files > 0 and found.f_favail < _ROOM_FILES):
        raise LaunchError("there is no room for a launch", where=str(path), hint=ROOM)


def _own(path: Path) -> None:
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LaunchError("this folder is not ours alone", where=str(path), hint="remove it; a launch makes it anew")
