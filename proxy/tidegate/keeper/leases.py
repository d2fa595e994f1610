"""Leases: a secret lent to one session for a while.

Theory of operation. The first use fetches from the source; callers that come meanwhile wait for
the same fetch. A lease that is in use is renewed when a fifth of its life is left. A renewal that
brings the same value prolongs the lease; another value makes a new lease and ends the old one, whose
secret is kept for 24 hours, since an upstream may still send it back. Everything ends with its session.
A new lease is pending, searched for and not lent, until every worker of the session has taken it (`muster`).
What a session may have searched for at once is bounded (`MOST_BYTES`), so that a grant fits into a frame.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec

from tidegate.audit.event import CallScope, Credential
from tidegate.clock import Clock
from tidegate.errors import AuditError, CredentialError, TidegateError
from tidegate.keeper.journal import Journal
from tidegate.keeper.protocol import LeaseAdded, LeaseEnded, LeaseGrant, LiveSecret, Push
from tidegate.keeper.sessions import Record
from tidegate.keeper.store import Store, keep, walk
from tidegate.keeper.tasks import OwnedTasks
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

__all__ = ["MOST_BYTES", "Fetched", "LeaseBook"]

_SHELF: Final = "leases"
_KEPT_SECONDS: Final = 24 * 3600.0
_RENEW_AT: Final = 0.2
MOST_BYTES: Final = 640 << 10
"""Of one session's secrets, as they travel: some 2500 of 40 bytes, 150 of 4 KB."""
_BESIDES_BYTES: Final = 128  # the lease's id and the names of the fields
_PAUSE_SECONDS: Final = 1.0  # after a source failed, so that a flooder does not flood the source

type _Key = tuple[SessionId, str]
type _Flight = asyncio.Future[LeaseGrant | Reason]


class Fetched(msgspec.Struct, frozen=True):
    """What a source gave, how long it may be lent, and what the record says of it."""

    secret: Secret
    ttl_seconds: float
    source: str
    place: str


class _Lease(msgspec.Struct, kw_only=True):
    id: str
    session: SessionId
    owner: str
    credential: str
    secret: Secret
    placeholder: str
    boot: str
    ttl_seconds: float
    expires_boot: float
    call: CallScope | None = None
    used: bool = True
    ended_wall: float | None = None

    def live(self) -> LiveSecret:
        """Return what a worker is told of it."""
        return LiveSecret(self.id, self.credential, self.secret, self.placeholder, self.ended_wall is not None)


