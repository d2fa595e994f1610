"""A path that a model gave, resolved beneath a workspace and opened in one step.

A checked string is a race: what was checked can be a link by the time that it is opened. So the answer is an open
descriptor, and what it is of has been looked at after it was opened.

    with open(open_beneath(workspace, arguments["path"]), "rb") as file:
        return file.read()
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final, Literal

from tidegate.errors import LaunchError
from tidegate_launcher.files import beneath

__all__ = ["Mode", "open_beneath"]

type Mode = Literal["read", "write", "create"]
"""`read`: what is there. `write`: what is there, emptied. `create`: a new file, which must not be there."""

_FLAGS: Final = {
    "read": os.O_RDONLY,
    "write": os.O_WRONLY,
    "create": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
_WHY: Final = {
    errno.ELOOP: "a part of it is a link",
    errno.EXDEV: "it leads out of the workspace",
    errno.ENXIO: "it is no file",
    errno.EISDIR: "it is a folder",
}


def open_beneath(workspace: str | Path, path: str, mode: Mode = "read") -> int:
    """Return a descriptor of a regular file beneath the workspace, which is the caller's to close.

    No part of the path may be a link, wherever it leads; an absolute path and one above the workspace are refused, and
    so is a device, a FIFO or a socket, without waiting for it. Raises `LaunchError`.
    """
    try:
        folder = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as fault:
        raise LaunchError(f"the workspace cannot be opened: {fault.strerror}", where=str(workspace)) from fault
    flags, permissions = _FLAGS[mode] | os.O_NONBLOCK | os.O_NOCTTY, 0o644 if mode == "create" else 0
    try:
        opened = beneath.open_beneath(folder, path, flags, permissions)
    except OSError as fault:
        why = _WHY.get(fault.errno or 0, fault.strerror)
        raise _refused(path, why) from fault
    finally:
        os.close(folder)
    return _regular(opened, path, mode)


def _regular(opened: int, path: str, mode: Mode) -> int:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _refused(path, "it is no file")
    if mode == "write":
        os.ftruncate(opened, 0)  # not before it is known for a file
    return opened


def _refused(path: str, why: str | None) -> LaunchError:
    return LaunchError(f"the path is refused: {why}", where=repr(path), hint="name a file of the workspace")
