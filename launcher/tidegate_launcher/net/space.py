"""A network namespace that lives as long as a descriptor of it: no name, no mount, so that nothing can be left over.

A namespace is a thread's (network_namespaces(7)): what is to happen in one is done by a thread that enters it and ends.
A program that this thread starts begins there.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidegate_launcher.threads import in_a_thread

__all__ = ["Space"]

_HINT: Final = "this needs root; without it: --net uds, or --net none"


class Space:
    """A network namespace. Needs CAP_SYS_ADMIN."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> Self:
        """Return a new one, with a loopback device that is down. Raises `LaunchError`."""

        def made() -> int:
            os.unshare(os.CLONE_NEWNET)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        return cls(in_a_thread(made, "no network namespace can be made", hint=_HINT))

    @property
    def path(self) -> Path:
        """Where other programs find it, for as long as this process lives and `close` was not called."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def within[T](self, work: Callable[[], T]) -> T:
        """Return what `work` returns in this namespace; what it raises is raised. Raises `LaunchError`."""

        def inside() -> T:
            os.setns(self._descriptor, os.CLONE_NEWNET)
            return work()

        return in_a_thread(inside, "the network namespace cannot be entered", hint=_HINT)

    def close(self) -> None:
        """Let go of it: it ends with the last process or socket in it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
