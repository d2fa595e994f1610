"""A secret printed by a command; runs in the minter, never in the keeper."""

import asyncio
import contextlib
import io
import os
import resource
import signal
from collections.abc import Sequence

from tidegate.credentials.sources.value import MOST_BYTES
from tidegate.errors import CredentialError

__all__ = ["run_command"]

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"}


def _child() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


async def run_command(argv: Sequence[str], *, timeout_seconds: float) -> bytes:
    """Run the command, without a shell and with a bare environment, and return what it prints.

    Its whole process group ends when it prints too much or too late. What it says on stderr is
    dropped: it may quote the secret. Raises `CredentialError`.
    """
    where = argv[0] if argv else "command"
    # A pipe of our own: asyncio's waits for its end even when the process is gone and something else holds it.
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(theirs, True)
    with os.fdopen(ours, "rb", buffering=0) as output:
        try:
            process = await _start(argv, theirs, where)
        finally:
            os.close(theirs)
        try:
            async with asyncio.timeout(timeout_seconds):
                printed = await _read(output, where)
                code = await process.wait()
        except TimeoutError as fault:
            raise CredentialError(f"the command took longer than {timeout_seconds:g} s", where=where) from fault
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code != 0:
        raise CredentialError(f"the command ended with {code}", where=where)
    return printed


async def _start(argv: Sequence[str], stdout: int, where: str) -> asyncio.subprocess.Process:
    if not argv:
        raise CredentialError("the command cannot be started", where=where, hint="it is empty")
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            preexec_fn=_child,
        )
    except (OSError, ValueError) as fault:
        raise CredentialError("the command cannot be started", where=where, hint=type(fault).__name__) from fault


async def _read(output: io.RawIOBase, where: str) -> bytes:
    """Read to the end; raises `CredentialError` as soon as there is too much."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MOST_BYTES)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
    printed = bytearray()
    try:
        while chunk := await reader.read(MOST_BYTES):
            printed += chunk
            if len(printed) > MOST_BYTES:
                raise CredentialError(f"the command printed more than {MOST_BYTES} bytes", where=where)
    finally:
        transport.close()
    return bytes(printed)
