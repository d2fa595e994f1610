"""Who serves a session, and who has taken a fresh secret to search for: no lease before all have.

Theory of operation. The sandbox may hold a stream open through one worker and send a request through another.
If the second one got a fresh secret at once, the upstream could send it back on the stream before the first one
searches for it. So a lease is lent only when every worker that serves the session has acknowledged the push.

| a worker | then |
|---|---|
| acknowledges within `WAIT_SECONDS` | the lease is lent |
| does not | it is cut off from the session: told that it is over, given nothing for it; the lease is lent |
| has lost its link and is back in time | the secret was in what it was granted anew; its first ping says so |
| has lost its link and is not back | no lease until it is, or for `STRAY_SECONDS`: it has cut all by then |
| is gone as a process | it serves nothing |

After a start of the keeper over the state of another one nobody knows who served what: leases wait until the
workers had time to come back (`ready`).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final, Protocol, final

from tidegate.clock import Clock
from tidegate.session.identity import SessionId

__all__ = ["STRAY_SECONDS", "WAIT_SECONDS", "Muster", "Server"]

WAIT_SECONDS: Final = 1.0
STRAY_SECONDS: Final = 7.0
"""More than the grace after which a worker without a keeper cuts every connection (`KEEPER_GRACE_SECONDS`, a tick)."""
_RETURN_SECONDS: Final = 1.5  # the longest pause of a worker between two tries, and some
_LOOK_SECONDS: Final = 0.05
_MOST_STRAYS: Final = 256


class Server(Protocol):
    """A worker's link, as far as it matters here."""

    opened: set[SessionId]

    @property
    def claim(self) -> str: ...  # noqa: D102 - the same over all links of one worker
    @property
    def pid(self) -> int: ...  # noqa: D102 - 0 if it cannot be told


class _Stray:
    def __init__(self, server: Server, opened: set[SessionId], at: float) -> None:
        self.pid = server.pid
        self.opened = opened
        self.at = at


class _Wait:
    def __init__(self, session: SessionId, lease: str, claims: set[str]) -> None:
        self.session = session
        self.lease = lease
        self.claims = claims
        self.changed = asyncio.Event()

    def drop(self, claim: str) -> None:
        self.claims.discard(claim)
        self.changed.set()


@final
class Muster:
    """The links that are up and those that were. `on_cut` is told of a worker and the session it is cut off from."""

    def __init__(self, clock: Clock, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._servers: set[Server] = set()
        self._strays: dict[str, _Stray] = {}
        self._waits: set[_Wait] = set()
        self._ready_at = 0.0
        self.on_cut: Callable[[Server, SessionId], None] = lambda server, session: None

    def opened(self, *, restarted: bool) -> None:
        """Take note that workers can connect from now on; those of a keeper before this one will come back."""
        if restarted:
            self._ready_at = self._clock.boot() + _RETURN_SECONDS

    async def ready(self) -> None:
        """Wait until the workers had time to come back."""
        left = self._ready_at - self._clock.boot()
        if left > 0:
            await asyncio.sleep(left)

    def join(self, server: Server) -> None:
        """Take note of a worker that has said hello."""
        self._servers.add(server)

    def lost(self, server: Server) -> None:
        """Take note that a link has ended; its worker may serve on."""
        if server not in self._servers:
            return
        self._servers.discard(server)
        opened = set(server.opened)
        before = self._strays.pop(server.claim, None)
        if before is not None:
            opened |= before.opened
        if opened:
            self._strays[server.claim] = _Stray(server, opened, self._clock.boot())
        if len(self._strays) > _MOST_STRAYS:
            del self._strays[next(iter(self._strays))]

    def came_back(self, server: Server) -> None:
        """Take note that a worker has opened on its new link what it still serves; each ping says so."""
        if server in self._servers and self._strays.pop(server.claim, None) is not None:
            for wait in self._waits:
                wait.drop(server.claim)

    def took(self, server: Server, session: SessionId, lease: str) -> None:
        """Take a worker's word that it searches for the secret of a lease."""
        if session in server.opened:
            for wait in self._waits:
                if wait.session == session and wait.lease == lease:
                    wait.drop(server.claim)

    async def settle(self, session: SessionId, lease: str, but: object) -> bool:
        """Wait until all but one have taken the lease that was just pushed; False if it must not be lent."""
        claims = {one.claim for one in self._servers if one is not but and session in one.opened}
        claims |= {claim for claim, stray in self._strays.items() if session in stray.opened}
        wait = _Wait(session, lease, claims)
        self._waits.add(wait)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    await self._until_taken(wait)
        finally:
            self._waits.discard(wait)
        for server in list(self._servers):
            if server.claim in wait.claims and session in server.opened:
                server.opened.discard(session)
                self.on_cut(server, session)
        return not any(claim in self._strays for claim in wait.claims)

    async def _until_taken(self, wait: _Wait) -> None:
        while True:
            self._forget_strays()
            wait.claims &= {one.claim for one in self._servers} | self._strays.keys()
            if not wait.claims:
                return
            wait.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await wait.changed.wait()

    def _forget_strays(self) -> None:
        due = self._clock.boot() - STRAY_SECONDS
        for claim, stray in list(self._strays.items()):
            if stray.at < due or not _lives(stray.pid):
                del self._strays[claim]


def _lives(pid: int) -> bool:
    """Tell whether there is such a process; one that cannot be told from here counts as alive."""
    if pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
