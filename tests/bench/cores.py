"""Which CPUs this process is on, and with it all that it starts."""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["on"]


@contextlib.contextmanager
def on(*cores: int) -> Iterator[None]:
    """Keep this thread, and the threads and programs that it starts meanwhile, on these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
