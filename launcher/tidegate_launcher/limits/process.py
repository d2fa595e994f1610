"""Processes of the host, named so that a number used again is not taken for the one that is gone."""

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["kill_all", "started_at"]

_FIELD_START = 19  # of what follows the name in brackets (proc_pid_stat(5))


def started_at(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return when a process began, in ticks since the machine did; None when there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[_FIELD_START])


def kill_all(pids: Iterable[int], seconds: float) -> None:
    """Kill these processes, and wait until they are gone or the time is over. Never raises for one that is gone."""
    descriptors = [descriptor for pid in pids if (descriptor := _descriptor(pid)) is not None]
    try:
        for descriptor in descriptors:
            _send(descriptor)
        _wait(set(descriptors), time.monotonic() + seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _descriptor(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _send(descriptor: int) -> None:
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _wait(waiting: set[int], end: float) -> None:
    poller = select.poll()
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    while waiting and (left := end - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            poller.unregister(descriptor)
            waiting.discard(descriptor)
