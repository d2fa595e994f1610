"""What a gate worker gives up once it is ready to serve, so that a fall costs little (`confine.become` went before).

| means | takes away |
|---|---|
| PR_SET_DUMPABLE 0 | reading its memory by another process of its uid; core dumps |
| no_new_privs | set-uid programs, file capabilities |
| Landlock | all files but those named; signals and abstract sockets beyond itself |
| seccomp | exec, ptrace, process_vm, io_uring, namespaces, mounts, the kernel's inner doors |

What stays open on every machine is in the threat model; what this machine's kernel cannot hold beyond that
is said in `Confinement.unenforced`, and by the start, the status and the health output (invariant 9).
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidegate import landlock, seccomp
from tidegate.errors import LaunchError
from tidegate.syscall import forbid_dump_and_gain

__all__ = ["Confinement", "confine", "interpreter_paths"]

_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")


class Confinement(msgspec.Struct, frozen=True):
    """What holds: the Landlock version in use (0: none), whether seccomp is on, and what this machine cannot hold."""

    landlock_abi: int
    seccomp: bool
    unenforced: tuple[str, ...]


def interpreter_paths() -> list[Path]:
    """Return what Python reads when it imports a module late: its own folders and the system's libraries."""
    roots = [*sys.path, sys.prefix, sys.base_prefix, *_SYSTEM_LIBRARIES]
    return [Path(root) for root in dict.fromkeys(roots) if root and os.access(root, os.R_OK)]


def confine(*, read: Iterable[Path] = (), append: Iterable[Path] = ()) -> Confinement:
    """Confine this process for good: `read` may be read, below `append` files may be made and written.

    Call it once, in a process of one thread, with every listener bound and every log folder made. A path of
    `read` that is not there is left out. Raises LaunchError if something the kernel offers cannot be applied,
    and then the process must not serve.
    """
    # Landlock binds the calling thread and its children only: another thread would stay free.
    if len(os.listdir("/proc/self/task")) > 1:
        raise LaunchError("a process with several threads cannot be confined", hint="confine before starting any")
    version = landlock.abi()
    unenforced = landlock.missing(version)
    rules = [(path, landlock.READ) for path in read if os.access(path, os.R_OK)] + [
        (path, landlock.APPEND) for path in append
    ]
    try:
        forbid_dump_and_gain()
        if version:
            landlock.restrict(rules, version=version)
        if seccomp.supported():
            seccomp.install()
        else:
            unenforced.append("system calls (their numbers on this machine are not known)")
    except OSError as error:
        raise LaunchError(
            f"the process could not be confined: {error.strerror}", where=str(error.filename or "")
        ) from error
    return Confinement(version, seccomp.supported(), tuple(unenforced))
