"""An asyncio loop in a thread of its own, so that servers answer while a test blocks."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

__all__ = ["LoopThread", "loop_thread"]


class LoopThread:
    """A running loop; `run` gives it a coroutine and waits for the result."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run[T](self, coroutine: Coroutine[Any, Any, T], *, timeout: float = 30) -> T:
        """Return what `coroutine` returns on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)


@contextlib.contextmanager
def loop_thread(name: str) -> Iterator[LoopThread]:
    """Run a loop in a thread until the block ends; every task left is cancelled and awaited."""
    loop = asyncio.new_event_loop()
    # What a peer does to a server (reset, wrong TLS) is the test's business, not the log's.
    loop.set_exception_handler(lambda _loop, _context: None)
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield LoopThread(loop)
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _cancel_all() -> None:
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
