"""`Sandbox` for asyncio: the same, without blocking the loop.

    async with AsyncSandbox(policy="triage") as sandbox:
        result = await sandbox.run(["python3", "-c", code], timeout=10)

A launch blocks, so each has a thread, and none outlives who awaits it: a call that is cancelled ends its sandbox, waits
until nothing of it is left, and only then is cancelled. So does the end of the block, for each call that is under way.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from tidegate.errors import LaunchError
from tidegate.sdk.call import Call, Run
from tidegate.sdk.sandbox import Sandbox
from tidegate_launcher.boundary import Cancelled
from tidegate_launcher.job import Limits

__all__ = ["AsyncSandbox", "Output", "Stream"]

MOST_AT_ONCE: Final = 64


class Output(NamedTuple):
    """A piece of output as it came; the bytes are the sandbox's."""

    stream: Literal["stdout", "stderr"]
    untrusted_data: bytes


class Stream:
    """A command under way: iterate over its output, then ask for its result."""

    def __init__(self) -> None:
        self._outputs: asyncio.Queue[Output | None] = asyncio.Queue()
        self._future: asyncio.Future[Run] | None = None

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Yield output as it comes, once, until the command has ended. All of it is within the limit on output."""
        while (output := await self._outputs.get()) is not None:
            yield output

    async def result(self) -> Run:
        """Return what came of it, waiting for its end. Raises what `Sandbox.run` raises."""
        if self._future is None:
            raise LaunchError("the command was not started")
        await asyncio.wait([self._future])  # unlike an await of it, this does not cancel it
        return self._future.result()


class AsyncSandbox:
    """What sandboxes are made by. Takes what `Sandbox` takes; any number of calls may be under way, 64 run at once."""

    def __init__(
        self,
        policy: str | None = None,
        *,
        image: str = "minimal",
        credentials: Sequence[str] = (),
        owner: str = "default",
        limits: Limits | None = None,
        state: str | Path | None = None,
        ahead: int = 0,
    ) -> None:
        self._sandbox = Sandbox(
            policy, image=image, credentials=credentials, owner=owner, limits=limits, state=state, ahead=ahead
        )
        self._threads: ThreadPoolExecutor | None = None
        self._cancels: set[_Cancel] = set()

    async def __aenter__(self) -> Self:
        """Look at the machine and hold the image. Raises `LaunchError` for what is missing."""
        threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="tidegate-sandbox")
        try:
            await _finished(asyncio.get_running_loop().run_in_executor(threads, self._sandbox.__enter__))
        except BaseException:
            threads.shutdown(wait=False)
            self._sandbox.__exit__(None, None, None)
            raise
        self._threads = threads
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the calls that are under way, and let go of the image."""
        threads, self._threads = self._threads, None
        for cancel in self._cancels:
            cancel.ring()
        if threads is not None:
            try:
                await _finished(asyncio.get_running_loop().run_in_executor(None, threads.shutdown))
            finally:
                self._sandbox.__exit__(kind, value, trace)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of the sandbox, whose end it is and not the await's
        stdin: bytes | None = None,
        inputs: Sequence[str | Path] = (),
        out: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_output: Callable[[Literal["stdout", "stderr"], bytes], None] | None = None,
    ) -> Run:
        """Run one command in a fresh sandbox; see `Sandbox.run`. `on_output` is called on the loop."""
        call = Call.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        async with self._started(call, listen=on_output is not None) as stream:
            if on_output is not None:
                async for output in stream:
                    on_output(*output)
            return await stream.result()

    @contextlib.asynccontextmanager
    async def stream(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        stdin: bytes | None = None,
        inputs: Sequence[str | Path] = (),
        out: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Stream]:
        """Run one command and yield its output as a stream; leaving the block early ends the sandbox.

        async with sandbox.stream(["make", "test"]) as running:
            async for stream, untrusted_data in running: …
            result = await running.result()
        """
        call = Call.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        async with self._started(call, listen=True) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def _started(self, call: Call, *, listen: bool) -> AsyncIterator[Stream]:
        if self._threads is None:
            raise LaunchError("the sandbox is not open", hint="async with AsyncSandbox(…) as sandbox: …")
        loop, stream = asyncio.get_running_loop(), Stream()

        def work() -> Run:
            try:
                if cancel.rung:
                    raise Cancelled
                return self._sandbox.launch(call, sink=take if listen else None, cancel=cancel.descriptor)
            finally:
                loop.call_soon_threadsafe(stream._outputs.put_nowait, None)

        def take(name: Literal["stdout", "stderr"], data: bytes) -> None:
            loop.call_soon_threadsafe(stream._outputs.put_nowait, Output(name, data))

        cancel = _Cancel()
        self._cancels.add(cancel)
        job = self._threads.submit(work)
        stream._future = future = asyncio.wrap_future(job)
        try:
            yield stream
        finally:
            cancel.ring()
            job.cancel()  # one that has no thread yet never gets one
            try:
                await _ended(future)
            finally:
                self._cancels.discard(cancel)
                cancel.close()


class _Cancel:
    """A descriptor that is readable once a call is wanted no more."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        os.close(self.descriptor)


async def _finished[T](future: asyncio.Future[T]) -> T:
    """Return the future's result; a cancellation waits for its end first."""
    await _ended(future)
    return future.result()


async def _ended[T](future: asyncio.Future[T]) -> None:
    """Wait for the end of what a thread does, however often the wait is cancelled; then be cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as fault:
            cancelled = fault
    if not future.cancelled():
        future.exception()  # taken note of: who asked for the result has it, and nobody else wants it
    if cancelled is not None:
        raise cancelled
