"""A sandbox's output on its way to our own: the bytes themselves, or to a terminal what a terminal may be shown.

It is written by a thread of its own, so that a reader who does not read holds up neither the sandbox's clock nor its
end. What waits meanwhile is bounded by the limit on output.
"""

import contextlib
import os
import queue
import select
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Literal, Self, TextIO

from tidegate_launcher.boundary import Cancelled
from tidegate_launcher.readiness import is_readable
from tidegate_launcher.terminal import Plain

__all__ = ["Passing"]

_STEP_SECONDS: Final = 0.05

type _Name = Literal["stdout", "stderr"]


class Passing:
    """Passes on what it takes until it is closed. A context manager."""

    def __init__(self, streams: Mapping[_Name, TextIO | None], *, cancel: int | None = None) -> None:
        """Take where it goes; for a stream that is None, as one that was closed is, nowhere.

        Once `cancel` is readable, nobody waits any more for who does not read.
        """
        self._streams, self._cancel = streams, cancel
        self._ways: dict[_Name, _Way] = {}
        self._waiting: queue.SimpleQueue[tuple[_Name, bytes] | None] = queue.SimpleQueue()
        self._fault: OSError | None = None
        # Not waited for when this process is told to end.
        self._thread = threading.Thread(target=self._run, name="passing", daemon=True)
        self._thread.start()

    def take(self, name: _Name, data: bytes) -> None:
        """Pass these bytes on; a `Sink`. Raises `OSError`, such as `BrokenPipeError`, once nobody takes them."""
        if self._fault is not None:
            raise self._fault
        self._waiting.put((name, data))

    def close(self) -> None:
        """Wait until all is passed on. Raises `OSError`, and `Cancelled`."""
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(None if self._cancel is None else _STEP_SECONDS)
            if self._thread.is_alive() and self._cancel is not None and is_readable(self._cancel):
                raise Cancelled  # the thread stays for as long as that reader, with descriptors of its own
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self._write(*item)
            for way in self._ways.values():
                way.write(b"", last=True)
        except OSError as fault:
            self._fault = fault
        finally:
            for way in self._ways.values():
                way.close()

    def _write(self, name: _Name, data: bytes) -> None:
        stream = self._streams.get(name)
        if stream is not None:
            if name not in self._ways:
                self._ways[name] = _Way(stream)
            self._ways[name].write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
        elif isinstance(value, Exception):
            with contextlib.suppress(OSError):  # the fault itself is what is to be told
                self.close()


class _Way:
    """One stream, written to by its descriptor: a lock on its buffer would be held while nobody reads."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        # A double: who no longer waits for us closes the stream, and its number may be another's then.
        self._descriptor, self._encoding = os.dup(stream.fileno()), stream.encoding
        self._plain = Plain() if stream.isatty() else None

    def close(self) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes, *, last: bool = False) -> None:
        if self._plain is not None:
            data = self._plain.take(data, last=last).encode(self._encoding, "backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._descriptor, select.POLLOUT)
                poller.poll()
