"""The end of one command in a sandbox that stays, over real pipes: nothing of it is the next one's."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import pytest

from tidegate_launcher.boundary import Sink
from tidegate_launcher.capture import Pipes
from tidegate_launcher.kept import init
from tidegate_launcher.kept.control import Control
from tidegate_launcher.kept.exchange import Exchange

ENDED = init.ANSWER.pack(init.ENDED, 0)


class Sandbox:
    """Its ends of all pipes, and who listens to them."""

    def __init__(self, pipes: Pipes, control: Control, pidfd: int) -> None:
        self._pipes, self._control, self._pidfd = pipes, control, pidfd
        self.answers = control._theirs[1]
        self.stdout = pipes.theirs[1]
        self.stopped = 0

    def exchange(self, *, limit: int = 1 << 20, sink: Sink | None = None) -> Exchange:
        """Return one that begins now."""

        def stop() -> None:
            self.stopped += 1

        return Exchange(self._pipes, self._control, pidfd=self._pidfd, limit=limit, stop=stop, sink=sink)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    pidfd = os.pidfd_open(os.getpid())
    try:
        with closing(Pipes(None)) as pipes, closing(Control()) as control:
            yield Sandbox(pipes, control, pidfd)
    finally:
        os.close(pidfd)


def test_output_that_nobody_takes_any_more_ends_the_sandbox(sandbox: Sandbox) -> None:
    """What is left in the pipe would be the next command's."""
    fcntl.fcntl(sandbox.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(sandbox.stdout, b"x" * 200_000)
    os.write(sandbox.answers, ENDED)
    taken: list[int] = []

    def take(_: Literal["stdout", "stderr"], data: bytes) -> None:
        if taken:
            raise BrokenPipeError
        taken.append(len(data))

    exchange = sandbox.exchange(sink=take)
    with pytest.raises(BrokenPipeError):
        exchange.run(10)
    assert exchange.over
    assert sandbox.stopped
