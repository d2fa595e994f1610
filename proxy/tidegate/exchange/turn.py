"""Run a coroutine now; hand it back only if it has to wait.

Almost every turn finds what it needs in memory. Such a coroutine ends within its first step and
costs no turn of the loop; the few that wait (a look-up, a lease, a leaf) go on as a task.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

__all__ = ["now_or_later"]


def now_or_later(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Start `coroutine` at once and return None when it is done, else the task to await.

    What it raises comes out here, or of the task.
    """
    task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)
    if not task.done():
        return task
    task.result()
    return None
