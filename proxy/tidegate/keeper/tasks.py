"""Tasks that someone owns: none is lost, none outlives its owner, none fails unseen."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path

__all__ = ["OwnedTasks"]

_log = logging.getLogger(__name__)


class OwnedTasks:
    """Runs coroutines in the background until `close`. A failure goes to `on_fault`; without one, to the log."""

    def __init__(self, on_fault: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_fault = on_fault

    def spawn(self, work: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        """Start the coroutine as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            if self._on_fault is not None:
                self._on_fault(fault)
            else:
                _log.error("the task %s failed: %s at %s", task.get_name(), type(fault).__name__, _place(fault))

    async def close(self) -> None:
        """Cancel what runs and wait for it."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _place(fault: BaseException) -> str:
    # Never the message: it may hold what was being handled.
    frames = traceback.extract_tb(fault.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
