"""One sandbox that several commands share, until it is reset: `Sandbox.keep`.

    with Sandbox(policy="triage") as sandbox, sandbox.keep() as kept:
        kept.run(["git", "clone", url, "/work/repo"])
        result = kept.run(["python3", "-m", "pytest", "/work/repo"], timeout=120)
        kept.reset()

Files in /work and /tmp stay from one command to the next. What a command leaves running does not: it is ended with it.
A command that runs into a limit of time or output is ended, and the sandbox stays; one that uses up its memory takes
the sandbox along.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from tidegate.errors import LaunchError
from tidegate.sdk.command import Command, Run
from tidegate_launcher.boundary import Sink
from tidegate_launcher.kept.sandbox import Kept
from tidegate_launcher.order import Launched, Order

__all__ = ["KeptSandbox"]


class _Make(Protocol):
    def __call__(self, *, many: bool) -> contextlib.AbstractContextManager[Kept]: ...


class KeptSandbox:
    """Such a sandbox. One command at a time: another thread's, or a reset, is refused meanwhile."""

    def __init__(self, make: _Make, order: Callable[[Command], Order]) -> None:
        self._make, self._order = make, order
        self._stack = contextlib.ExitStack()
        self._sandbox: Kept | None = None
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        """Make it. Raises `LaunchError`."""
        self._sandbox = self._stack.enter_context(self._make(many=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, once what runs in another thread has ended; its session is revoked."""
        with self._busy:
            self._sandbox = None
            self._stack.close()

    @property
    def id(self) -> str:
        """The sandbox' id; another after a reset."""
        return self._now().id

    @property
    def session(self) -> str:
        """The session's id in the log; another after a reset, empty without a policy."""
        return self._now().session

    def alive(self) -> bool:
        """Tell whether it takes commands. One that does not can be reset."""
        sandbox = self._sandbox
        return sandbox is not None and sandbox.alive()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        inputs: Sequence[str | Path] = (),
        out: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_output: Sink | None = None,
    ) -> Run:
        """Run one command to its end, and to that of all it started. See `Sandbox.run`.

        What `on_output` raises ends the command, and is raised then; the sandbox stays. /in has the inputs of this
        command, and of no other. Raises `LaunchError`, also when the sandbox has ended.
        """
        command = Command.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        return Run.of(self.launch(command, stdin=command.stream(), sink=on_output))

    def launch(
        self, command: Command, *, stdin: BinaryIO | None = None, sink: Sink | None = None, cancel: int | None = None
    ) -> Launched:
        """Run a command; a descriptor `cancel` that becomes readable ends the command with `Cancelled`. See `run`."""
        with self._alone():
            return self._now().run(self._order(command), stdin=stdin, sink=sink, cancel=cancel)

    def reset(self) -> None:
        """Take another sandbox in its place: root, files, session, placeholders, addresses, connections, all of it.

        Raises `LaunchError` if that cannot be made; the old one has ended all the same.
        """
        with self._alone():
            with contextlib.suppress(LaunchError):  # a gate that is gone has no record: the next one will be refused
                self._now().forget()
            self._sandbox = None
            self._stack.close()
            self._sandbox = self._stack.enter_context(self._make(many=True))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others out: two would take each other's output, or one the next sandbox's for its own."""
        if not self._busy.acquire(blocking=False):
            raise LaunchError("the sandbox is at work: it runs one command at a time", hint="keep one for each thread")
        try:
            yield
        finally:
            self._busy.release()

    def _now(self) -> Kept:
        if self._sandbox is None:
            raise LaunchError("the sandbox has ended", hint="reset it, or make another: with sandbox.keep() as kept")
        return self._sandbox
