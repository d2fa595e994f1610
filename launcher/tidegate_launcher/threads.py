"""Work in threads of its own: since a namespace is a thread's (namespaces(7)) and goes with it, or meanwhile."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tidegate.errors import LaunchError

__all__ = ["Later", "in_a_thread"]


def in_a_thread[T](work: Callable[[], T], what: str, *, hint: str) -> T:
    """Return what `work` returns in a thread of its own, which ends with it; what it raises is raised.

    Raises `LaunchError` where that is not permitted: `what`, and what to do.
    """
    done: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as fault:  # it is raised where the thread was asked for
            faults.append(fault)

    thread = threading.Thread(target=run, name="namespace")
    _start(thread)
    thread.join()
    if not faults:
        return done[0]
    fault = faults[0]
    if isinstance(fault, PermissionError):
        raise LaunchError(what, hint=hint) from fault
    raise fault


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as fault:
        raise LaunchError(
            "no thread is to be had", hint="see how many processes we may have: ulimit -u, pids.max of our group"
        ) from fault


def _nothing() -> None:
    pass


class Later[T]:
    """What a thread makes meanwhile. A context manager, at whose end `close` takes back what was made.

    `give_up` ends the wait of one that is still making by then: nobody wants it any more.
    Not `meanwhile`: it is made at the beginning, by who begins, and what the making raises is raised there.
    """

    def __init__(
        self,
        work: Callable[[], T],
        close: Callable[[T], None],
        *,
        give_up: Callable[[], None] = _nothing,
        meanwhile: bool = True,
    ) -> None:
        self._work, self._close, self._give_up, self._meanwhile = work, close, give_up, meanwhile
        self._made: list[T] = []
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="meanwhile")

    def result(self) -> T:
        """Return what was made, once it is. What the making raised is raised, each time."""
        if self._meanwhile:
            self._thread.join()
        if self._fault is not None:
            raise self._fault
        return self._made[0]

    def _run(self) -> None:
        try:
            self._made.append(self._work())
        except BaseException as fault:  # it is raised where the result is asked for
            self._fault = fault

    def __enter__(self) -> Self:
        if self._meanwhile:
            _start(self._thread)
        else:
            self._made.append(self._work())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meanwhile:
            if self._thread.is_alive():
                self._give_up()
            self._thread.join()
        for made in self._made:
            self._close(made)
