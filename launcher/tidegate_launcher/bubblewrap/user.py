"""The host's user that a sandbox runs as: one that nobody has, and that no other sandbox has at the same time.

The kernel counts by user, whatever namespaces there are: inotify instances, descriptors on their way over sockets,
pages of pipes, pending signals. Sandboxes of one user could starve each other, and whatever else runs as that user.

| asked | how |
|---|---|
| is the number this machine's to give | `/proc/self/uid_map`, `gid_map` |
| does somebody have it | the machine's lists of users and groups, `/etc/subuid`, `/etc/subgid` |
| does another sandbox | a lock on the number's own byte of a file, which goes with its last holder |
"""

import contextlib
import fcntl
import grp
import os
import pwd
import secrets
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError

__all__ = ["HostUser", "claimed"]

_FIRST: Final = 1_900_000_000
"""systemd's table of users, which Debian follows too, has nothing from 1879048192 to 2147352575."""
_COUNT: Final = 65_536
_ATTEMPTS: Final = 64
_LOCKS: Final = Path("/run/tidegate-users")
_LENT: Final = (Path("/etc/subuid"), Path("/etc/subgid"))


class HostUser(msgspec.Struct, frozen=True):
    """A user and group of one number. Who holds a copy of `lock` keeps it from others."""

    number: int
    lock: int


@contextlib.contextmanager
def claimed(
    locks: Path = _LOCKS, *, first: int = _FIRST, count: int = _COUNT, lent: Sequence[Path] = _LENT
) -> Iterator[HostUser]:
    """Yield a user that is this sandbox's alone, for as long as somebody has its lock open. Raises `LaunchError`."""
    for kind in ("uid_map", "gid_map"):
        if not _maps(Path(f"/proc/self/{kind}"), first, count):
            raise LaunchError(
                f"no sandbox can have a user of its own: {first} to {first + count - 1} are no users here",
                where=f"/proc/self/{kind}", hint="run outside of this container, or choose another --boundary",
            )  # fmt: skip
    lock = _opened(locks)
    try:
        yield HostUser(_claim(lock, first, count, [one for path in lent for one in _lent(path)]), lock)
    finally:
        os.close(lock)


def _claim(lock: int, first: int, count: int, lent: list[range]) -> int:
    for _ in range(_ATTEMPTS):
        number = first + secrets.randbelow(count)
        if not any(number in one for one in lent) and not _is_somebodys(number) and _locked(lock, number - first):
            return number
    raise LaunchError(
        f"no user from {first} to {first + count - 1} is free for a sandbox", where="/etc/passwd, /etc/subuid",
        hint="take them from whom they were given to",
    )  # fmt: skip


def _opened(path: Path) -> int:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise LaunchError(f"users cannot be told apart: {fault.strerror}", where=str(path)) from fault
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(lock)
        raise LaunchError("this file is not ours alone", where=str(path), hint="remove it; a launch makes it anew")
    return lock


def _locked(lock: int, byte: int) -> bool:
    """Lock one byte. The lock is the open file's (fcntl_locking(2), F_OFD_SETLK): all who inherit it hold it."""
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def _is_somebodys(number: int) -> bool:
    with contextlib.suppress(KeyError):
        pwd.getpwuid(number)
        return True
    with contextlib.suppress(KeyError):
        grp.getgrgid(number)
        return True
    return False


def _lent(path: Path) -> Iterator[range]:
    """Return what users may have in namespaces of their own: subuid(5)."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text("utf-8", "replace").splitlines():
            *_, first, count = ("", "", *line.split(":"))
            if first.isdigit() and count.strip().isdigit():
                yield range(int(first), int(first) + int(count))


def _maps(path: Path, first: int, count: int) -> bool:
    lines = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    return any(inside <= first and first + count <= inside + length for inside, _, length in lines)
