"""A network namespace that lives as long as a descriptor of it: no name, no mount, so that nothing can be left over.

A namespace is a thread's (network_namespaces(7)): what is to happen in one is done by a thread that enters it and ends.
A program that this thread starts begins there.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.errors import LaunchError

__all__ = ["Space"]


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

        return cls(_in_a_thread(made, "no network namespace can be made"))

    @property
    def path(self) -> Path:
        """Where other programs find it, for as long as this process lives and `close` was not called."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def within[T](self, work: Callable[[], T]) -> T:
        """Return what `work` returns in this namespace; what it raises is raised. Raises `LaunchError`."""

        def inside() -> T:
            os.setns(self._descriptor, os.CLONE_NEWNET)
            return work()

        return _in_a_thread(inside, "the network namespace cannot be entered")

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


def _in_a_thread[T](work: Callable[[], T], what: str) -> T:
    done: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as fault:  # it is raised where the thread was asked for
            faults.append(fault)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if not faults:
        return done[0]
    fault = faults[0]
    if isinstance(fault, PermissionError):
        raise LaunchError(what, hint="this needs root; without it: --net uds, or --net none") from fault
    raise fault
