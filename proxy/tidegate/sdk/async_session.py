"""`Session` for asyncio: the same, without blocking the loop.

    async with AsyncSession(policy="triage") as session:
        async with session.call("run_tests", "call_1", risk="high") as call:
            result = await call.run(["python3", "-c", code], timeout=10)

A command that is under way when its call's block, or the session's, is left ends with it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.sdk.async_sandbox import MOST_AT_ONCE, Commands, finished
from tidegate.sdk.command import Command, Run
from tidegate.sdk.risk import Risk
from tidegate.sdk.session import Runner, Session
from tidegate_launcher.boundary import Sink
from tidegate_launcher.job import Limits

__all__ = ["AsyncSession", "AsyncSessionCall"]


class AsyncSessionCall(Commands):
    """One tool call's scope; see `Session.call`. Any number of its commands may be under way, 64 run at once."""

    _name, _opened_by = "call", "async with session.call(…) as call: await call.run(…)"

    def __init__(self, runner: Runner, under_way: set["AsyncSessionCall"]) -> None:
        super().__init__()
        self._runner, self._under_way = runner, under_way

    async def __aenter__(self) -> Self:
        """Begin the call."""
        await self._begin(MOST_AT_ONCE, _nothing, _nothing)
        self._under_way.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and the commands that are under way."""
        self._under_way.discard(self)
        await self._end(_nothing)

    def _launch(self, command: Command, sink: Sink | None, cancel: int) -> Run:
        return self._runner(command, sink=sink, cancel=cancel)


class AsyncSession:
    """A session of the gate's that tool calls are made in. Takes what `Session` takes."""

    def __init__(
        self,
        policy: str,
        *,
        image: str = "minimal",
        credentials: Sequence[str] = (),
        owner: str = "default",
        limits: Limits | None = None,
        state: str | Path | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        self._session = Session(
            policy, image=image, credentials=credentials, owner=owner, limits=limits, state=state,
            ttl_seconds=ttl_seconds,
        )  # fmt: skip
        self._under_way: set[AsyncSessionCall] = set()

    async def __aenter__(self) -> Self:
        """Hold the image and open the session. Raises `LaunchError`."""
        loop = asyncio.get_running_loop()
        try:
            await finished(loop.run_in_executor(None, self._session.__enter__))
        except BaseException:
            await finished(loop.run_in_executor(None, self._leave))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session, with it those of its calls, and the commands that are under way."""
        self._session.end()
        try:
            for call in list(self._under_way):
                await call.__aexit__(kind, value, trace)
        finally:
            await finished(asyncio.get_running_loop().run_in_executor(None, self._leave))

    @property
    def id(self) -> str:
        """Its id in the log: `tidegate log --session ID` has its calls too."""
        return self._session.id

    def call(
        self, tool: str, id: str, *, risk: Risk = "low", credentials: Sequence[str] | None = None
    ) -> AsyncSessionCall:
        """Return the scope of one tool call, to be entered; see `Session.call`."""
        runner = self._session.runner(tool, id, risk=risk, credentials=credentials)
        return AsyncSessionCall(runner, self._under_way)

    def redact(self, text: str) -> str:
        """Return the text without what opens anything, for a transcript or a trace; see `tidegate.sdk.redact`."""
        return self._session.redact(text)

    def _leave(self) -> None:
        self._session.__exit__(None, None, None)


def _nothing() -> None:
    """Stand for what a call need not do: its sandboxes are made with its commands."""
