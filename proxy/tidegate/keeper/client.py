"""The keeper as a worker sees it: asks, pushes, and a link that comes back by itself.

Theory of operation. One link at a time. A ping a second tells a keeper that hangs from one that
works; from the first missed one the clock of `down_seconds` runs. On a new link the client opens
again every session it had opened, by the same token and source, since the keeper lends and signs
only for sessions opened on that very link; what a restart has changed arrives as the pushes that
were missed. While the link is down every ask is answered by `KEEPER_UNAVAILABLE` (invariant 2).
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegate.clock import SYSTEM, Clock
from tidegate.errors import KeeperError
from tidegate.keeper.link import Link, LinkLost
from tidegate.keeper.protocol import (
    FRAME_BYTES,
    Announce,
    Checkpoint,
    Draw,
    EpochPush,
    Hello,
    Lease,
    LeaseAdded,
    LeaseGrant,
    Number,
    Numbered,
    OpenSession,
    Ping,
    Pong,
    Push,
    SessionEnded,
    SessionFrozen,
    SessionGrant,
    SignLeaf,
    Took,
    WorkerAsk,
)
from tidegate.keeper.tasks import OwnedTasks
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

__all__ = ["KeeperClient"]

_PING_SECONDS = 1.0
_ASKS_AT_ONCE = 256
_LEASES_AT_ONCE = 128
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 1.0


class KeeperClient:
    """Asks the keeper on behalf of one worker; lives on the worker's loop.

    `on_push` is called on the loop, must not block, and gets each push once; it should not raise. An ask returns a
    `Reason` when it is denied or the keeper cannot be reached; it does not raise.
    """

    def __init__(self, path: Path, worker: str, on_push: Callable[[Push], None], clock: Clock = SYSTEM) -> None:
        self._path = path
        self._hello = Hello(worker, secrets.token_hex(16))
        self._on_push = on_push
        self._clock = clock
        self._link: Link | None = None
        self._down_since: float | None = clock.boot()
        self._up = asyncio.Event()
        self._opened: dict[SessionId, tuple[OpenSession, SessionGrant]] = {}
        self._chains: list[str] = []
        self._tasks = OwnedTasks(self._fault)
        # Apart, since a lease may wait for its source; below what the keeper cuts a link for.
        self._asking = asyncio.Semaphore(_ASKS_AT_ONCE)
        self._leasing = asyncio.Semaphore(_LEASES_AT_ONCE)
        self.problem: str | None = None

    async def start(self) -> None:
        """Begin to connect; does not wait for the keeper (see `wait_up`)."""
        self._tasks.spawn(self._keep_connected(), name="keeper-link")

    async def wait_up(self, seconds: float) -> bool:
        """Wait until the link is up, at most so long; say if it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._up.wait()
        return self._up.is_set()

    async def close(self) -> None:
        """End the link and its tasks."""
        await self._tasks.close()
        if self._link is not None:
            self._link.close()

    def down_seconds(self) -> float:
        """Return how long the keeper has not answered; 0.0 when it does."""
        return 0.0 if self._down_since is None else max(self._clock.boot() - self._down_since, 1e-6)

    async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason:
        """Admit a connection; from then on this link may lease, sign and draw for its session."""
        ask = OpenSession(token, source, listener)
        grant = await self._ask(ask, SessionGrant)
        if isinstance(grant, SessionGrant):
            self._opened[grant.id] = (ask, grant)
        return grant

    async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason:
        """Borrow a credential for a session opened here; the first use fetches it from its source."""
        async with self._leasing:
            return await self._ask(Lease(session, credential), LeaseGrant)

    async def sign_leaf(
        self, session: SessionId, name: HostName, public_key_der: bytes, *, denied: bool
    ) -> tuple[bytes, ...] | Reason:
        """Have our public key (DER SPKI, P-256) certified for `name`; DER chain, leaf first, without the root."""
        return await self._ask(SignLeaf(session, name, public_key_der, denied), tuple[bytes, ...])

    async def number(self, session: SessionId, name: HostName) -> int | Reason:
        """Return the number of a name of a session opened here, from 1."""
        return await self._ask(Number(session, name), int)

    async def numbered(self, session: SessionId, number: int) -> str | Reason:
        """Return which name of a session opened here has a number; empty when none has."""
        return await self._ask(Numbered(session, number), str)

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason:
        """Draw up to `amount` of a budget, at most a slice; return what was granted, 0 when it is used up."""
        return await self._ask(Draw(session, kind, key, amount, limit), int)

    async def announce(self, chain: str) -> Reason | None:
        """Tell the keeper that this worker begins an audit chain, so that its loss can be seen."""
        self._chains.append(chain)
        return await self._ask(Announce(chain), type(None))

    async def checkpoint(self, chain: str, seq: int, head: str, *, last: bool = False) -> bytes | Reason:
        """Have the head of a chain signed; the keeper signs forward steps only. `last`: the chain ends there."""
        return await self._ask(Checkpoint(chain, seq, head, last), bytes)

    def forget(self, session: SessionId) -> None:
        """Do not open this session again on the next link (its last connection here is gone)."""
        self._opened.pop(session, None)

    async def _ask[T](self, ask: WorkerAsk, kind: type[T]) -> T | Reason:
        link = self._link
        if link is None or not self._up.is_set():
            return Reason.KEEPER_UNAVAILABLE
        try:
            async with self._asking if not isinstance(ask, Lease) else contextlib.nullcontext():
                return await link.ask_worker(ask, kind)
        except LinkLost:
            return Reason.KEEPER_UNAVAILABLE
        except (KeeperError, msgspec.MsgspecError, LookupError) as fault:
            self.problem = str(fault)
            return Reason.INTERNAL_FAULT

    def _fault(self, fault: BaseException) -> None:
        self.problem = f"{type(fault).__name__} on the keeper link"

    # --- the link ------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                if await self._one_link():
                    wait = _FIRST_WAIT
            except* (OSError, KeeperError, msgspec.MsgspecError, LookupError) as faults:
                self.problem = str(faults.exceptions[0])
            except* Exception as faults:  # whatever it was: without a link this worker is worth nothing
                self._fault(faults.exceptions[0])
            self._mark_down()
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _one_link(self) -> bool:
        """Serve one link to its end; return True if it ever was up."""
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_unix_connection(str(self._path), limit=FRAME_BYTES)
        link = Link(reader, writer, frame_bytes=FRAME_BYTES, on_push=lambda push: self._pushed(push, link))
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(link.read_forever())
                try:
                    await self._greet(link)
                    await self._ping_until_lost(link, reading)
                finally:
                    link.close()
                    reading.cancel()
        except* LinkLost:
            pass
        return self._down_since is None

    async def _greet(self, link: Link) -> None:
        pong = await link.ask_worker(self._hello, Pong)
        if isinstance(pong, Reason):
            raise KeeperError("the keeper refuses this worker")
        for chain in self._chains:
            await link.ask_worker(Announce(chain), type(None))
        for ask, old in list(self._opened.values()):
            self._reopened(link, old, await link.ask_worker(ask, SessionGrant))
        self._pushed(EpochPush(pong.epoch), link)
        self._link, self._down_since, self.problem = link, None, None
        self._up.set()

    def _reopened(self, link: Link, old: SessionGrant, grant: SessionGrant | Reason) -> None:
        sid = old.id
        if isinstance(grant, Reason) or _identity(grant) != _identity(old):
            self._pushed(SessionEnded(sid, "gone"), link)
            return
        self._pushed(SessionFrozen(sid, grant.frozen), link)
        for secret in grant.secrets:
            self._pushed(LeaseAdded(sid, secret), link)

    async def _ping_until_lost(self, link: Link, reading: asyncio.Task[None]) -> None:
        while not reading.done():
            await link.ask_worker(Ping(), Pong)
            await asyncio.wait([reading], timeout=_PING_SECONDS)

    def _pushed(self, push: Push, link: Link) -> None:
        if isinstance(push, SessionEnded):
            self._opened.pop(push.sid, None)
        try:
            self._on_push(push)
        except Exception as fault:  # not acknowledged: the keeper cuts this worker off from the session
            self._fault(fault)
            return
        if isinstance(push, LeaseAdded):
            link.tell(Took(push.sid, push.secret.lease))

    def _mark_down(self) -> None:
        self._link = None
        self._up.clear()
        if self._down_since is None:
            self._down_since = self._clock.boot()


def _identity(grant: SessionGrant) -> tuple[object, ...]:
    """Return what must not change under a worker; a session where it did is opened anew."""
    return grant.id, grant.owner, grant.policy, grant.source, grant.holdings
