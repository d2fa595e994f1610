"""The sessions that this worker serves right now: opened at the keeper once, then known in memory.

Longer than a module should be, since a session and the book of all of them answer the keeper's pushes together.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import TYPE_CHECKING, Protocol

import msgspec

from tidegate.audit.event import LogLimit, Subject
from tidegate.clock import Clock
from tidegate.credentials.scrub import Needles
from tidegate.credentials.sighting import Known
from tidegate.credentials.spec import CredentialSpec
from tidegate.credentials.swap import Holding
from tidegate.exchange.early import Early
from tidegate.exchange.ending import End
from tidegate.exchange.virtual import VirtualNames
from tidegate.keeper.protocol import (
    EpochPush,
    LeaseAdded,
    LeaseGrant,
    LiveSecret,
    Push,
    SessionEnded,
    SessionFrozen,
    SessionGrant,
    SessionPush,
    SourceBound,
)
from tidegate.keeper.tasks import OwnedTasks
from tidegate.policy.decide import Policy
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec
from tidegate.secret import Secret
from tidegate.session.budget import Charge
from tidegate.session.identity import IPNetwork, SessionId, parse_source

if TYPE_CHECKING:
    from tidegate.exchange.channel import Channel

__all__ = ["Keeper", "Lease", "LiveSession", "Sessions"]

_MOST_ENTRIES = 4096
_RENEW_AHEAD_SECONDS = 5.0
_SEARCHED_SECONDS = 24 * 3600.0
_AT_ONCE_BYTES = 8192
"""Secrets of more than this, with some for each, are compiled off the loop."""


class Keeper(Protocol):
    """What the lane-free code asks of the keeper."""

    def down_seconds(self) -> float: ...  # noqa: D102 - as KeeperClient
    async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason: ...  # noqa: D102
    async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason: ...  # noqa: D102
    async def draw(  # noqa: D102
        self, session: SessionId, kind: str, key: str, amount: int, limit: int
    ) -> int | Reason: ...
    async def number(self, session: SessionId, name: HostName) -> int | Reason: ...  # noqa: D102
    async def numbered(self, session: SessionId, number: int) -> str | Reason: ...  # noqa: D102
    def forget(self, session: SessionId) -> None: ...  # noqa: D102


class Lease(msgspec.Struct, frozen=True):
    """A secret that may be put on the wire until `until` (boot clock)."""

    id: str
    secret: Secret
    until: float


class LiveSession:
    """One session in this worker: what it holds, what is searched for, who is connected."""

    def __init__(
        self,
        grant: SessionGrant,
        policy: Policy,
        credentials: dict[str, CredentialSpec],
        clock: Clock,
        needles: Needles | None = None,
    ) -> None:
        self.id = grant.id
        self.owner = grant.owner
        self.root = grant.root or grant.id
        """Whose session budgets it draws on: a call's are those of the session that it is made in."""
        self.policy_name = grant.policy
        self.frozen = grant.frozen
        self.ended: Reason | None = None
        self.expires = None if grant.expires_in is None else clock.boot() + grant.expires_in
        self.channels: set[Channel] = set()
        self.upstreams = 0
        self.denied_leaves: list[float] = []
        self.charges: dict[str, tuple[Charge, ...]] = {}
        self.virtual = VirtualNames()
        self._grant = grant
        self._source = None if grant.source is None else ip_network(grant.source)
        self._secrets: dict[str, LiveSecret] = {secret.lease: secret for secret in grant.secrets}
        self._leases: dict[str, Lease] = {}
        self._borrowing: dict[str, asyncio.Future[Lease | Reason | None]] = {}
        self._over: dict[str, float] = {secret.lease: clock.boot() for secret in grant.secrets if secret.ended}
        self._clock = clock
        self.on_scattered: Callable[[LiveSession], None] = lambda _: None
        self.needles = Needles.compile(_pairs(grant.secrets)) if needles is None else needles
        self.owners = {one.placeholder.encode(): one.credential for one in grant.secrets}
        self.watched = bool(grant.secrets) or bool(grant.holdings)
        self.adopt(policy, credentials)

    def adopt(self, policy: Policy, credentials: dict[str, CredentialSpec]) -> None:
        """Take over another epoch's policy and credentials."""
        self.policy = policy
        self.charges.clear()
        self.holdings = tuple(
            Holding(credentials[one.credential], one.placeholder)
            for one in self._grant.holdings
            if one.credential in credentials
        )
        self.known = Known(self.holdings)
        self.subject = Subject(
            session=self.id,
            owner=self.owner,
            call=self._grant.call,
            policy_hash=policy.hash,
            log_bytes_per_hour=policy.spec.budgets_session.log_bytes_per_hour,
            log_limits=self._log_limits(policy.spec),
        )

    def _log_limits(self, spec: PolicySpec) -> tuple[LogLimit, ...]:
        """Return the log budgets that are set, with the names by which the keeper's buckets go."""
        budgets = (
            ("session", f"session/{self.root}", spec.budgets_session),
            ("policy", f"policy/{self.policy_name}", spec.budgets_policy),
            ("owner", f"owner/{self.owner}", spec.budgets_owner),
        )
        return tuple(
            LogLimit(scope, pool, budget.log_bytes_per_hour)
            for scope, pool, budget in budgets
            if budget.log_bytes_per_hour is not None
        )

    def refusal(self, now: float) -> Reason | None:
        """Say why nothing may pass for this session at `now` (boot clock), if so."""
        if self.ended is not None:
            return self.ended
        if self.expires is not None and now >= self.expires:
            return Reason.SESSION_INVALID
        return Reason.SESSION_FROZEN if self.frozen else None

    # -- leases and secrets -----------------------------------------------------------------------

    def lease(self, credential: str, now: float) -> Lease | None:
        """Return the lease in memory, if it is good for a few more seconds."""
        lease = self._leases.get(credential)
        return lease if lease is not None and now < lease.until else None

    async def borrow(self, credential: str, keeper: Keeper, clock: Clock) -> Lease | Reason:
        """Borrow the credential from the keeper; one ask at a time, however many wait for it."""
        while (waiting := self._borrowing.get(credential)) is not None:
            found = await asyncio.shield(waiting)
            if found is not None:
                return found
        # Nobody asks, or who asked has left or failed: that is not to be the others' loss.
        future = asyncio.get_running_loop().create_future()
        self._borrowing[credential] = future
        outcome: Lease | Reason | None = None
        try:
            grant = await keeper.lease(self.id, credential)
            outcome = grant if isinstance(grant, Reason) else self._keep(grant, clock.boot())
        finally:
            self._borrowing.pop(credential, None)
            future.set_result(outcome)
        return outcome

    def _keep(self, grant: LeaseGrant, now: float) -> Lease:
        lease = Lease(grant.lease_id, grant.secret, now + max(0.0, grant.expires_in - _RENEW_AHEAD_SECONDS))
        self._leases[grant.credential] = lease
        if grant.lease_id not in self._secrets:
            placeholder = next(one.placeholder for one in self._grant.holdings if one.credential == grant.credential)
            self.add_secret(LiveSecret(grant.lease_id, grant.credential, grant.secret, placeholder))
        return lease

    def add_secret(self, secret: LiveSecret) -> None:
        """Search for one more secret from now on, also in what is under way."""
        if secret.lease in self._secrets:
            return
        self._secrets[secret.lease] = secret
        self.owners[secret.placeholder.encode()] = secret.credential
        self.watched = True
        self.search_for(self.needles.plus(_pairs([secret])))
        if self.needles.scattered:
            self.on_scattered(self)

    def search_for(self, needles: Needles) -> None:
        """Use other needles from here on."""
        self.needles = needles
        for channel in list(self.channels):
            channel.renew()

    def end_lease(self, lease: str) -> None:
        """Never use the lease again; its secret is still searched for."""
        self._over.setdefault(lease, self._clock.boot())
        for name in [name for name, one in self._leases.items() if one.id == lease]:
            del self._leases[name]

    def drop_leases(self) -> None:
        """Forget every lease, as after a step of the clock."""
        self._leases.clear()

    def current_pairs(self) -> list[tuple[Secret, bytes]]:
        """Return what is to be searched for, without what ended more than a day ago."""
        due = self._clock.boot() - _SEARCHED_SECONDS
        for lease in [lease for lease, at in self._over.items() if at < due]:
            del self._over[lease]
            self._secrets.pop(lease, None)
        return _pairs(self._secrets.values())

    # -- the end ----------------------------------------------------------------------------------

    def end(self, reason: Reason, end: End | None = None) -> None:
        """End the session here: every connection of it is cut, and `end` is the log's word for that."""
        self.ended = self.ended or reason
        faults = []
        for channel in list(self.channels):
            try:
                channel.cut(self.ended, end)
            except Exception as fault:  # the others are cut all the same
                faults.append(fault)
        if faults:
            raise ExceptionGroup("connections that could not be cut", faults)

    def misplaced(self, source: str, network: IPNetwork) -> bool:
        """Tell whether a peer of ours stands in `network`, which was just bound, and not in a narrower one of ours."""
        peer, own = parse_source(source), self._source
        if not peer.within(network):
            return False
        # Within one address the narrower of two networks has the longer prefix; an equal one is our own.
        return own is None or not peer.within(own) or own.prefixlen < network.prefixlen

    def leave(self, network: IPNetwork) -> None:
        """Cut the connections that come from inside a network that is another session's now."""
        for channel in list(self.channels):
            if self.misplaced(channel.source, network):
                channel.cut(Reason.SESSION_INVALID, None)

    def freeze(self, *, frozen: bool) -> None:
        """Stop, or go on with, reading the connections of the session."""
        self.frozen = frozen
        for channel in list(self.channels):
            channel.hold(frozen=frozen)


