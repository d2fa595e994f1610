"""The keeper as a child of the supervisor: started, configured, asked, and brought back when it ends."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tidegate.errors import KeeperError, TidegateError
from tidegate.keeper.admin import AdminLink
from tidegate.keeper.protocol import AdminAsk, FaultReport
from tidegate.runtime.children import Backoff, FirstStart, clean_environment, ending, socket_pair, start, stop
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
        proxy_urls: tuple[str, ...],
        environment: Callable[[], Mapping[str, str]],
        settings: Callable[[], tuple[int, bytes]],
        on_fault: Callable[[FaultReport], None],
    ) -> None:
        self._identity = identity
        self._minter = minter
        self._gate = gate
        self._state = state
        self._proxy_urls = proxy_urls
        self._environment = environment
        self._settings = settings
        self._on_fault = on_fault
        self._link: AdminLink | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._first = FirstStart()
        self._ending = asyncio.Event()
        self.problem = "the keeper is not running"

    async def wait_ready(self) -> None:
        """Wait until the keeper is configured for the first time. Raises `LaunchError` when it cannot be."""
        await self._first.wait()

    async def run(self) -> None:
        """Keep the keeper running until `end`."""
        backoff = Backoff()
        while not self._ending.is_set():
            begun = time.monotonic()
            why = await self._life()
            if self._ending.is_set():
                return
            if not self._first.made:
                self._first.fail(f"the keeper could not start: {why}")
                return
            self.problem = f"{why}; starting again"
            _log.error("%s; starting the keeper and its minter again", why)
            self._on_fault(FaultReport("keeper_ended", self.problem))
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
        await self._link.configure(epoch, settings, proxy_urls=self._proxy_urls)

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
        self._ending.set()
        if self._process is not None:
            await stop(self._process, grace=grace)

    async def _life(self) -> str:
        """One life of the keeper and its minter; return how it ended.

        The two live and die together, since their link is made once, before the keeper has any secret.
        """
        async with AsyncExitStack() as stack:
            try:
                ours, process, minter = await self._start(stack)
                link = await self._open(stack, ours)
            except (TidegateError, TimeoutError) as fault:
                return str(fault) or f"it was not ready within {_READY_SECONDS:g} s"
            self._link, self.problem = link, ""
            self._first.succeed()
            return await _first_end({"keeper": process, "minter": minter})

    async def _open(self, stack: AsyncExitStack, sock: socket.socket) -> AdminLink:
        """Connect and configure it."""
        link = AdminLink(sock)
        stack.push_async_callback(link.close)
        stack.callback(self._forget)
        await link.start()
        epoch, settings = self._settings()
        async with asyncio.timeout(_READY_SECONDS):
            await link.configure(epoch, settings, proxy_urls=self._proxy_urls)
            await link.commit(epoch)
        return link

    def _forget(self) -> None:
        self._link = None

    async def _start(
        self, stack: AsyncExitStack
    ) -> tuple[socket.socket, asyncio.subprocess.Process, asyncio.subprocess.Process]:
        """Start both; the stack ends the keeper first, which still writes, then the minter."""
        environment = self._environment()
        keeper_mint, minter_mint = socket_pair()
        ours, admin = socket_pair()
        minter = await start(
            "tidegate.keeper.minter",
            ["--fd", str(minter_mint.fileno())],
            # What a credential's command needs is in its own files: no variable of ours goes there.
            environment=clean_environment(environment),
            descriptors=[minter_mint],
            identity=self._minter,
        )
        stack.push_async_callback(stop, minter, grace=0.5)
        arguments = ["--admin-fd", str(admin.fileno()), "--minter-fd", str(keeper_mint.fileno())]
        arguments += ["--state", str(self._state), "--gate-uid", str(self._gate.uid)]
        self._process = keeper = await start(
            "tidegate.keeper.__main__",
            arguments,
            environment=environment,
            descriptors=[admin, keeper_mint],
            identity=self._identity,
        )
        stack.push_async_callback(stop, keeper, grace=2.0)
        return ours, keeper, minter


async def _first_end(processes: Mapping[str, asyncio.subprocess.Process]) -> str:
    """Wait until one of them ends; return which, and how."""
    async with asyncio.TaskGroup() as group:
        waits = {group.create_task(process.wait()): name for name, process in processes.items()}
        done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in others:
            wait.cancel()
    return ", ".join(f"the {waits[wait]} {ending(wait.result())}" for wait in done)
