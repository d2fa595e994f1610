"""A process' output as it comes, up to a limit, while its time runs: one selector, no threads, no growing buffers.

Both streams are read until they end, so that nobody blocks on a full pipe; what is over the limit is thrown away and
stops the process. Time is of CLOCK_BOOTTIME: it goes on while the machine sleeps, and no clock that is set moves it.
"""

import os
import selectors
import time
from collections.abc import Callable
from typing import BinaryIO, Final, Literal

import msgspec

from tidegate_launcher.boundary import Sink

__all__ = ["CHUNK", "Capture", "Captured", "Pipes", "Stream", "capture", "read_some"]

CHUNK: Final = 65536
"""The most of one read."""
_LEFT_SECONDS: Final = 5.0
"""How long is read on after the process was to end: what keeps a pipe open then is no part of it."""
_LEAST_SECONDS: Final = 0.001
"""A timer set to nothing, as less than a nanosecond is, would be no timer."""

type Stream = Literal["stdout", "stderr"]


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What came, and whether our own limits ended it."""

    stdout: bytes
    stderr: bytes
    timed_out: bool
    flooded: bool
    alarmed: bool
    seconds: float
    cancelled: bool = False


class Pipes:
    """Pipes around a process: no descriptor of ours gets inside, where a terminal could be typed into."""

    def __init__(self, stdin: BinaryIO | None, *, later: bool = False) -> None:
        """Take what is to be given, without which nothing can be read inside; `later`: it is told by `give`."""
        self.outputs: dict[Stream, int] = {}
        theirs: list[int] = []
        self.feed: _Feed | None = None
        self._writing: int | None = None
        if stdin is None and not later:
            theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        else:
            reading, self._writing = os.pipe()
            theirs.append(reading)
        if stdin is not None:
            self.give(stdin)
        names: tuple[Stream, Stream] = ("stdout", "stderr")
        for name in names:
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            theirs.append(writing)
            self.outputs[name] = reading
        self.theirs = theirs[0], theirs[1], theirs[2]

    def give(self, stdin: BinaryIO | None) -> None:
        """Take what is to be given, once; None is nothing, and its end."""
        writing, self._writing = self._writing, None
        if writing is not None and stdin is not None:
            self.feed = _Feed(stdin, writing)
        elif writing is not None:
            os.close(writing)

    def close_theirs(self) -> None:
        """Close the process' ends, once it has them."""
        theirs, self.theirs = self.theirs, (-1, -1, -1)
        for descriptor in theirs:
            if descriptor >= 0:
                os.close(descriptor)

    def said(self) -> str:
        """Return what waits on stderr, for an error; empty when nothing does."""
        try:
            found = os.read(self.outputs["stderr"], CHUNK)
        except BlockingIOError:
            found = b""
        return found.decode("utf-8", "replace").strip()[-1000:]

    def close(self) -> None:
        """Close all that is open."""
        self.close_theirs()
        self.give(None)
        if self.feed is not None:
            self.feed.close()
        for descriptor in self.outputs.values():
            os.close(descriptor)
        self.outputs = {}


def capture(
    pipes: Pipes,
    *,
    pidfd: int,
    seconds: float,
    limit: int,
    stop: Callable[[], None],
    sink: Sink | None = None,
    alarm: int | None = None,
    cancel: int | None = None,
) -> Captured:
    """Read until the process has ended and its output too. `alarm` and `cancel` are descriptors that end it when
    readable: for what the machine says of it, and for who wants it no more.

    `stop` is called when it is to be ended, and when it has, for what it left. An error of `sink` is passed on.
    """
    return Capture(pipes, pidfd, alarm, cancel, limit, stop, sink).run(seconds)


def read_some(source: BinaryIO) -> bytes:
    """Return what there is to be given, nothing at its end: what cannot be read, as a folder, has nothing to give."""
    try:
        number = source.fileno()
    except OSError:  # it lies in memory
        return source.read(CHUNK)
    try:
        return os.read(number, CHUNK)
    except OSError:
        return b""


