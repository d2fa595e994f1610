"""Tasks that someone owns: none is lost, none outlives its owner, none fails unseen."""

import asyncio
from collections.abc import Callable, Coroutine

__all__ = ["OwnedTasks"]


class OwnedTasks:
    """Runs coroutines in the background until `close`. A failure goes to `on_fault`."""

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
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
            self._on_fault(fault)

    async def close(self) -> None:
        """Cancel what runs and wait for it."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
