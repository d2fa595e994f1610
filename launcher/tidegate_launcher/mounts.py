"""A mount namespace that lives as long as a descriptor of it, made by calls: a program for each mount takes ten times
as long as all of them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidegate.errors import LaunchError
from tidegate.syscall import mount
from tidegate_launcher.threads import in_a_thread

__all__ = ["BIND", "NODEV", "NOSUID", "REC", "MountSpace"]

NOSUID: Final = 0x2
NODEV: Final = 0x4
BIND: Final = 0x1000
REC: Final = 0x4000
"""Flags of mount(2)."""
_SLAVE: Final = 0x80000


class MountSpace:
    """A mount namespace. Needs CAP_SYS_ADMIN. A context manager; close it when what enters it has."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def make(cls, work: Callable[[], None]) -> Self:
        """Return a copy of this process' own, in which `work` has made its mounts. Raises `LaunchError`."""

        def made() -> int:
            os.unshare(os.CLONE_NEWNS)
            mount("", "/", flags=REC | _SLAVE)
            work()
            return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

        try:
            return cls(in_a_thread(made, "no mounts can be made", hint="this needs root"))
        except OSError as fault:
            raise LaunchError(
                f"the sandbox's place was not made: mount: {fault.strerror}",
                where=str(fault.filename or "mount"),
                hint="tidegate doctor",
            ) from fault

    @property
    def path(self) -> Path:
        """Where other programs find it, until `close`."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def close(self) -> None:
        """Let go of it: it ends with the last process in it."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
