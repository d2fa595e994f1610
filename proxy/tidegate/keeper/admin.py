"""The keeper as the supervisor sees it: the admin link over an inherited socketpair."""

import asyncio
import socket

from tidegate.errors import KeeperError
from tidegate.keeper.link import Link
from tidegate.keeper.protocol import ADMIN_FRAME_BYTES, AdminAsk, Commit, Configure, KeeperStatus, Status
from tidegate.keeper.tasks import OwnedTasks
from tidegate.policy.reasons import Reason

__all__ = ["AdminLink"]


class AdminLink:
    """Asks the keeper on behalf of the operator. Faults and lost links raise `KeeperError`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._link: Link | None = None
        self._tasks = OwnedTasks()

    async def start(self) -> None:
        """Take the socket onto the running loop."""
        reader, writer = await asyncio.open_unix_connection(sock=self._sock, limit=1 << 20)
        self._link = Link(reader, writer, frame_bytes=ADMIN_FRAME_BYTES)
        self._tasks.spawn(self._link.read_forever(), name="keeper-admin")

    async def close(self) -> None:
        """End the link."""
        if self._link is not None:
            self._link.close()
        await self._tasks.close()

    async def ask[T](self, ask: AdminAsk, kind: type[T]) -> T:
        """Ask and return what the ask promises, for example `ask(SessionNew("p"), SessionOpened)`.

        Raises `KeeperError` with the keeper's words, or with the reason's text when it denies.
        """
        if self._link is None:
            raise KeeperError("the admin link is not started")
        result = await self._link.ask_admin(ask, kind)
        if isinstance(result, Reason):
            raise KeeperError(result.text)
        return result

    async def configure(self, epoch: int, settings: bytes, *, proxy_urls: tuple[str, ...] = ()) -> None:
        """Have the settings checked and held; nothing changes before `commit` (invariant 8).

        `proxy_urls`, without userinfo, are what the file's sessions get as their proxy, the nearest one; none: by name.
        """
        await self.ask(Configure(epoch, settings, proxy_urls), type(None))

    async def commit(self, epoch: int) -> None:
        """Switch to the settings held for `epoch`."""
        await self.ask(Commit(epoch), type(None))

    async def status(self) -> KeeperStatus:
        """Ask how the keeper is."""
        return await self.ask(Status(), KeeperStatus)