class _Feed:
    """Bytes on their way into the process. The pipe is closed after the last, or when nobody reads them."""

    def __init__(self, source: BinaryIO, pipe: int) -> None:
        self._source, self._pending = source, b""
        self._pipe: int | None = pipe
        os.set_blocking(pipe, False)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Wait for what is next: bytes to read, or room to write them. A file in memory never waits."""
        source = self._number()
        if not self._pending and source is None and self._pipe is not None:
            self._read()
        pipe = self._pipe
        if pipe is not None and self._pending:
            selector.register(pipe, selectors.EVENT_WRITE, self._write)
        elif pipe is not None and source is not None:
            selector.register(source, selectors.EVENT_READ, self._read)

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _number(self) -> int | None:
        try:
            return self._source.fileno()
        except OSError:
            return None

    def _read(self) -> None:
        self._pending = read_some(self._source)
        if not self._pending:
            self.close()

    def _write(self) -> None:
        if self._pipe is None:
            return
        try:
            self._pending = self._pending[os.write(self._pipe, self._pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.close()


class Capture:
    """One capture under way. A part of it that ends in another way than by its process' end overrides `_end`."""

    def __init__(
        self,
        pipes: Pipes,
        pidfd: int,
        alarm: int | None,
        cancel: int | None,
        limit: int,
        stop: Callable[[], None],
        sink: Sink | None,
    ) -> None:
        self._open, self._alarm, self._cancel = dict(pipes.outputs), alarm, cancel
        self._feed, self._pidfd, self._limit, self._stop, self._sink = pipes.feed, pidfd, limit, stop, sink
        self._kept = {name: bytearray() for name in self._open}
        self._ended = self._timed_out = self._flooded = self._alarmed = self._cancelled = False
        self._give_up: float | None = None

    def run(self, seconds: float) -> Captured:
        """Read until the end, or until our limits; see `capture`."""
        begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        timer = os.timerfd_create(time.CLOCK_BOOTTIME, flags=os.TFD_CLOEXEC | os.TFD_NONBLOCK)
        try:
            os.timerfd_settime(timer, initial=max(seconds, _LEAST_SECONDS))
            while self._open or not self._ended:
                if not self._turn(timer):
                    break
        finally:
            os.close(timer)
        return Captured(
            stdout=bytes(self._kept["stdout"]),
            stderr=bytes(self._kept["stderr"]),
            timed_out=self._timed_out,
            flooded=self._flooded,
            alarmed=self._alarmed,
            seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - begun,
            cancelled=self._cancelled,
        )

    def _turn(self, timer: int) -> bool:
        """Wait for something and do it; tell whether there is anything left to wait for."""
        left = None if self._give_up is None else self._give_up - time.monotonic()
        if left is not None and left <= 0:
            return False
        # poll, which takes regular files too, as standard input may be.
        with selectors.PollSelector() as selector:
            self._register(selector, timer)
            for key, _ in selector.select(left):
                key.data()
        return True

    def _register(self, selector: selectors.BaseSelector, timer: int) -> None:
        for name, descriptor in self._open.items():
            selector.register(descriptor, selectors.EVENT_READ, lambda name=name: self._take(name))
        if not self._ended:
            selector.register(self._pidfd, selectors.EVENT_READ, self._over)
        if self._give_up is None:
            selector.register(timer, selectors.EVENT_READ, self._time_out)
            if self._alarm is not None:
                selector.register(self._alarm, selectors.EVENT_READ, self._ring)
            if self._cancel is not None:
                selector.register(self._cancel, selectors.EVENT_READ, self._give_it_up)
            if self._feed is not None:
                self._feed.register(selector)

    def _take(self, name: Stream) -> None:
        try:
            found = os.read(self._open[name], CHUNK)
        except BlockingIOError:
            return
        if not found:
            del self._open[name]
            return
        room = found[: self._limit - len(self._kept[name])]
        self._kept[name] += room
        if room and self._sink is not None:
            self._sink(name, room)
        if len(room) < len(found) and not self._flooded:
            self._flooded = True
            self._end()

    def _over(self) -> None:
        self._ended = True
        self._end()  # what it left, and what holds the pipes open

    def _time_out(self) -> None:
        # Output that was over the limit in the same turn has ended it already.
        if self._give_up is None:
            self._timed_out = True
            self._end()

    def _ring(self) -> None:
        self._alarmed = True
        self._end()

    def _give_it_up(self) -> None:
        self._cancelled = True
        self._end()

    def _end(self) -> None:
        self._grant()
        self._stop()

    def _grant(self) -> None:
        if self._give_up is None:
            self._give_up = time.monotonic() + _LEFT_SECONDS
