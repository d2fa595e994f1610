"""Start the supervisor's children: a clean environment, one interpreter form, named descriptors."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.runtime.identity import Identity

__all__ = [
    "Backoff",
    "FirstStart",
    "clean_environment",
    "ending",
    "first_of",
    "interpreter",
    "socket_pair",
    "start",
    "stop",
]

_KEPT: Final = (
    "LANG",
    "LC_ALL",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TIDEGATE_LOG_FORMAT",
    "TIDEGATE_TRACEBACK",
    "TZ",
)
"""The only variables of the caller that a child sees. Everything else may be a secret (invariant 5)."""


class Backoff:
    """Delays between restarts: short at first, doubling, forgotten after a while of good running."""

    def __init__(self, *, first: float = 0.1, most: float = 5.0, stable: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._stable = stable
        self._next = first

    def delay(self, *, ran: float) -> float:
        """Return how long to wait before the next start, given how many seconds the last one ran."""
        if ran >= self._stable:
            self._next = self._first
        delay, self._next = self._next, min(self._next * 2, self._most)
        return delay


class FirstStart:
    """Whether a child was ever ready. One that never was ends the gate; one that was is started again."""

    def __init__(self) -> None:
        self._made = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure = ""

    @property
    def made(self) -> bool:
        """Whether it was ready once."""
        return self._made.is_set()

    def succeed(self) -> None:
        """Take note that it is ready."""
        self._made.set()

    def fail(self, why: str) -> None:
        """Take note that it never will be; the first reason stays."""
        self._failure = self._failure or why
        self._failed.set()

    async def wait(self) -> None:
        """Wait until it is ready for the first time. Raises `LaunchError` when it cannot be."""
        await first_of(self._made, self._failed)
        if self._failure:
            raise LaunchError(self._failure)


def clean_environment(environ: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the child's environment: the few names that are safe, and those named in `extra`."""
    kept = {name: environ[name] for name in (*_KEPT, *extra) if name in environ}
    if environ.get("PYTHONPATH"):
        # Absolute, since a relative entry would follow the working directory.
        parts = environ["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts if part)
    return kept


def interpreter() -> list[str]:
    """Return the command that every process of the gate starts with.

    `-O`: no guard is an assert, and mitmproxy's own cost time. `-P`: the working directory may be the
    sandbox's workspace and must not be importable.
    """
    return [sys.executable, "-O", "-P", "-m"]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair: ours, and the child's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


async def start(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    descriptors: Sequence[socket.socket],
    identity: Identity | None = None,
) -> asyncio.subprocess.Process:
    """Start `python -m module` and close our copies of its descriptors.

    With an identity the module is entered through `tidegate.runtime.enter`, which imports first and drops then.
    Raises `LaunchError`.
    """
    command = interpreter()
    if identity is None:
        command += [module]
    else:
        command += ["tidegate.runtime.enter", str(os.getpid()), str(identity.uid), str(identity.gid), module]
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            env=dict(environment),
            pass_fds=[sock.fileno() for sock in descriptors],
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the supervisor, which then drains the children
        )
    except OSError as fault:
        raise LaunchError(f"cannot start {module}: {fault.strerror}", where=command[0]) from fault
    finally:
        for sock in descriptors:
            sock.close()


def ending(status: int) -> str:
    """Say how a process ended, from its status as `waitstatus_to_exitcode` gives it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def stop(process: asyncio.subprocess.Process, *, grace: float) -> int:
    """End a child: SIGTERM, then SIGKILL after `grace` seconds. Return its status."""
    if process.returncode is None:
        _signal(process, hard=False)
        try:
            async with asyncio.timeout(grace):
                return await process.wait()
        except TimeoutError:
            _signal(process, hard=True)
    return await process.wait()


def _signal(process: asyncio.subprocess.Process, *, hard: bool) -> None:
    try:
        process.kill() if hard else process.terminate()
    except ProcessLookupError:
        pass  # it ended between the check and the signal
