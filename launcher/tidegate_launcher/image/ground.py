"""The places that a boundary mounts on, in every root: made here, since a sandbox's root cannot be written to.

An image may have put a link where a mount goes; then the mount would go where the link leads. So each is a real folder
or an empty file afterwards, whatever it was.
"""

import os
import stat
from typing import Final

from tidegate_launcher.image.tree import remove

__all__ = ["MOUNT_FILES", "MOUNT_FOLDERS", "prepare"]

MOUNT_FOLDERS: Final = ("proc", "sys", "dev", "tmp", "run", "work", "tidegate", "etc")
"""Folders of a root's top that a boundary may mount on."""

MOUNT_FILES: Final = ("etc/hosts", "etc/resolv.conf", "etc/hostname")
"""Files that a boundary may mount on."""

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(root: int) -> None:
    """Make the places below a root's descriptor. Raises OSError."""
    for name in MOUNT_FOLDERS:
        if not _is(root, name, stat.S_IFDIR):
            remove(root, name)
            os.mkdir(name, 0o755, dir_fd=root)
    etc = os.open("etc", _FOLDER, dir_fd=root)
    try:
        for name in (path.rpartition("/")[2] for path in MOUNT_FILES):
            if not _is(etc, name, stat.S_IFREG):
                remove(etc, name)
                os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=etc))
    finally:
        os.close(etc)


def _is(folder: int, name: str, kind: int) -> bool:
    try:
        return stat.S_IFMT(os.lstat(name, dir_fd=folder).st_mode) == kind
    except FileNotFoundError:
        return False
