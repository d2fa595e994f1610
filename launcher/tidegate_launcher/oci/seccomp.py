"""What the system call filters of both runtimes are made of: this machine's name there, and `clone`'s flags."""

import platform
from typing import Final

__all__ = ["ENOSYS", "EPERM", "NAMESPACE_FLAGS", "architectures"]

EPERM: Final = 1
ENOSYS: Final = 38
NAMESPACE_FLAGS: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (clone(2))."""
_MACHINES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def architectures(machine: str = "") -> tuple[str, ...]:
    """Return this machine's, or that of one named as uname(2) does; nothing for one that is not known."""
    found = _MACHINES.get(machine or platform.machine())
    return (found,) if found else ()
