"""What is launched, and what everybody is who launches it.

Another way to launch is one class with `once`, and `prepare` where something must stand before (a live sandbox, a pool
that is filled); `suite.races` has the list.
"""

import abc
import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

__all__ = ["FIRST_OUTPUT", "TO_THE_END", "LaunchContender", "Task", "Unusable", "timed"]

_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0
_CHUNK: Final = 65536


class Unusable(Exception):
    """A launch that did not do what it was to do: its time means nothing."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A command, what it says, and when the clock stops: at its first byte, or when nothing of the launch is left."""

    argv: tuple[str, ...]
    says: bytes = b""
    until_first: bool = False

    def seconds(self, began: float, first: float | None, ended: float) -> float:
        """Return what the clock shows. Raises `Unusable` when there was nothing to stop it."""
        if not self.until_first:
            return ended - began
        if first is None:
            raise Unusable("it said nothing")
        return first - began


TO_THE_END: Final = Task(("/bin/true",))
FIRST_OUTPUT: Final = Task(("/bin/echo", "here"), b"here\n", until_first=True)


@dataclasses.dataclass(kw_only=True)
class LaunchContender(abc.ABC):
    """One way to launch a task. `against` names another whose time is 1, `most` is the ratio that it may reach."""

    name: str
    task: Task
    against: str = ""
    most: float | None = None

    def prepare(self, stack: contextlib.ExitStack) -> None:  # noqa: B027 (for most there is nothing to make)
        """Make what is there before a launch, and is not measured; what undoes it goes onto the stack.

        Raises `LaunchError`.
        """

    @abc.abstractmethod
    def once(self) -> float:
        """Launch once, and return the seconds. Raises `Unusable`, and what a launch raises: this one has no time."""


def timed(line: Sequence[str], task: Task, *, env: Mapping[str, str], cwd: Path) -> float:
    """Run a program that launches a task, and return its seconds. Raises `Unusable`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        line, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            said, first = _first(process.stdout)
            rest, stderr = process.communicate(timeout=_SECONDS)
        except BaseException:
            _end(process)
            raise
        ended = time.perf_counter()
    if process.returncode or said + rest != task.says:
        told = stderr.decode("utf-8", "replace").strip()[-500:]
        raise Unusable(f"{line[0]} ended with {process.returncode}, said {said + rest!r}: {told}")
    return task.seconds(began, first, ended)


def _first(stream: IO[bytes] | None) -> tuple[bytes, float | None]:
    """Return what comes first, and when; nothing and None when the end does."""
    if stream is None:
        raise TypeError("there is no pipe")
    if not select.select([stream], [], [], _SECONDS)[0]:
        raise Unusable(f"nothing came within {_SECONDS:g} s")
    said = os.read(stream.fileno(), _CHUNK)
    return said, time.perf_counter() if said else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started; politely first, so that it can undo what it made."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return
