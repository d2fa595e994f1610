"""The system calls that Python has no name for, called through the C library."""

import ctypes
import os
from collections.abc import Sequence

__all__ = ["prctl", "syscall"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

type Argument = int | ctypes.Structure | None


def syscall(number: int, *arguments: Argument) -> int:
    """Call by number; a structure is passed by reference. Raises OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(number), *_passed(arguments)))


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2), the arguments left out being zero. Raises OSError."""
    return _checked(_LIBC.prctl(ctypes.c_int(option), *_passed([*arguments, 0, 0, 0, 0][:4])))


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
