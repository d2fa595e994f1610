"""The minter: runs one source's call at a time in a child of its own, under a uid of its own.

Run as `python -m tidegate.keeper.minter --fd N`, started by the supervisor before it has any
secret, so that what a fallen child can read is its own input and nothing of the keeper's.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.credentials.sources.command import run_command
from tidegate.errors import CredentialError
from tidegate.frame import read_body
from tidegate.keeper.harden import hide_memory
from tidegate.keeper.tasks import OwnedTasks
from tidegate.keeper.wire import frame
from tidegate.secret import Secret

__all__ = ["MINT_FRAME_BYTES", "Mint", "Minted", "main", "serve"]

MINT_FRAME_BYTES: Final = 256 * 1024
_AT_ONCE: Final = 8


class Mint(msgspec.Struct, frozen=True):
    """Run a command and send back what it prints."""

    id: int
    argv: tuple[str, ...]
    timeout_seconds: float


class Minted(msgspec.Struct, frozen=True):
    """What it printed, or what went wrong."""

    id: int
    output: Secret | None = None
    fault: str | None = None


_calls = msgspec.msgpack.Decoder(Mint)


async def serve(sock: socket.socket) -> None:
    """Answer the keeper until it closes the link."""
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MINT_FRAME_BYTES)
    slots = asyncio.Semaphore(_AT_ONCE)
    tasks = OwnedTasks()
    try:
        while True:
            call = _calls.decode(await read_body(reader, MINT_FRAME_BYTES))
            tasks.spawn(_answer(call, writer, slots), name="mint")
    except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
        return
    finally:
        await tasks.close()
        writer.close()


async def _answer(call: Mint, writer: asyncio.StreamWriter, slots: asyncio.Semaphore) -> None:
    async with slots:
        try:
            output = await run_command(call.argv, timeout_seconds=call.timeout_seconds)
            minted = Minted(call.id, Secret(output))
        except CredentialError as fault:
            minted = Minted(call.id, fault=str(fault))
    writer.write(frame(minted))
    with contextlib.suppress(OSError):
        await writer.drain()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the minter; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tidegate.keeper.minter", description="Run the calls of credential sources.")
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor ends us by closing the link, or by SIGTERM
    logging.basicConfig(format="tidegate: %(levelname)s: minter: %(message)s")
    hide_memory()
    sock = socket.socket(fileno=options.fd)
    sock.set_inheritable(False)
    asyncio.run(serve(sock))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
