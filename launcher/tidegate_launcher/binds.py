"""What of ours a sandbox sees: checked here, whichever boundary mounts it.

A socket or a device is a way out, also deep in a folder. A link inside leads nowhere but inside; one as the source may
lead elsewhere by the time that it is mounted.
"""

import posixpath
import stat
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import DOOR, WORK, Bind, Job

__all__ = ["bound", "refuse_links"]

_OWN: Final = frozenset({"/", "/proc", "/sys", "/dev", "/tmp", "/dev/shm", WORK, DOOR})  # noqa: S108
"""Places that are the sandbox's own."""


def bound(job: Job, ground: Ground) -> tuple[tuple[Path, str], ...]:
    """Return what is mounted for the sandbox to read, as (source, target). Raises `LaunchError`."""
    return (*_door(job, ground), *map(_checked, job.binds))


def refuse_links(job: Job, binds: tuple[tuple[Path, str], ...]) -> None:
    """Raise `LaunchError` for a point in the root that a link leads to: it would be made where that leads outside."""
    for target in (*_OWN - {DOOR}, *(target for _, target in binds)):
        point = job.root
        for part in Path(target).parts[1:]:
            point /= part
            if point.is_symlink():
                raise LaunchError("a mount would follow a link of the root's", where=target)


def _door(job: Job, ground: Ground) -> tuple[tuple[Path, str], ...]:
    if job.net != "uds":
        return ()
    if ground.door is None:
        raise LaunchError("no socket was made for this sandbox", where="net: uds")
    return ((ground.door, DOOR),)


def _checked(bind: Bind) -> tuple[Path, str]:
    if not bind.target.startswith("/") or ".." in bind.target.split("/"):
        raise LaunchError("a bind's target is a path inside the sandbox, from /", where=bind.target)
    target = "/" + posixpath.normpath(bind.target).strip("/")
    below = target.rstrip("/") + "/"
    if target in _OWN or target.startswith(("/proc/", "/sys/", "/dev/")) or any(own.startswith(below) for own in _OWN):
        raise LaunchError("a bind would hide a part of the sandbox itself", where=bind.target)
    if not bind.source.is_absolute():
        raise LaunchError("a bind's source is a path from /", where=str(bind.source))
    _refuse_doors(bind.source)
    return bind.source, target


def _refuse_doors(source: Path) -> None:
    if source.is_symlink() or not (source.is_file() or source.is_dir()):
        raise LaunchError("only a regular file or a folder can be bound", where=str(source))
    for folder, _, names in source.walk(follow_symlinks=False):
        for name in names:
            kind = stat.S_IFMT((folder / name).lstat().st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFLNK):
                raise LaunchError("a bound folder holds a socket, a pipe or a device", where=str(folder / name))
