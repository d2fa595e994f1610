"""One task of an agent's, and within it a scope for each tool call.

    with Session(policy="triage", credentials=["github"]) as session:
        with session.call("run_tests", "call_1", risk="high", credentials=[]) as call:
            result = call.run(["python3", "-c", code], timeout=10)
        transcript.write(session.redact(text))

What runs in a call has a session of its own, a child of the task's: the same policy, some or all of its credentials,
placeholders of its own, and `call` with the tool and the id on every record. All of them are over when the block is.
**Each command has a fresh sandbox**, and so a session and placeholders that no other command of the call has.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tidegate.errors import LaunchError
from tidegate.sdk.command import Command, Run
from tidegate.sdk.parent import ParentSession
from tidegate.sdk.risk import Risk, sandbox_for
from tidegate.sdk.sandbox import Sandbox
from tidegate_launcher.boundary import Sink
from tidegate_launcher.job import Limits

__all__ = ["Runner", "Session", "SessionCall"]


class Runner(Protocol):
    """What runs a command of a call; a descriptor `cancel` that becomes readable ends it with `Cancelled`."""

    def __call__(self, command: Command, *, sink: Sink | None = None, cancel: int | None = None) -> Run: ...  # noqa: D102


class SessionCall:
    """One tool call's scope; see `Session.call`. Several threads may run commands in it at once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._open = False

    def __enter__(self) -> Self:
        """Begin the call."""
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it: it runs nothing any more."""
        self._open = False

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
        """Run one command of the call, to its end; see `Sandbox.run`. `Run.session` is a child of the session.

        Raises `LaunchError`, also where the session has ended, or holds less than the call asks for.
        """
        if not self._open:
            raise LaunchError("the call is not open", hint="with session.call(…) as call: call.run(…)")
        command = Command.of(argv, timeout=timeout, stdin=stdin, inputs=inputs, out=out, environment=environment)
        return self._runner(command, sink=on_output)


class Session:
    """A session of the gate's that tool calls are made in; all but `ttl_seconds` is as in `Sandbox`.

    `ttl_seconds` ends it by itself, if its block has not by then. Several threads may make calls in it at once.
    """

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
        self._parent = ParentSession(policy, credentials=credentials, owner=owner, ttl_seconds=ttl_seconds, state=state)
        self._sandbox = Sandbox(policy, image=image, credentials=credentials, owner=owner, limits=limits, state=state)

    def __enter__(self) -> Self:
        """Hold the image and open the session. Raises `LaunchError`."""
        self._sandbox.__enter__()
        try:
            self._parent.open()
        except BaseException:
            self._sandbox.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session, and with it those of its calls: what still runs reaches nothing any more."""
        self.end()
        self._sandbox.__exit__(kind, value, trace)

    @property
    def id(self) -> str:
        """Its id in the log: `tidegate log --session ID` has its calls too."""
        return self._parent.id

    def call(self, tool: str, id: str, *, risk: Risk = "low", credentials: Sequence[str] | None = None) -> SessionCall:
        """Return the scope of one tool call, to be entered. `tool` and `id` may be a model's own words as they came.

        `credentials` are those of the session's that the call may use: None all of them, () none. With `risk="high"`
        each command has a fresh sandbox, also where others share one. Raises `LaunchError` for a word that is no text
        of 1 to 128 characters, and for a credential that the session does not hold.
        """
        return SessionCall(self.runner(tool, id, risk=risk, credentials=credentials))

    def runner(self, tool: str, id: str, *, risk: Risk, credentials: Sequence[str] | None) -> Runner:
        """Return what runs the commands of one tool call; see `call`. Raises as that does."""
        ask = self._parent.child(tool, id, credentials)
        return sandbox_for(risk, fresh=functools.partial(self._sandbox.launch, ask=ask))

    def end(self) -> None:
        """End the session now, and keep only the image: no call is made any more."""
        self._parent.close()

    def redact(self, text: str) -> str:
        """Return the text without what opens anything, for a transcript or a trace; see `tidegate.sdk.redact`."""
        return self._parent.redact(text)
