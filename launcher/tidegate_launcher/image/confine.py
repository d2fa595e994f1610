"""What a process gives up before it parses a stranger's bytes: one folder is all that is left to it.

| means | takes away | as root | else |
|---|---|---|---|
| network namespace | the network | yes | in a user namespace, where the kernel allows one |
| chroot | every path but the folder's | yes | in a user namespace |
| uid 65534, no groups, no capabilities | root | yes | its own uid; no capabilities |
| seccomp | sockets, programs, namespaces, mounts | yes | yes |
| Landlock | every path but the folder's; devices, FIFOs and sockets also there | yes | yes |
| rlimits | processes, memory, time, large files | yes | yes |

Landlock or chroot must hold, and seccomp or the network namespace: else nothing is parsed at all.
"""

import contextlib
import os
import resource
from pathlib import Path

import msgspec

from tidegate import landlock, seccomp
from tidegate.errors import LaunchError
from tidegate.syscall import forbid_dump_and_gain
from tidegate_launcher.privilege import drop_all

__all__ = ["Bounds", "confine"]

_UID = _GID = 65534
_MIB = 1024 * 1024


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the process may use: bytes of memory, of one file, and seconds of processor."""

    memory_bytes: int = 1024 * _MIB
    file_bytes: int = 8 * 1024 * _MIB
    cpu_seconds: int = 900
    open_files: int = 256


def confine(bounds: Bounds) -> None:
    """Confine this process for good to its working directory. Raises `LaunchError` where that is not possible.

    Call it in a process of one thread that was started for this, with everything imported.
    """
    try:
        cut_off, alone = _namespaces()
        _limit(bounds)
        _become_nobody()
        walled = _landlock()
        if seccomp.supported():
            seccomp.install(families=())
    except OSError as fault:
        raise LaunchError(f"the unpacking process could not be confined: {fault.strerror}") from fault
    if not (walled or alone) or not (cut_off or seccomp.supported()):
        raise LaunchError(
            "the unpacking process cannot be confined on this machine: neither Landlock nor a namespace is to be had",
            hint="import the image as root, or on a kernel with Landlock (5.13 or later)",
        )


def _namespaces() -> tuple[bool, bool]:
    """Take an empty network, and the folder as root; tell which of the two there is."""
    uid, gid = os.geteuid(), os.getegid()
    cut_off = alone = False
    with contextlib.suppress(PermissionError):
        os.unshare(os.CLONE_NEWNET if uid == 0 else os.CLONE_NEWUSER | os.CLONE_NEWNET)
        cut_off = True
    if cut_off and uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    with contextlib.suppress(PermissionError):
        os.chroot(".")
        alone = True
    return cut_off, alone


def _limit(bounds: Bounds) -> None:
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, bounds.memory_bytes),
        (resource.RLIMIT_FSIZE, bounds.file_bytes),
        (resource.RLIMIT_CPU, bounds.cpu_seconds),
        (resource.RLIMIT_NOFILE, bounds.open_files),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_GID, _GID, _GID)
        os.setresuid(_UID, _UID, _UID)
    drop_all()
    forbid_dump_and_gain()


def _landlock() -> bool:
    version = landlock.abi()
    if version:
        landlock.restrict([(Path("."), landlock.FILL)], version=version)
    return bool(version)