@final
class LeaseBook:
    """The leases of all sessions.

    `fetch` asks the source; `journal` gives the chain in use; `push(push, but)` tells every link that
    serves the session, except `but`; `settle(session, lease, but)` waits until they all have taken it, and
    says if the lease may be lent. `problems` has the last failure of each credential's source.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        boot: str,
        fetch: Callable[[Record, str], Awaitable[Fetched]],
        journal: Callable[[], Journal],
        push: Callable[[Push, object], None],
        settle: Callable[[SessionId, str, object], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._boot = boot
        self._fetch = fetch
        self._journal = journal
        self._push = push
        self._settle = settle
        self._current: dict[_Key, _Lease] = {}
        self._pending: dict[_Key, _Lease] = {}
        self._ended: dict[SessionId, list[_Lease]] = {}
        self._flights: dict[_Key, _Flight] = {}
        self._failed_at: dict[_Key, float] = {}
        self.problems: dict[str, str] = {}
        self._tasks = OwnedTasks(lambda fault: self.problems.update({"leases": type(fault).__name__}))
        for _, lease in walk(store, _SHELF, _Lease):
            self._load(lease)

    def _load(self, lease: _Lease) -> None:
        if lease.ended_wall is None and lease.boot == self._boot:
            self._current[lease.session, lease.credential] = lease
            return
        lease.ended_wall = lease.ended_wall or self._clock.wall()  # of another boot: its clock says nothing here
        self._ended.setdefault(lease.session, []).append(lease)

    async def close(self) -> None:
        """End the fetches under way."""
        await self._tasks.close()

    def secrets(self, sid: SessionId) -> tuple[LiveSecret, ...]:
        """Return every secret to search for in the session's replies."""
        return tuple(lease.live() for lease in self._of(sid))

    def _of(self, sid: SessionId) -> list[_Lease]:
        held = [lease for book in (self._pending, self._current) for key, lease in book.items() if key[0] == sid]
        return [*held, *self._ended.get(sid, ())]

    async def lend(self, record: Record, credential: str, link: object) -> LeaseGrant | Reason:
        """Lend the credential to the session: the current lease, or a new one from the source."""
        key, now = (record.id, credential), self._clock.boot()
        lease = self._current.get(key)
        if lease is not None and lease.expires_boot > now:
            lease.used = True
            return self._grant(lease)
        if now - self._failed_at.get(key, -_PAUSE_SECONDS) < _PAUSE_SECONDS:
            return Reason.CREDENTIAL_UNAVAILABLE
        return await asyncio.shield(self._flight(record, credential, link))

    def _flight(self, record: Record, credential: str, link: object) -> _Flight:
        key = (record.id, credential)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.get_running_loop().create_future()
            self._tasks.spawn(self._fly(record, credential, link, flight), name="lease")
        return flight

    async def _fly(self, record: Record, credential: str, link: object, flight: _Flight) -> None:
        result: LeaseGrant | Reason = Reason.INTERNAL_FAULT
        try:
            result = await self._renew(record, credential, link)
        except AuditError:
            result = Reason.AUDIT_UNAVAILABLE
        except TidegateError as fault:
            self.problems[credential] = str(fault)
        finally:
            del self._flights[record.id, credential]
            if not flight.done():
                flight.set_result(result)

    async def _renew(self, record: Record, credential: str, link: object) -> LeaseGrant | Reason:
        key = (record.id, credential)
        try:
            got = await self._fetch(record, credential)
        except CredentialError as fault:
            self._failed_at[key] = self._clock.boot()
            self.problems[credential] = str(fault)
            block = Credential(name=credential, act="refuse")
            why = Reason.CREDENTIAL_UNAVAILABLE.code
            self._journal().lease(block, session=record.id, owner=record.owner, call=record.call, reason=why)
            return Reason.CREDENTIAL_UNAVAILABLE
        self._failed_at.pop(key, None)
        self.problems.pop(credential, None)
        return await self._take(record, credential, got, link)

    async def _take(self, record: Record, credential: str, got: Fetched, link: object) -> LeaseGrant | Reason:
        key, now = (record.id, credential), self._clock.boot()
        old = self._current.get(key)
        if old is not None and old.secret == got.secret:
            old.expires_boot = now + old.ttl_seconds
            self._keep(old)
            return self._grant(old)
        lease = _Lease(
            id=f"l-{secrets.token_hex(8)}",
            session=record.id,
            owner=record.owner,
            call=record.call,
            credential=credential,
            secret=got.secret,
            placeholder=record.placeholders[credential],
            boot=self._boot,
            ttl_seconds=got.ttl_seconds,
            expires_boot=now + got.ttl_seconds,
        )
        if sum(_size(one) for one in (lease, *self._of(record.id))) > MOST_BYTES:
            hint = "give them a longer ttl_seconds, or the session an end"
            return self._refuse(lease, f"session {record.id} has too many secrets of one day: {hint}")
        block = Credential(name=credential, act="lease", place=got.place, lease=lease.id, source=got.source)
        self._journal().lease(block, session=record.id, owner=record.owner, call=record.call)
        self._keep(lease)
        self._pending[key] = lease
        self._push(LeaseAdded(record.id, lease.live()), link)
        settled = await self._settle(record.id, lease.id, link)
        if self._pending.pop(key, None) is None:
            return Reason.CREDENTIAL_UNAVAILABLE  # the session or the credential has ended meanwhile
        if not settled:
            self._end(lease, "unsettled")
            return self._refuse(lease, f"a worker of session {record.id} has lost its link to the keeper")
        # The new secret is searched for before the old one is told to be over: no reply slips between.
        old = self._current.get(key)
        if old is not None:
            self._end(old, "replaced")
        self._current[key] = lease
        return self._grant(lease)

    def _refuse(self, lease: _Lease, why: str) -> Reason:
        self._failed_at[lease.session, lease.credential] = self._clock.boot()
        self.problems[lease.credential] = why
        return Reason.CREDENTIAL_UNAVAILABLE

    def _grant(self, lease: _Lease) -> LeaseGrant:
        return LeaseGrant(lease.id, lease.credential, lease.secret, max(lease.expires_boot - self._clock.boot(), 0.0))

    def _keep(self, lease: _Lease) -> None:
        keep(self._store, _SHELF, lease.id, lease)

    def _end(self, lease: _Lease, why: str) -> None:
        lease.ended_wall = self._clock.wall()
        if self._current.get((lease.session, lease.credential)) is lease:
            del self._current[lease.session, lease.credential]
        self._ended.setdefault(lease.session, []).append(lease)
        self._keep(lease)
        self._push(LeaseEnded(lease.session, lease.id), None)
        block = Credential(name=lease.credential, act="end", lease=lease.id)
        self._journal().lease(block, session=lease.session, owner=lease.owner, call=lease.call, reason=why)

    def end_credential(self, sid: SessionId, credential: str, why: str) -> None:
        """End the session's lease of a credential, if there is one."""
        for lease in (self._current.get((sid, credential)), self._pending.pop((sid, credential), None)):
            if lease is not None:
                self._end(lease, why)

    def end_all(self, why: str) -> None:
        """End every lease; the next use fetches anew."""
        for lease in list(self._current.values()):
            self._end(lease, why)

    def drop_session(self, sid: SessionId) -> None:
        """Forget the leases of a session that has ended; no reply of its is left to search."""
        for lease in self._of(sid):
            self._current.pop((sid, lease.credential), None)
            self._pending.pop((sid, lease.credential), None)
            self._store.drop(_SHELF, lease.id)
        self._ended.pop(sid, None)

    def tick(self, get: Callable[[SessionId], Record | None]) -> None:
        """Do what is due each second: renew what is used, end what is over, forget what is old."""
        now = self._clock.boot()
        for lease in list(self._current.values()):
            record = get(lease.session)
            left = lease.expires_boot - now
            if left <= 0:
                self._end(lease, "expired")
            elif record is not None and lease.used and left < lease.ttl_seconds * _RENEW_AT:
                self._renew_ahead(record, lease, now)
        self._forget_old()

    def _renew_ahead(self, record: Record, lease: _Lease, now: float) -> None:
        if now - self._failed_at.get((lease.session, lease.credential), -_PAUSE_SECONDS) >= _PAUSE_SECONDS:
            lease.used = False  # renewed again only if it is used again
            self._flight(record, lease.credential, None)

    def _forget_old(self) -> None:
        due = self._clock.wall() - _KEPT_SECONDS
        for sid, ended in list(self._ended.items()):
            for lease in [lease for lease in ended if (lease.ended_wall or 0.0) < due]:
                ended.remove(lease)
                self._store.drop(_SHELF, lease.id)
            if not ended:
                del self._ended[sid]


def _size(lease: _Lease) -> int:
    return len(lease.secret) + len(lease.placeholder) + len(lease.credential) + _BESIDES_BYTES
