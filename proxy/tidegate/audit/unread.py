"""What of the log could not be read, and what to do about it.

Keeper and gate workers share the audit folder, and each worker owns its chain. One that has fallen can close it, or put
something else in its place: that is a fault of this chain, told by name, and never one of the others.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.errors import AuditError

__all__ = ["STRANGE", "Unreadable", "reading", "unreadable"]

STRANGE: Final = "the gate makes no such thing: keep it for a look, and take the worker that owns it for fallen"
_CLOSED: Final = "run this as root; if the gate's own users may not read it, the worker that owns it has closed it"
_OTHER: Final = "read it again; if it stays so, see to the disk"

_TOLD: Final = {
    errno.EACCES: ("permission denied", _CLOSED),
    errno.EPERM: ("permission denied", _CLOSED),
    errno.ELOOP: ("a link stands in its place", STRANGE),
    errno.ENOTDIR: ("no folder stands in its place", STRANGE),
    errno.ENXIO: ("this is no regular file", STRANGE),  # a socket
    errno.EAGAIN: ("a process holds a lease on it", "read it again in a minute: the kernel ends the lease"),
}


class Unreadable(AuditError):
    """A chain or a segment of one that cannot be read. `gone`: there is no such thing any more."""

    def __init__(self, what: str, *, where: str, hint: str = STRANGE, gone: bool = False) -> None:
        super().__init__(what, where=where, hint=hint)
        self.gone = gone


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Raise what the system says against reading as `Unreadable` at `where`."""
    try:
        yield
    except OSError as error:
        what, hint = _TOLD.get(error.errno or 0, (error.strerror or "cannot be read", _OTHER))
        raise Unreadable(what, where=where, hint=hint, gone=isinstance(error, FileNotFoundError)) from error


def unreadable(path: Path, error: OSError) -> AuditError:
    """Return the fault of a place that the operator named: what this user may not read is not therefore wrong."""
    if isinstance(error, PermissionError):
        return AuditError(f"cannot read {path}", hint="run this as root, or as the user that runs the gate")
    return AuditError(error.strerror or "cannot be read", where=str(path))
