"""Unpacking an archive by a process that has nothing to lose; this one only copies bytes to it and waits."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Final

import msgspec

from tidegate.audit.redact import loggable
from tidegate.errors import LaunchError
from tidegate_launcher.image.report import Orders, Refusal, Report

__all__ = ["Progress", "Source", "unpack"]

type Source = AbstractContextManager[Iterator[bytes]]
"""Where an archive comes from: opened, it yields its bytes; closed, it lets nothing go on."""

type Progress = Callable[[int], None]
"""Is told how many bytes have been taken, about once a second."""

_LONGEST_SAYING: Final = 4 * 1024 * 1024
_SECONDS: Final = 1800.0
_BEAT_SECONDS: Final = 1.0


def unpack(source: Source, orders: Orders, *, progress: Progress = lambda _: None, seconds: float = _SECONDS) -> Report:
    """Unpack into `root` in the folder of the orders, which as root is given to uid 65534 first.

    Raises `LaunchError` for what is refused; what is in the folder then is for the caller to remove.
    """
    with source as chunks, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as cried:
        if os.geteuid() == 0:
            os.fchown(orders.folder, 65534, 65534)
        with _start(orders, said, cried) as child:
            feed = _Feed(child, chunks)
            try:
                _wait(child, feed, progress, seconds)
            finally:
                child.kill()
                feed.end()
        feed.check(failed=child.returncode != 0)
        return _heard(child.returncode, said, cried)


def _start(orders: Orders, said: BinaryIO, cried: BinaryIO) -> "subprocess.Popen[bytes]":
    order = msgspec.json.encode(orders).decode()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tidegate_launcher.image.child", order],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=cried,
        env={"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}},
        pass_fds=(orders.folder,),
        start_new_session=True,
    )


class _Feed:
    """A thread that copies the source to the child's stdin."""

    def __init__(self, child: "subprocess.Popen[bytes]", chunks: Iterator[bytes]) -> None:
        self.count = 0
        self._pipe, self._chunks = child.stdin, chunks
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="unpack-feed", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._pipe is not None  # noqa: S101 - a pipe was asked for
        try:
            for chunk in self._chunks:
                self._pipe.write(chunk)
                self.count += len(chunk)
            self._pipe.close()
        except BrokenPipeError:
            pass  # the child has had enough, and says why
        except Exception as fault:  # told to the thread that waits
            self._fault = fault

    def end(self) -> None:
        self._thread.join(_BEAT_SECONDS * 5)
        if self._pipe is not None:
            # What the child has not read goes nowhere any more, and to say so is no fault of its own.
            with contextlib.suppress(OSError):
                self._pipe.close()

    @property
    def failed(self) -> bool:
        return self._fault is not None

    def check(self, *, failed: bool) -> None:
        if isinstance(self._fault, LaunchError):
            raise self._fault
        if self._fault is not None:
            raise LaunchError(f"the archive cannot be read: {self._fault}") from self._fault


def _wait(child: "subprocess.Popen[bytes]", feed: _Feed, progress: Progress, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not feed.failed:
        try:
            child.wait(min(_BEAT_SECONDS, max(end - time.monotonic(), 0.01)))
        except subprocess.TimeoutExpired:
            progress(feed.count)
        else:
            return
        if time.monotonic() >= end:
            raise LaunchError(f"unpacking took over {seconds:.0f} s, and was ended")


def _heard(code: int, said: BinaryIO, cried: BinaryIO) -> Report:
    said.seek(0)
    text = said.read(_LONGEST_SAYING + 1)
    try:
        heard = msgspec.json.decode(text, type=Report | Refusal)
    except (msgspec.DecodeError, RecursionError) as fault:
        cried.seek(0, os.SEEK_END)
        cried.seek(max(cried.tell() - 2000, 0))
        last = cried.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise LaunchError(f"the unpacking process failed: {loggable(last) or f'it ended with {code}'}") from fault
    if isinstance(heard, Refusal):
        raise LaunchError(loggable(heard.what), where=loggable(heard.where), hint=loggable(heard.hint))
    return heard
