"""Opening what a path names beneath a folder, and nowhere else (openat2(2)).

A path that was checked as text is a race: between the check and the use somebody swaps a part of it for a link. Here
the kernel does both at once, and refuses every link on the way, wherever it leads.
"""

import ctypes
import errno
import os
from typing import Final

from tidegate.errors import LaunchError
from tidegate.syscall import syscall

__all__ = ["open_beneath", "open_plain", "reopen"]

_OPENAT2: Final = 437  # the same on all architectures
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_FDCWD: Final = -100
_TRIES: Final = 64


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, path: str | bytes, flags: int = os.O_RDONLY, mode: int = 0) -> int:
    """Return a descriptor of `path` beneath the folder's descriptor; no part of it may be a link.

    Raises OSError: EXDEV for a path that leads out, ELOOP for a link.
    """
    return _open(folder, path, flags, mode, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)


def open_plain(path: str | bytes, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a path as the user gave it, from `/` or from here; no part of it may be a link.

    Raises OSError: ELOOP for a link.
    """
    return _open(_AT_FDCWD, path, flags, 0, _NO_SYMLINKS | _NO_MAGICLINKS)


def reopen(descriptor: int, flags: int) -> int:
    """Return a descriptor that reads or writes the very file of an O_PATH descriptor, whatever its name is by now."""
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


def _open(folder: int, path: str | bytes, flags: int, mode: int, resolve: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "the path holds a NUL byte")
    text = ctypes.create_string_buffer(name)
    how = _How(flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(_TRIES):
        try:
            return syscall(_OPENAT2, folder, ctypes.addressof(text), how, ctypes.sizeof(how))
        except OSError as fault:
            if fault.errno == errno.ENOSYS:
                raise LaunchError(
                    "this kernel cannot open a path beneath a folder (openat2)", hint="Linux 5.6 or later"
                ) from fault
            # Something was renamed on the way meanwhile: openat2(2) asks to try again.
            if fault.errno != errno.EAGAIN:
                raise OSError(fault.errno, fault.strerror, os.fsdecode(name)) from None
    raise OSError(errno.EAGAIN, "the folder is being changed all the time", os.fsdecode(name))
