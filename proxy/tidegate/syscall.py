"""The system calls that Python has no name for, called through the C library."""

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["file_user", "forbid_dump_and_gain", "kill_on_parent_death", "mount", "prctl", "syscall"]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

type Argument = int | ctypes.Structure | None


def syscall(number: int, *arguments: Argument) -> int:
    """Call by number; a structure is passed by reference. Raises OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(number), *_passed(arguments)))


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2), the arguments left out being zero. Raises OSError."""
    return _checked(_LIBC.prctl(ctypes.c_int(option), *_passed([*arguments, 0, 0, 0, 0][:4])))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2). Raises OSError, whose file is the target."""
    words = [word.encode() if word else None for word in (source, target, kind)]
    if _LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


@contextlib.contextmanager
def file_user(uid: int) -> Iterator[None]:
    """Let this thread make files and sockets as another user, for which it must be root (setfsuid(2)).

    A socket keeps the user that it was made by: what packet filters ask for. Capabilities for the network stay.
    """
    before = _LIBC.setfsuid(ctypes.c_uint32(uid))
    if _LIBC.setfsuid(ctypes.c_uint32(uid)) != uid:  # it returns the one before, and tells nothing else
        raise OSError(errno.EPERM, "sockets cannot be made as another user")
    try:
        yield
    finally:
        _LIBC.setfsuid(ctypes.c_uint32(before))


def forbid_dump_and_gain() -> None:
    """Make this process undumpable, and keep it and what it starts from ever gaining privileges. Raises OSError.

    Not dumpable: /proc/PID/mem, ptrace and process_vm_readv need CAP_SYS_PTRACE even for the same uid.
    A change of uid sets the flag anew, so this comes after it.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 0)


def kill_on_parent_death() -> None:
    """Ask the kernel for SIGKILL when the parent dies; a change of uid clears this. Raises OSError."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _passed(arguments: Sequence[Argument]) -> list[object]:
    return [
        ctypes.byref(value) if isinstance(value, ctypes.Structure) else ctypes.c_ulong(value or 0)
        for value in arguments
    ]


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
