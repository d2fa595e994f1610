"""Sandboxes made ahead, each for one command: what takes long is done before it is asked for.

All that a sandbox is goes into it before its command is known: image, limits, network, wall, session. So a pool is of
one kind, and each is taken once, for one command, and is gone with it. What is not there yet is made as without a pool.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Sink
from tidegate_launcher.kept.sandbox import Kept
from tidegate_launcher.order import Launched, Order

__all__ = ["Pool"]

_MOST: Final = 64
_OLD_SECONDS: Final = 600.0
"""A sandbox that nobody took for so long is made anew: policy, certificates and credentials go on meanwhile."""
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


class _Standing(msgspec.Struct):
    sandbox: Kept
    undo: contextlib.ExitStack


class Pool:
    """Keeps `size` sandboxes ready. `make` makes one; `launch` runs an order without one. Close it at the end."""

    def __init__(
        self, size: int, make: Callable[[], AbstractContextManager[Kept]], launch: Callable[..., Launched]
    ) -> None:
        if not 1 <= size <= _MOST:
            raise LaunchError(f"{size} is no number of sandboxes to make ahead", where="ahead", hint=f"1 to {_MOST}")
        self._size, self._make, self._launch = size, make, launch
        self._standing: deque[_Standing] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._taken: dict[int, _Standing] = {}
        self.fault: Exception | None = None
        """Why the last one could not be made; None if it was."""
        # A sandbox ends with the thread that made it, so that one is here for as long as the pool.
        self._thread = threading.Thread(target=self._fill, name="tidegate-pool", daemon=True)
        self._thread.start()

    def run(
        self, order: Order, *, stdin: BinaryIO | None = None, sink: Sink | None = None, cancel: int | None = None
    ) -> Launched:
        """Run an order in a sandbox that stands ready, else in a fresh one; see `launch`."""
        thread = threading.get_ident()
        try:
            while (one := self._take(thread)) is not None:
                with one.undo:
                    try:
                        return one.sandbox.become(order, stdin=stdin, sink=sink, cancel=cancel)
                    except LaunchError:
                        if not one.sandbox.lost:
                            raise
        finally:
            self._give_back(thread)
        return self._launch(order, stdin=stdin, sink=sink, cancel=cancel)

    def wait(self, count: int = 1, seconds: float = 30.0) -> bool:
        """Wait until so many stand ready; tell whether they do."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._standing) >= count, seconds)

    def close(self) -> None:
        """End those that nobody took, once those that were have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        while self._standing:
            self._standing.popleft().undo.close()

    def _take(self, thread: int) -> _Standing | None:
        """Take one that stands for a thread; those that have fallen, or are too old, are cleared away on the way."""
        with self._changed:
            while self._standing:
                one = self._taken[thread] = self._standing[0]  # whose it is from here on, however this is interrupted
                self._standing.popleft()
                self._changed.notify_all()
                if _fresh(one.sandbox):
                    return one
                _clear(one)
        return None

    def _give_back(self, thread: int) -> None:
        """End what a thread has taken, if it has not."""
        try:
            if (one := self._taken.get(thread)) is not None:
                one.undo.close()
        finally:
            with self._changed:
                self._taken.pop(thread, None)
                self._changed.notify_all()

    def _fill(self) -> None:
        pause = _FIRST_PAUSE
        while self._wanted():
            undo = contextlib.ExitStack()
            try:
                sandbox = undo.enter_context(self._make())
            except Exception as fault:  # with this thread the sandboxes would end that others run in
                self.fault = fault
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self.fault, pause = None, _FIRST_PAUSE
            with self._changed:
                self._standing.append(_Standing(sandbox, undo))
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)

    def _wanted(self) -> bool:
        """Wait until another is wanted; false at the end."""
        with self._changed:
            while not self._closed:
                while self._standing and not _fresh(self._standing[0].sandbox):
                    _clear(self._standing.popleft())
                if len(self._standing) < self._size:
                    return True
                self._changed.wait(_OLD_SECONDS / 10)
            return False


def _fresh(sandbox: Kept) -> bool:
    return sandbox.age < _OLD_SECONDS and sandbox.alive()


def _clear(one: _Standing) -> None:
    with contextlib.suppress(LaunchError, OSError):  # of what is left of it: the next launch's sweep tries again
        one.undo.close()
