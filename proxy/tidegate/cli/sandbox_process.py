"""The process behind a sandbox that is kept: it holds the sandbox, and does what it is asked on its socket.

    python -m tidegate.cli.sandbox_process NUMBER <PLAN

It is told what to make on stdin, and says on the descriptor of this number when it stands, or why not. It ends when it
is told to, by `rm` or a signal, and when nobody has asked it anything for as long as the plan says.
"""

import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TextIO

import msgspec

from tidegate.cli.interrupt import Interrupted, interruptible
from tidegate.errors import TidegateError
from tidegate.sdk.command import Command
from tidegate.sdk.kept_sandbox import KeptSandbox
from tidegate.sdk.sandbox import Sandbox
from tidegate_launcher.boundary import Cancelled
from tidegate_launcher.job import Limits
from tidegate_launcher.kept import wire
from tidegate_launcher.kept.names import Names
from tidegate_launcher.kept.wire import About, Answer, Fault, Question, opened, put
from tidegate_launcher.order import Launched
from tidegate_launcher.passing import Passing
from tidegate_launcher.place import LaunchPlace

__all__ = ["Plan", "names"]

_HEAR_SECONDS: Final = 5.0
_SAY_SECONDS: Final = 5.0
_BACKLOG: Final = 16
_CREDENTIALS: Final = struct.Struct("3i")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be kept, and for how long without a question, in seconds."""

    name: str
    policy: str | None
    credentials: tuple[str, ...]
    owner: str
    image: str
    limits: Limits
    state: str
    idle: float


def names() -> Names:
    """Return the names of this user's sandboxes. Raises `LaunchError`."""
    return Names(LaunchPlace.of_this_user().below("kept"))


class _Desk:
    def __init__(self, plan: Plan, kept: KeptSandbox) -> None:
        self._plan, self._kept = plan, kept
        self._born = time.time()

    def serve(self, listener: socket.socket) -> None:
        """Answer until nobody has asked for long enough, or the end is asked for."""
        listener.settimeout(self._plan.idle)
        while True:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                return
            with sock, contextlib.suppress(OSError):
                if not self._one(sock):
                    return

    def _one(self, sock: socket.socket) -> bool:
        """Answer one question; tell whether there may be more."""
        sock.settimeout(_HEAR_SECONDS)
        _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.geteuid():
            return True
        try:
            with opened(sock) as (question, descriptors):
                sock.settimeout(None)
                answer = self._answer(question, descriptors, sock)
                sock.settimeout(_SAY_SECONDS)  # who does not listen keeps nobody else from being heard
                put(sock, answer)
                return question.act != "rm"
        except Cancelled:
            return True  # nobody waits for the answer
        except TidegateError as fault:
            put(sock, Answer(fault=Fault.of(fault)))
            return True

    def _answer(self, question: Question, descriptors: list[int], sock: socket.socket) -> Answer:
        if question.act == "exec" and question.command is not None:
            return Answer(launched=self._run(question.command, descriptors, sock.fileno()))
        if question.act == "reset":
            self._kept.reset()
        return Answer(about=self.about())

    def about(self) -> About:
        alive = self._kept.alive()
        return About(
            name=self._plan.name,
            id=self._kept.id if alive else "",
            session=self._kept.session if alive else "",
            policy=self._plan.policy,
            image=self._plan.image,
            born=self._born,
            alive=alive,
            pid=os.getpid(),
        )

    def _run(self, asked: wire.Command, descriptors: list[int], cancel: int) -> Launched:
        stdin, stdout, stderr = descriptors
        command = Command.of(
            asked.argv,
            timeout=asked.seconds,
            inputs=asked.inputs,
            out=asked.out,
            environment=dict(asked.environment),
        )
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open(stdin, "rb", buffering=0, closefd=False))
            if not asked.passes:
                return self._kept.launch(command, stdin=source, cancel=cancel)
            streams: dict[Literal["stdout", "stderr"], TextIO | None] = {
                "stdout": stack.enter_context(open(stdout, "w", closefd=False)),
                "stderr": stack.enter_context(open(stderr, "w", closefd=False)),
            }
            passing = stack.enter_context(Passing(streams, cancel=cancel))
            return self._kept.launch(command, stdin=source, sink=passing.take, cancel=cancel)


def main() -> int:
    """Keep a sandbox until its end."""
    with open(int(sys.argv[1]), "wb", buffering=0) as ready:
        try:
            plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
            with interruptible(), _kept(plan) as (desk, listener):
                ready.write(msgspec.msgpack.encode(Answer(about=desk.about())))
                ready.close()
                desk.serve(listener)
        except Interrupted as told:
            return told.exit_code
        except TidegateError as fault:
            if not ready.closed:
                ready.write(msgspec.msgpack.encode(Answer(fault=Fault.of(fault))))
            return 1
    return 0


@contextlib.contextmanager
def _kept(plan: Plan) -> Iterator[tuple[_Desk, socket.socket]]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(names().claim(plan.name))
        sandbox = stack.enter_context(
            Sandbox(
                plan.policy,
                image=plan.image,
                credentials=plan.credentials,
                owner=plan.owner,
                limits=plan.limits,
                state=Path(plan.state),
            )
        )
        kept = stack.enter_context(sandbox.keep())
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        yield _Desk(plan, kept), listener


if __name__ == "__main__":
    sys.exit(main())
