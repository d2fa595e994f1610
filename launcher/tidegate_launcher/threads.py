"""Work in a thread of its own: a namespace is a thread's (namespaces(7)), and this one's goes with it."""

import threading
from collections.abc import Callable

from tidegate.errors import LaunchError

__all__ = ["in_a_thread"]


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
    thread.start()
    thread.join()
    if not faults:
        return done[0]
    fault = faults[0]
    if isinstance(fault, PermissionError):
        raise LaunchError(what, hint=hint) from fault
    raise fault
