"""Landlock: which files a process may still reach, set by the process on itself for good.

Sources: landlock(7), the kernel's `Documentation/userspace-api/landlock.rst`. Numbers are the same on all
architectures. A right that the kernel does not know is left out of the rule set and named by `missing`.

| ABI | adds |
|---|---|
| 1 | files and directories |
| 2 | refer (links and renames between directories) |
| 3 | truncate |
| 5 | ioctl on devices |
| 6 | abstract unix sockets and signals beyond the domain |
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.syscall import syscall

__all__ = ["APPEND", "EXECUTE", "FILL", "READ", "abi", "missing", "restrict"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = (1 << 0) | _WRITE_FILE | _READ_FILE | (1 << 14) | (1 << 15)

EXECUTE = 1 << 0
"""Start programs below a path."""

READ = _READ_FILE | _READ_DIR
"""Read files and list directories below a path."""

APPEND = READ | _WRITE_FILE | _MAKE_DIR | _MAKE_REG
"""Make files and write into them below a path; never remove, truncate, rename or link."""

FILL = APPEND | _REMOVE_DIR | _REMOVE_FILE | _MAKE_SYM | _REFER | _TRUNCATE
"""Make, change and remove files, folders and links below a path; no device, FIFO or socket."""

_RIGHTS_BY_ABI = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
_SCOPES = 0b11
_SCOPES_ABI = 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Return the kernel's Landlock version, 0 if there is none."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def missing(version: int) -> list[str]:
    """Say what a process of this version is not held back from."""
    if version == 0:
        return ["files that its user may open (this kernel has no Landlock)"]
    found = []
    if version < 3:
        found.append("cutting files short (Landlock below version 3)")
    if version < _SCOPES_ABI:
        found.append("signals and abstract sockets of its user (Landlock below version 6)")
    return found


def restrict(rules: Iterable[tuple[Path, int]], *, version: int) -> None:
    """Allow the rules' rights below their paths, and nothing else, to this thread and what it starts.

    Needs no_new_privs. Raises OSError.
    """
    handled = sum(rights for since, rights in _RIGHTS_BY_ABI if since <= version)
    attr = _RulesetAttr(fs=handled, scoped=_SCOPES if version >= _SCOPES_ABI else 0)
    # An older kernel refuses a longer structure with E2BIG unless the rest is zero, as it is here.
    ruleset = syscall(_CREATE_RULESET, attr, ctypes.sizeof(attr), 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & handled)
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        syscall(_ADD_RULE, ruleset, _PATH_BENEATH, _PathBeneathAttr(access=rights, parent=descriptor), 0)
    finally:
        os.close(descriptor)
