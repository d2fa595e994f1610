"""What the supervisor has to tell the keeper's chain: faults, and configurations refused at load.

The keeper may be the one that has just died: reports wait, in order, until one takes them. They wait in a bounded
queue; what does not fit is counted, and the count is reported.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.errors import KeeperError
from tidegate.keeper.protocol import ConfigRefused, FaultReport, WallReport

__all__ = ["Report", "Reports"]

type Report = FaultReport | ConfigRefused | WallReport

_MOST: Final = 256
_RETRY_SECONDS: Final = 0.25


class Reports:
    """Queues reports and delivers them. `tell` raises `KeeperError` when the keeper cannot take one now."""

    def __init__(self, tell: Callable[[Report], Awaitable[None]]) -> None:
        self._tell = tell
        self._waiting: deque[Report] = deque()
        self._lost = 0
        self._any = asyncio.Event()

    def put(self, report: Report) -> None:
        """Queue a report."""
        if len(self._waiting) >= _MOST:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(report)
        self._any.set()

    async def deliver_forever(self) -> None:
        """Deliver each report once, in order; one that is not taken is tried again."""
        while True:
            await self._any.wait()
            try:
                await self.deliver()
            except KeeperError:
                await asyncio.sleep(_RETRY_SECONDS)

    async def deliver(self) -> None:
        """Deliver what waits now. Raises `KeeperError` at the first that is not taken; it stays."""
        while self._waiting:
            if self._lost:
                await self._tell(FaultReport("reports_lost", f"{self._lost} reports before the next one were lost"))
                self._lost = 0
            report = self._waiting[0]
            await self._tell(report)
            if self._waiting and self._waiting[0] is report:  # else the queue has overflown meanwhile
                self._waiting.popleft()
        self._any.clear()
