"""The keeper's side of the minter link."""

import asyncio
import socket

import msgspec

from tidegate.credentials.sources.value import secret_from
from tidegate.errors import CredentialError
from tidegate.frame import read_body
from tidegate.keeper.minter import MINT_FRAME_BYTES, Mint, Minted
from tidegate.keeper.tasks import OwnedTasks
from tidegate.keeper.wire import decode_result, frame
from tidegate.secret import Secret

__all__ = ["MinterLink"]

_GRACE_SECONDS = 2.0  # beyond the command's own time-out


class MinterLink:
    """Has commands run by the minter. `alive` turns False when it is gone, and stays so."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: dict[int, asyncio.Future[Minted]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks = OwnedTasks()
        self._last_id = 0
        self.alive = True

    async def start(self) -> None:
        """Take the socket onto the running loop."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock, limit=MINT_FRAME_BYTES)
        self._tasks.spawn(self._read(reader), name="minter-link")

    async def close(self) -> None:
        """End the link, and with it the minter."""
        await self._tasks.close()
        if self._writer is not None:
            self._writer.close()

    async def command(self, argv: tuple[str, ...], *, timeout_seconds: float, unsafe_short: bool) -> Secret:
        """Return what the command prints, as a secret; raises `CredentialError`."""
        where = argv[0] if argv else "command"
        if self._writer is None or not self.alive:
            raise CredentialError("the minter is not running", where=where)
        self._last_id += 1
        call = Mint(self._last_id, argv, timeout_seconds)
        waiter: asyncio.Future[Minted] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = waiter
        try:
            async with asyncio.timeout(timeout_seconds + _GRACE_SECONDS):
                self._writer.write(frame(call))
                await self._writer.drain()
                minted = await waiter
        except (TimeoutError, OSError) as fault:
            raise CredentialError("the minter does not answer", where=where) from fault
        finally:
            self._waiting.pop(call.id, None)
        if minted.output is None:
            raise CredentialError(minted.fault or "the minter sent nothing", where="source.command")
        return secret_from(minted.output.reveal(), where=where, unsafe_short=unsafe_short)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                minted = decode_result(await read_body(reader, MINT_FRAME_BYTES), Minted)
                waiter = self._waiting.pop(minted.id, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(minted)
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            return
        finally:
            self.alive = False
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(CredentialError("the minter is gone"))
