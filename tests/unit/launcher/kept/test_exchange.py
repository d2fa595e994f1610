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
from tidegate_launcher.readiness import is_readable

ENDED = init.ANSWER.pack(init.ENDED, 0)


class Sandbox:
    """Its ends of all pipes, and who listens to them."""

    def __init__(self, pipes: Pipes, control: Control, pidfd: int) -> None:
        self._pipes, self._control, self._pidfd = pipes, control, pidfd
        self.answers = control._theirs[1]
        self.stdout, self.pipe = pipes.theirs[1], pipes.outputs["stdout"]
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


def test_output_that_nobody_takes_is_not_the_next_commands(sandbox: Sandbox) -> None:
    fcntl.fcntl(sandbox.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(sandbox.stdout, b"x" * 200_000)
    os.write(sandbox.answers, ENDED)
    taken: list[int] = []

    def take(_: Literal["stdout", "stderr"], data: bytes) -> None:
        if taken:
            raise BrokenPipeError
        taken.append(len(data))

    exchange = sandbox.exchange(sink=take)
    exchange.run(10)
    assert isinstance(exchange.refused, BrokenPipeError)
    assert not is_readable(sandbox.pipe)
    assert (exchange.over, sandbox.stopped) == (False, 0)


def test_who_is_told_to_end_takes_the_sandbox_along(sandbox: Sandbox) -> None:
    fcntl.fcntl(sandbox.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(sandbox.stdout, b"x" * 200_000)
    os.write(sandbox.answers, ENDED)

    def take(_: Literal["stdout", "stderr"], data: bytes) -> None:
        raise KeyboardInterrupt

    exchange = sandbox.exchange(sink=take)
    with pytest.raises(KeyboardInterrupt):
        exchange.run(10)
    assert (exchange.over, sandbox.stopped) == (True, 1)