def _pairs(secrets: Iterable[LiveSecret]) -> list[tuple[Secret, bytes]]:
    return [(one.secret, one.placeholder.encode()) for one in secrets]


async def _compile(pairs: list[tuple[Secret, bytes]]) -> Needles:
    if sum(len(secret) + 100 for secret, _ in pairs) <= _AT_ONCE_BYTES:
        return Needles.compile(pairs)
    return await asyncio.to_thread(Needles.compile, pairs)


class Sessions:
    """All sessions of this worker, found by what a client shows: its token, its source."""

    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self._keeper = keeper
        self._clock = clock
        self._by_key: OrderedDict[tuple[str | None, str], LiveSession] = OrderedDict()
        self._by_id: dict[SessionId, LiveSession] = {}
        self._bindings = 0
        self.policies: dict[str, Policy] = {}
        self.credentials: dict[str, CredentialSpec] = {}
        self.on_epoch: Callable[[int], None] = lambda _: None
        self.on_end: Callable[[SessionId], None] = lambda _: None
        self.on_fault: Callable[[SessionId, Exception], None] = lambda *_: None
        self._early = Early()
        self._merging: set[SessionId] = set()
        self._tasks = OwnedTasks()  # a merge that failed leaves the search as it was

    def known(self, token: str | None, source: str) -> LiveSession | None:
        """Return a session that was opened before in the same way."""
        session = self._by_key.get((token, source))
        return session if session is not None and session.ended is None else None

    async def open(self, token: str | None, source: str, listener: str) -> LiveSession | Reason:
        """Ask the keeper who this is."""
        with self._early.opening():
            for _ in range(2):
                found = await self._open(token, source, listener)
                if found is not None:
                    return found
                # It was over before it began here, or is a new one of the same name: the keeper knows by now.
            return Reason.SESSION_INVALID

    async def _open(self, token: str | None, source: str, listener: str) -> LiveSession | Reason | None:
        bindings = -1
        grant: SessionGrant | Reason = Reason.SESSION_INVALID
        needles: Needles | None = None
        while bindings != self._bindings:
            # A network that is bound while this waits may be ours: what was answered before then is not kept.
            bindings = self._bindings
            grant = await self._keeper.open_session(token=token, source=source, listener=listener)
            if not isinstance(grant, Reason) and grant.id not in self._by_id:
                needles = await _compile(_pairs(grant.secrets))
        if isinstance(grant, Reason):
            return grant
        session = self._by_id.get(grant.id)
        if session is None or session.ended is not None:
            made = self._make(grant, needles)
            if not isinstance(made, LiveSession):
                return made
            session = made
        self._by_key[token, source] = session
        if len(self._by_key) > _MOST_ENTRIES:
            self._by_key.popitem(last=False)
        return session

    def _make(self, grant: SessionGrant, needles: Needles | None) -> LiveSession | Reason | None:
        """Make the session of a grant; None when it has ended meanwhile."""
        policy = self.policies.get(grant.policy)
        if policy is None:
            return Reason.SESSION_INVALID
        if self._early.overrun:
            return Reason.KEEPER_UNAVAILABLE
        session = LiveSession(grant, policy, self.credentials, self._clock, needles)
        session.on_scattered = self._merge
        self._by_id[grant.id] = session
        for push in self._early.take(grant.id):
            self._take(session, push)
        return session if session.ended is None else None

    def pushed(self, push: Push) -> None:
        """Take a push of the keeper's."""
        if isinstance(push, EpochPush):
            # Also the first word on a new link: what was bound while there was none was not heard.
            self._by_key.clear()
            self.on_epoch(push.n)
            return
        if isinstance(push, SourceBound):
            self._rebound(ip_network(push.network))
            return
        session = self._by_id.get(push.sid)
        self._early.keep(push)
        if session is not None:
            self._take(session, push)

    def _take(self, session: LiveSession, push: SessionPush) -> None:
        """Do as a push says; a session for which that fails is over (invariant 2), and nothing else is."""
        try:
            if isinstance(push, SessionEnded):
                self._drop(session)
                session.end(Reason.SESSION_INVALID, End.of_push(push.reason))
            elif isinstance(push, SessionFrozen):
                session.freeze(frozen=push.frozen)
            elif isinstance(push, LeaseAdded):
                session.add_secret(push.secret)
            else:
                session.end_lease(push.lease)
        except Exception as fault:
            self._fail(session, fault)

    def _fail(self, session: LiveSession, fault: Exception) -> None:
        with contextlib.suppress(Exception):  # it is marked as ended first of all: nothing new passes
            session.end(Reason.INTERNAL_FAULT)
        with contextlib.suppress(Exception):
            self._drop(session)
        self.on_fault(session.id, fault)

    def _merge(self, session: LiveSession) -> None:
        """Compile the needles of a session anew, off the loop; they are in force as they are meanwhile."""
        if session.id not in self._merging:
            self._merging.add(session.id)
            self._tasks.spawn(self._merge_now(session), name="needles")

    async def _merge_now(self, session: LiveSession) -> None:
        try:
            base = session.needles
            whole = await asyncio.to_thread(Needles.compile, session.current_pairs())
            session.search_for(whole + session.needles.since(base))
        finally:
            self._merging.discard(session.id)

    def _rebound(self, network: IPNetwork) -> None:
        """Forget who came from inside `network`: the narrowest binding decides, and only the keeper knows it."""
        self._bindings += 1
        for key, session in list(self._by_key.items()):
            if session.misplaced(key[1], network):
                del self._by_key[key]
        for session in list(self._by_id.values()):
            session.leave(network)

    def sweep(self, now: float) -> None:
        """End what has expired at `now` (boot clock)."""
        for session in list(self._by_id.values()):
            if session.expires is not None and now >= session.expires:
                self._drop(session)
                session.end(Reason.SESSION_INVALID, End.EXPIRED)

    def adopt(self, policies: dict[str, Policy], credentials: dict[str, CredentialSpec]) -> None:
        """Switch to another epoch; a session whose policy is gone ends."""
        self.policies, self.credentials = policies, credentials
        for session in list(self._by_id.values()):
            policy = policies.get(session.policy_name)
            if policy is None:
                self._drop(session)
                session.end(Reason.SESSION_INVALID, End.RELOADED)
            else:
                session.adopt(policy, credentials)

    def drop_leases(self) -> None:
        """Forget every lease of every session."""
        for session in self._by_id.values():
            session.drop_leases()

    def __len__(self) -> int:
        return len(self._by_id)

    def _drop(self, session: LiveSession) -> None:
        self._by_id.pop(session.id, None)
        for key in [key for key, one in self._by_key.items() if one is session]:
            del self._by_key[key]
        self._keeper.forget(session.id)
        self.on_end(session.id)
