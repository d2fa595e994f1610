"""What the keeper and the minter do first: no one reads their memory, no core is written."""

import os
import resource

from tidegate.errors import KeeperError
from tidegate.syscall import forbid_dump_and_gain

__all__ = ["hide_memory"]


def hide_memory() -> None:
    """Make this process undumpable and its files no one else's to write; called after the uid was changed."""
    try:
        forbid_dump_and_gain()
    except OSError as fault:
        raise KeeperError(f"the process's memory cannot be hidden: {fault.strerror}") from fault
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o027)
