"""What a user gives to a sandbox: copied into a fresh folder before it starts, never mounted itself.

| given | |
|---|---|
| a file | copied |
| a folder | copied with what is in it |
| a path with `..`, or with a link in any part of it (S-08) | refused: an earlier run may have put the link there |
| a link within a folder | kept as a link if it stays within the folder, else refused |
| a device, FIFO or socket; an engine's socket or what holds it; the gate's state; the home folder | refused |
| a name with a control character, two of one name | refused |
| too many, too large | refused |

Every refusal is of the whole launch: a run with half of its inputs is not what was asked for.
"""

import os
import posixpath
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.files.beneath import open_plain, reopen
from tidegate_launcher.files.copying import Budget, Bulk, copy_bytes, kind, opened
from tidegate_launcher.files.forbidden import Forbidden

__all__ = ["copy_in"]

_OPTION: Final = "--in"
_FOLDER_MODE: Final = 0o755  # the sandbox's user is another one, whatever the umask here
_SEARCH: Final = os.O_RDONLY | os.O_DIRECTORY


def copy_in(given: Sequence[Path], target: Path, *, forbidden: Forbidden, bulk: Bulk | None = None) -> tuple[str, ...]:
    """Copy files and folders into a folder, which is made; return their names in it.

    Raises `LaunchError`; what was copied until then is for the caller to remove with the folder.
    """
    copier = _Copier(forbidden, Budget(bulk or Bulk(), _OPTION))
    try:
        target.mkdir(mode=_FOLDER_MODE)
        folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(folder, _FOLDER_MODE)
            return tuple(copier.give(path, folder) for path in given)
        finally:
            os.close(folder)
    except OSError as fault:
        raise LaunchError(
            f"an input cannot be copied: {fault.strerror}", where=loggable(os.fsdecode(fault.filename or _OPTION))
        ) from fault


class _Copier:
    def __init__(self, forbidden: Forbidden, budget: Budget) -> None:
        self._forbidden, self._budget = forbidden, budget

    def give(self, path: Path, target: int) -> str:
        name = path.name
        if ".." in path.parts:
            raise LaunchError("an input's path may not lead upwards", where=str(path), hint="name the file itself")
        found = _open(path)
        try:
            real = Path(os.readlink(f"/proc/self/fd/{found}"))
            self._forbidden.check(real)
            if not name:
                raise LaunchError("an input needs a name", where=str(path), hint="name a file or folder in it")
            self._entry(found, os.fstat(found), target, name, name, 0)
        except FileExistsError as fault:
            raise LaunchError("two inputs have the same name", where=str(path)) from fault
        finally:
            os.close(found)
        return name

    def _entry(self, found: int, what: os.stat_result, target: int, name: str, path: str, depth: int) -> None:
        if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in name):
            raise LaunchError("an input's name holds a control character", where=loggable(path))
        self._budget.entry(path, depth)
        if stat.S_ISREG(what.st_mode):
            mode = 0o755 if what.st_mode & 0o100 else 0o644
            copy_bytes(found, target, name, mode=mode, budget=self._budget, path=path)
        elif stat.S_ISDIR(what.st_mode):
            self._forbidden.check(Path(os.readlink(f"/proc/self/fd/{found}")))
            os.mkdir(name, _FOLDER_MODE, dir_fd=target)
            self._folder(found, target, name, path, depth)
        elif stat.S_ISLNK(what.st_mode):
            os.symlink(_inner(os.readlink("", dir_fd=found), path), name, dir_fd=target)
        else:
            raise LaunchError(
                f"an input is a {kind(what.st_mode)}", where=loggable(path), hint="files and folders are copied"
            )

    def _folder(self, found: int, target: int, name: str, path: str, depth: int) -> None:
        source = reopen(found, _SEARCH)
        copy = os.open(name, _SEARCH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
        try:
            os.fchmod(copy, _FOLDER_MODE)
            for below in os.listdir(source):
                with opened(source, below) as (entry, what):
                    self._entry(entry, what, copy, below, f"{path}/{below}", depth + 1)
        finally:
            os.close(copy)
            os.close(source)


def _open(path: Path) -> int:
    try:
        found = open_plain(str(path), os.O_PATH | os.O_NOFOLLOW)
    except OSError as fault:
        raise _not_opened(path, fault.strerror or "") from fault
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise _not_opened(path, "it is a link")
    return found


def _not_opened(path: Path, why: str) -> LaunchError:
    if path.is_symlink() or path.resolve() != path.absolute():
        why = "there is a link on the way, which may lead anywhere by the time it is used"
        return LaunchError(
            f"an input is not followed: {why}", where=str(path), hint=f"if it is meant: {path.resolve()}"
        )
    return LaunchError(f"an input cannot be opened: {why}", where=str(path))


def _inner(text: str, path: str) -> str:
    """Return a link's target if it stays within the input that it lies in. Raises `LaunchError`."""
    top = path.partition("/")[0]
    leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    if text.startswith("/") or "/" not in path or leads.partition("/")[0] != top:
        raise LaunchError(
            "a link of an input leads out of it", where=loggable(path), hint="copy what it leads to, or remove it"
        )
    return text
