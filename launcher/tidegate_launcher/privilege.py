"""What this process may, and giving it up for good (capabilities(7), prctl(2))."""

import ctypes
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.syscall import prctl, syscall

__all__ = [
    "CAP_NET_ADMIN",
    "CAP_SYS_ADMIN",
    "NEEDS_NET_ADMIN",
    "drop_all",
    "holds",
    "keep_net_admin",
    "need_net_admin",
]

_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_PR_SET_NO_NEW_PRIVS: Final = 38
CAP_NET_ADMIN: Final = 12
CAP_SYS_ADMIN: Final = 21
NEEDS_NET_ADMIN: Final = "this needs root, or CAP_NET_ADMIN in this namespace"
_STATUS: Final = Path("/proc/self/status")
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_VERSION_3: Final = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint32 * 6),)


def holds(capability: int) -> bool:
    """Tell whether this process has the capability in effect; not over which namespaces."""
    lines = _STATUS.read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(effective >> capability & 1)


def need_net_admin() -> None:
    """Raise `LaunchError` when this process may neither read nor change rules."""
    if not holds(CAP_NET_ADMIN):
        raise LaunchError("the wall's rules can be neither read nor set: Operation not permitted", hint=NEEDS_NET_ADMIN)


def keep_net_admin() -> None:
    """Keep CAP_NET_ADMIN alone, here and in whatever is started from here. Raises `LaunchError`.

    The bounding set goes with it, since a program that root starts would else have everything again.
    """
    kept = 1 << CAP_NET_ADMIN
    try:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        for capability in range(last + 1):
            # One that is out already need not be dropped, for which a container may have no right.
            if capability != CAP_NET_ADMIN and prctl(_PR_CAPBSET_READ, capability):
                prctl(_PR_CAPBSET_DROP, capability)
        prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
        _keep(kept)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    except OSError as fault:
        raise LaunchError(f"privileges cannot be given up: {fault.strerror}", hint="run this as root") from fault


def drop_all() -> None:
    """Keep no capability here: a process that starts no program, in whatever namespace, has none from now on.

    Raises `LaunchError` on an unknown machine, OSError otherwise.
    """
    _keep(0)


def _keep(kept: int) -> None:
    import platform

    number = _CAPSET.get(platform.machine())
    if number is None:
        raise LaunchError(f"privileges cannot be given up on {platform.machine()}")
    # effective, permitted, inheritable: of capabilities below 32, then of those above
    syscall(number, _Header(_VERSION_3, 0), _Data((ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)))
