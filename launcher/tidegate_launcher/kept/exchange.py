"""One command in a sandbox that stays: told to its first process, read from until that says that it has ended."""

import fcntl
import selectors
import sys
import termios
from collections.abc import Callable
from typing import BinaryIO, Final

from tidegate_launcher.boundary import Sink
from tidegate_launcher.capture import CHUNK, Capture, Captured, Pipes, Stream, read_some
from tidegate_launcher.kept import init
from tidegate_launcher.kept.control import Control

__all__ = ["Exchange", "Told"]

_TOLD_END: Final = frozenset({init.ENDED, init.FAILED})


class Exchange(Capture):
    """Reads a command's output while its time runs. What our limits end is the command; the sandbox stays if it can.

    `stop` ends the sandbox: when memory has run out, or when the first process does not do as told in time.
    """

    def __init__(
        self,
        pipes: Pipes,
        control: Control,
        *,
        pidfd: int,
        limit: int,
        stop: Callable[[], None],
        stdin: BinaryIO | None = None,
        sink: Sink | None = None,
        alarm: int | None = None,
        cancel: int | None = None,
    ) -> None:
        super().__init__(pipes, pidfd, alarm, cancel, limit, stop, sink)
        self._control, self._stdin, self._free = control, stdin, stdin is not None
        self.code: int | None = None
        """The command's, as a shell has it."""
        self.fault = 0
        """The errno for which there was no command."""
        self.over = False
        """Whether the sandbox has ended, and not the command alone."""
        self.refused: Exception | None = None
        """What `sink` raised, which ended the command."""

    def run(self, seconds: float) -> Captured:
        """Read until the command has ended, or the sandbox."""
        try:
            captured = super().run(seconds)
        except BaseException:  # we are to end, or do not know what is still in the pipes: it would be the next one's
            self.over = True
            self._stop()
            raise
        if not self._ended:
            self.over = True
            self._stop()
        return captured

    def _register(self, selector: selectors.BaseSelector, timer: int) -> None:
        super()._register(selector, timer)
        selector.register(self._control.answers, selectors.EVENT_READ, self._hear)
        if self._free and self._give_up is None:
            self._offer(selector)
        if self._control.waiting:
            selector.register(self._control.orders, selectors.EVENT_WRITE, self._control.flush)

    def _offer(self, selector: selectors.BaseSelector) -> None:
        """Wait for bytes to give; a file in memory never waits."""
        if self._stdin is None:
            return
        try:
            selector.register(self._stdin.fileno(), selectors.EVENT_READ, self._give)
        except OSError:
            self._give()

    def _give(self) -> None:
        if self._stdin is None:
            return
        data = read_some(self._stdin)
        self._free = False
        self._control.tell(init.INPUT, data)
        if not data:
            self._stdin = None

    def _take(self, name: Stream) -> None:
        try:
            super()._take(name)
        except Exception as fault:  # raised once the command has ended, and its output is out of the next one's way
            self.refused, self._sink = fault, None
            self._end()

    def _hear(self) -> None:
        for kind, number in self._control.heard():
            if kind == init.TAKEN:
                self._free = self._stdin is not None
            elif kind in _TOLD_END:
                self.code, self.fault = (number, 0) if kind == init.ENDED else (None, number)
                self._finish()

    def _finish(self) -> None:
        """Take what is left in the pipes, and no more: it is the first process' word that nobody writes to them."""
        self._ended = True
        self._grant()
        for name, descriptor in list(self._open.items()):
            for _ in range(-(-_waiting(descriptor) // CHUNK)):
                if name in self._open:
                    self._take(name)
        self._open.clear()

    def _over(self) -> None:
        self.over = True
        super()._over()

    def _ring(self) -> None:
        self.over = True
        super()._ring()

    def _end(self) -> None:
        if self._ended and not self.over:
            return
        self._grant()
        if self.over:
            self._stop()
        else:
            self._control.tell(init.KILL)


class Told(Capture):
    """Reads from a sandbox that becomes its command, and tells it what it is meanwhile: nobody waits for a reader."""

    def __init__(
        self,
        pipes: Pipes,
        control: Control,
        *,
        pidfd: int,
        limit: int,
        stop: Callable[[], None],
        sink: Sink | None = None,
        alarm: int | None = None,
        cancel: int | None = None,
    ) -> None:
        super().__init__(pipes, pidfd, alarm, cancel, limit, stop, sink)
        self._control = control

    def _register(self, selector: selectors.BaseSelector, timer: int) -> None:
        super()._register(selector, timer)
        if self._control.waiting and self._give_up is None:
            selector.register(self._control.orders, selectors.EVENT_WRITE, self._control.flush)


def _waiting(pipe: int) -> int:
    """Return how many bytes there are to read (FIONREAD(2const))."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
