"""What the keeper and the minter do first: no one reads their memory, no core is written."""

import ctypes
import os
import resource
from typing import Final

from tidegate.errors import KeeperError

__all__ = ["hide_memory"]

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38


def hide_memory() -> None:
    """Make this process undumpable (prctl(2)) and its files no one else's to write.

    Not dumpable: /proc/PID/mem, ptrace and process_vm_readv need CAP_SYS_PTRACE even for the same
    uid. Called after the uid was changed, since a change of uid sets the flag anew.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise KeeperError(f"prctl {option} failed: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o027)
