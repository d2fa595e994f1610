"""Many sandboxes at once: all of them stand and have said so before the first one may end."""

import contextlib
import dataclasses
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from tests.bench.launch.contender import Task, Unusable
from tests.bench.launch.ways import checked
from tests.bench.launch.yard import Yard
from tidegate.errors import LaunchError
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.job import Limits

__all__ = ["Crowd", "crowd"]

_TASK: Final = Task(("/bin/sh", "-c", "echo here; cat"), b"here\n")
_SECONDS: Final = 120.0


@dataclasses.dataclass(frozen=True)
class Crowd:
    """What came of it: how many stood together at last, the fault of each launch that failed, and the seconds from the
    first start until the last was deleted.
    """

    size: int
    together: int
    faults: tuple[str, ...]
    seconds: float


def crowd(yard: Yard, size: int) -> Crowd:
    """Launch `size` sandboxes with wall, session and limits, and end them once all stand."""
    boundary = GVisor()
    boundary.capabilities()
    arrived = threading.Semaphore(0)
    # Each reads from a pipe of its own, and goes on when our end of it is closed.
    with ThreadPoolExecutor(size) as pool, contextlib.ExitStack() as leave:
        began = time.perf_counter()
        tasks = []
        for _ in range(size):
            reading, writing = os.pipe()
            leave.callback(os.close, writing)
            tasks.append(pool.submit(_one, yard, boundary, reading, arrived))
        end = began + _SECONDS
        for _ in range(size):
            arrived.acquire(timeout=max(0.0, end - time.perf_counter()))
        together = sum(not task.done() for task in tasks)
        leave.close()
        faults = tuple(fault for task in tasks if (fault := task.result()))
        return Crowd(size, together, faults, time.perf_counter() - began)


def _one(yard: Yard, boundary: GVisor, reading: int, arrived: threading.Semaphore) -> str:
    """Launch one, and return its fault. It arrives once, also when it never stands."""
    order = yard.order(_TASK, net="veth")
    order = msgspec.structs.replace(order, limits=Limits(seconds=_SECONDS))
    here = threading.Event()

    def told(stream: Literal["stdout", "stderr"], _: bytes) -> None:
        if stream == "stdout" and not here.is_set():
            here.set()
            arrived.release()

    with open(reading, "rb", buffering=0) as stdin:
        try:
            checked(yard.launch(order, boundary, told, stdin=stdin), _TASK)
        except (LaunchError, Unusable) as fault:
            return str(fault)
        finally:
            if not here.is_set():
                arrived.release()
    return ""
