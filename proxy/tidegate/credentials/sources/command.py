"""A secret printed by a command; runs in the minter, never in the keeper."""

import asyncio
import contextlib
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
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            preexec_fn=_child,
        )
    except (OSError, ValueError, IndexError) as fault:
        raise CredentialError("the command cannot be started", where=where, hint=type(fault).__name__) from fault
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await _read(process)
            code = await process.wait()
    except TimeoutError as fault:
        raise CredentialError(f"the command took longer than {timeout_seconds:g} s", where=where) from fault
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if len(output) > MOST_BYTES:
        raise CredentialError(f"the command printed more than {MOST_BYTES} bytes", where=where)
    if code != 0:
        raise CredentialError(f"the command ended with {code}", where=where)
    return output


async def _read(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        return b""
    output = bytearray()
    while len(output) <= MOST_BYTES and (chunk := await process.stdout.read(MOST_BYTES)):
        output += chunk
    return bytes(output)
