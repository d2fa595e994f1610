"""The keeper as a child of the supervisor: started, configured, asked, and brought back when it ends."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tidegate.errors import KeeperError, LaunchError, TidegateError
from tidegate.keeper.admin import AdminLink
from tidegate.keeper.protocol import AdminAsk
from tidegate.runtime.children import Backoff, first_of, socket_pair, start, stop
from tidegate.runtime.identity import Identity

__all__ = ["KeeperChild"]

_log = logging.getLogger(__name__)

_READY_SECONDS: Final = 15.0


class KeeperChild:
    """Runs the keeper. `settings()` gives (epoch, bytes) for one that starts now."""

    name = "keeper"

    def __init__(
        self,
        *,
        identity: Identity,
        minter: Identity,
        gate: Identity,
        state: Path,
        environment: Callable[[], Mapping[str, str]],
        settings: Callable[[], tuple[int, bytes]],
        on_fault: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._minter = minter
        self._gate = gate
        self._state = state
        self._environment = environment
        self._settings = settings
        self._on_fault = on_fault
        self._link: AdminLink | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure = ""
        self._started = False
        self._ending = False
        self.problem = "the keeper is not running"

    async def wait_ready(self) -> None:
        """Wait until the keeper is configured for the first time. Raises `LaunchError` when it cannot be."""
        await first_of(self._up, self._failed)
        if self._failure:
            raise LaunchError(self._failure)

    async def run(self) -> None:
        """Keep the keeper running until `end`."""
        backoff = Backoff()
        while not self._ending:
            begun = time.monotonic()
            why = await self._life()
            if self._ending:
                return
            if not self._started:
                self._failure = f"the keeper could not start: {why}"
                self._failed.set()
                return
            self.problem = f"the keeper ended: {why}"
            _log.error("the keeper ended: %s; starting it again", why)
            self._on_fault(self.problem)
            await asyncio.sleep(backoff.delay(ran=time.monotonic() - begun))

    async def ask[T](self, ask: AdminAsk, kind: type[T]) -> T:
        """Ask the keeper. Raises `KeeperError`."""
        if self._link is None:
            raise KeeperError(self.problem, hint="it is being started again; try in a moment")
        return await self._link.ask(ask, kind)

    async def prepare(self, epoch: int, settings: bytes) -> None:
        """Have the keeper check and hold the settings."""
        if self._link is None:
            raise KeeperError(self.problem)
        await self._link.configure(epoch, settings)

    async def commit(self, epoch: int) -> None:
        """Have it switch; a keeper that cannot is ended and comes back with the new settings."""
        try:
            if self._link is None:
                raise KeeperError(self.problem)
            await self._link.commit(epoch)
        except KeeperError as fault:
            _log.error("the keeper did not switch to epoch %d (%s); starting it again", epoch, fault)
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    async def end(self, *, grace: float = 3.0) -> None:
        """End it: it closes its chain and its store first."""
        self._ending = True
        if self._process is not None:
            await stop(self._process, grace=grace)

    async def _life(self) -> str:
        """One life of the keeper; return how it ended."""
        ours, theirs = socket_pair()
        link: AdminLink | None = None
        try:
            self._process = process = await self._start(theirs)
            link = AdminLink(ours)
            await link.start()
            async with asyncio.timeout(_READY_SECONDS):
                await self._configure(link)
        except (TidegateError, TimeoutError) as fault:
            if self._process is not None:
                status = await stop(self._process, grace=0.2)
                return f"{fault} (status {status})"
            return str(fault)
        else:
            self._link, self.problem, self._started = link, "", True
            self._up.set()
            return f"status {await process.wait()}"
        finally:
            self._link = None
            if link is not None:
                await link.close()
            ours.close()

    async def _configure(self, link: AdminLink) -> None:
        epoch, settings = self._settings()
        await link.configure(epoch, settings)
        await link.commit(epoch)

    async def _start(self, admin: socket.socket) -> asyncio.subprocess.Process:
        arguments = ["--admin-fd", str(admin.fileno())]
        return await start(
            "tidegate.keeper.__main__",
            arguments,
            environment=self._environment(),
            descriptors=[admin],
            identity=self._identity,
        )
