"""`Sandbox` for asyncio: the same, without blocking the loop.

    async with AsyncSandbox(policy="triage") as sandbox:
        result = await sandbox.run(["python3", "-c", code], timeout=10)

A launch blocks, so each has a thread, and none outlives who awaits it: a `run` that is cancelled ends its sandbox,
waits until nothing of it is left, and only then is cancelled. So does the end of the block, for each that is under way.
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
from tidegate.sdk.command import Command, Run
from tidegate.sdk.kept_sandbox import KeptSandbox
from tidegate.sdk.sandbox import Sandbox
from tidegate_launcher.boundaries import BoundaryName
from tidegate_launcher.boundary import Cancelled, Sink
from tidegate_launcher.job import Limits

__all__ = ["MOST_AT_ONCE", "AsyncKeptSandbox", "AsyncSandbox", "Commands", "Output", "Stream", "finished"]

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


class Commands:
    """Commands in threads, none of which outlives who awaits it."""

    _name, _opened_by = "sandbox", "async with AsyncSandbox(…) as sandbox: …"

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._cancels: set[_Cancel] = set()

    def _launch(self, command: Command, sink: Sink | None, cancel: int) -> Run:
        raise NotImplementedError

    async def _begin(self, most: int, enter: Callable[[], object], leave: Callable[[], object]) -> None:
        """Make what commands need, in a thread of theirs. Raises `LaunchError`."""
        threads = ThreadPoolExecutor(most, thread_name_prefix="tidegate-sandbox")
        try:
            await finished(asyncio.get_running_loop().run_in_executor(threads, enter))
        except BaseException:
            threads.submit(leave)
            threads.shutdown(wait=False)
            raise
        self._threads = threads

    async def _end(self, leave: Callable[[], object]) -> None:
        """End the commands that are under way, and what they needed."""
        threads, self._threads = self._threads, None
        for cancel in self._cancels:
            cancel.ring()
        if threads is not None:
            last = threads.submit(leave)
            await finished(asyncio.get_running_loop().run_in_executor(None, threads.shutdown))
            last.result()

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
        """Run one command; see `Sandbox.run` and `KeptSandbox.run`. `on_output` is called on the loop."""
        command = Command.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        async with self._started(command, listen=on_output is not None) as stream:
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
        """Run one command and yield its output as a stream; leaving the block early ends the command.

        async with sandbox.stream(["make", "test"]) as running:
            async for stream, untrusted_data in running: …
            result = await running.result()
        """
        command = Command.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        async with self._started(command, listen=True) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def _started(self, command: Command, *, listen: bool) -> AsyncIterator[Stream]:
        if self._threads is None:
            raise LaunchError(f"the {self._name} is not open", hint=self._opened_by)
        loop, stream = asyncio.get_running_loop(), Stream()

        def work() -> Run:
            try:
                if cancel.rung:
                    raise Cancelled
                return self._launch(command, take if listen else None, cancel.descriptor)
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


class AsyncSandbox(Commands):
    """What sandboxes are made by. Takes what `Sandbox` takes. 64 commands run at once, others wait their turn."""

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
        boundary: BoundaryName = "gvisor",
        unsafe_boundary: bool = False,
    ) -> None:
        super().__init__()
        self._sandbox = Sandbox(
            policy, image=image, credentials=credentials, owner=owner, limits=limits, state=state, ahead=ahead,
            boundary=boundary, unsafe_boundary=unsafe_boundary,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        """Look at the machine and hold the image. Raises `LaunchError` for what is missing."""
        await self._begin(MOST_AT_ONCE, self._sandbox.__enter__, self._leave)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the commands that are under way, and let go of the image."""
        await self._end(lambda: None)
        await finished(asyncio.get_running_loop().run_in_executor(None, self._leave))

    @contextlib.asynccontextmanager
    async def keep(self) -> "AsyncIterator[AsyncKeptSandbox]":
        """Yield one sandbox for several commands, one after another; see `Sandbox.keep`."""
        async with AsyncKeptSandbox(self._sandbox.kept_one()) as kept:
            yield kept

    def _launch(self, command: Command, sink: Sink | None, cancel: int) -> Run:
        return self._sandbox.launch(command, sink=sink, cancel=cancel)

    def _leave(self) -> None:
        self._sandbox.__exit__(None, None, None)


class AsyncKeptSandbox(Commands):
    """`KeptSandbox` for asyncio. Its commands run one after another; what is cancelled ends its command."""

    def __init__(self, kept: KeptSandbox) -> None:
        super().__init__()
        self._kept = kept

    @property
    def session(self) -> str:
        """The session's id in the log; another after a reset, empty without a policy."""
        return self._kept.session

    def alive(self) -> bool:
        """Tell whether it takes commands. One that does not can be reset."""
        return self._kept.alive()

    async def reset(self) -> None:
        """Take another sandbox in its place, once what runs has ended; see `KeptSandbox.reset`."""
        if self._threads is None:
            raise LaunchError("the sandbox is not open", hint="async with sandbox.keep() as kept: …")
        await finished(asyncio.get_running_loop().run_in_executor(self._threads, self._kept.reset))

    async def __aenter__(self) -> Self:
        """Make it. Raises `LaunchError`."""
        # One thread, and the same for all: the sandbox lives no longer than the one that made it.
        await self._begin(1, self._kept.__enter__, self._leave)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what runs, and the sandbox."""
        await self._end(self._leave)

    def _launch(self, command: Command, sink: Sink | None, cancel: int) -> Run:
        return Run.of(self._kept.launch(command, stdin=command.stream(), sink=sink, cancel=cancel))

    def _leave(self) -> None:
        self._kept.__exit__(None, None, None)


class _Cancel:
    """A descriptor that is readable once a command is wanted no more."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        os.close(self.descriptor)


async def finished[T](future: asyncio.Future[T]) -> T:
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
