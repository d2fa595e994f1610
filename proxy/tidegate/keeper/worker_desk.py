"""What one worker is given, ask by ask.

A worker that has fallen is expected here: it gets leases, leaves and draws only for sessions that
sent it a token or a connection on this link, each name and number it says is checked, and what it
may cause is bounded by rates.

| ask | needs |
|---|---|
| open_session | a token we signed, or a source that a session is bound to; both must name one session, and so a door |
| took | a lease that was pushed here |
| lease | a session opened here, live, not frozen, that holds the credential |
| sign_leaf | a session opened here, and a name that its policy could allow; for a denial, the low rate |
| number, numbered | a session opened here; at most as many names as a session can have |
| draw | a session opened here; at most a slice of the lower one of the worker's limit and ours, in our window |
| checkpoint | the chain's claim, and a forward step |
"""

import contextlib
import ipaddress
from collections import OrderedDict
from typing import Final, final

from tidegate.audit.event import Head
from tidegate.ca.leaf import UnfitKey, sign_leaf
from tidegate.errors import AuditError, KeeperError, TidegateError
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import (
    Announce,
    Checkpoint,
    Draw,
    Hello,
    Holding,
    Lease,
    Number,
    Numbered,
    OpenSession,
    Ping,
    Pong,
    SessionGrant,
    SignLeaf,
    Took,
    WorkerAsk,
)
from tidegate.keeper.rate import Rate
from tidegate.keeper.sessions import Record
from tidegate.policy.names import Host, host_text, parse_host
from tidegate.policy.reasons import Reason
from tidegate.session.budget import WINDOWS, slice_of
from tidegate.session.identity import SessionId, Source, parse_source
from tidegate.session.token import read_token

__all__ = ["Allowances", "WorkerDesk"]

_MOST_OPEN: Final = 100_000


@final
class Allowances:
    """What all links of the gate's uid may cause together: a fallen worker that opens more of them gains nothing."""

    def __init__(self, now: float) -> None:
        self.by_source = Rate(per_second=50, burst=1000, now=now)
        """Sessions claimed by their source alone."""
        self.incidents = Rate(per_second=5, burst=50, now=now)
        self.leaves = _Leaves()


@final
class _Leaves:
    """Rates of leaves per session: generous for names that may be allowed, low for denials."""

    def __init__(self) -> None:
        self._rates: OrderedDict[tuple[SessionId, bool], Rate] = OrderedDict()

    def take(self, sid: SessionId, *, denied: bool, per_minute: int, now: float) -> bool:
        """Take one leaf of the session's."""
        rate = self._rates.get((sid, denied))
        if rate is None:
            if denied:
                rate = Rate(per_second=per_minute / 60, burst=per_minute, now=now)
            else:
                rate = Rate(per_second=20, burst=400, now=now)
            self._rates[sid, denied] = rate
            if len(self._rates) > _MOST_OPEN:
                self._rates.popitem(last=False)
        return rate.take(now)


@final
class WorkerDesk:
    """Serves one link. `answer` returns what the ask promises or a `Reason`; it raises only faults."""

    def __init__(self, keeper: Keeper, allowances: Allowances, *, pid: int = 0) -> None:
        self._pid = pid
        self._lost = False
        self._keeper = keeper
        self._allowances = allowances
        self._claim: str | None = None
        self.worker = "?"
        self.opened: set[SessionId] = set()

    @property
    def claim(self) -> str:
        """The worker's secret name, which stays the same from link to link; empty before it has said hello."""
        return self._claim or ""

    @property
    def pid(self) -> int:
        """The worker's process; 0 if it is of another pid namespace."""
        return self._pid

    async def answer(self, ask: WorkerAsk) -> object:
        """Answer one ask."""
        if self._claim is None and not isinstance(ask, Hello | Ping):
            return Reason.INTERNAL_FAULT
        try:
            match ask:
                case Lease():
                    return await self._lease(ask)
                case _:
                    return self._at_once(ask)
        except AuditError:
            return Reason.AUDIT_UNAVAILABLE
        finally:
            if self._lost:  # the last frames of a link are answered after its end
                self.lost()

    def _at_once(self, ask: WorkerAsk) -> object:
        match ask:
            case Hello():
                return self._hello(ask)
            case Ping():
                self._keeper.muster.came_back(self)
                return Pong(self._keeper.epoch)
            case Took():
                self._keeper.muster.took(self, ask.session, ask.lease)
                return None
            case OpenSession():
                return self._open(ask)
            case SignLeaf():
                return self._sign(ask)
            case Number():
                return self._number(ask)
            case Numbered():
                return self._numbered(ask)
            case Draw():
                return self._draw(ask)
            case Announce():
                return None if self._announce(ask.chain) else Reason.INTERNAL_FAULT
            case Checkpoint():
                return self._checkpoint(ask)
            case _:
                raise KeeperError("there is no such ask")

    def lost(self) -> None:
        """Note that the link has ended."""
        self._lost = True
        self._keeper.muster.lost(self)
        if self._claim is not None:
            self._keeper.chains.lost(self._claim)

    def _hello(self, ask: Hello) -> Pong | Reason:
        if self._claim is not None or not 16 <= len(ask.claim) <= 64 or not 0 < len(ask.worker) <= 64:
            return Reason.INTERNAL_FAULT
        self._claim, self.worker = ask.claim, ask.worker
        self._keeper.muster.join(self)
        self._keeper.chains.met(ask.claim, self._pid)
        return Pong(self._keeper.epoch)

    # --- sessions --------------------------------------------------------------------------------

    def _open(self, ask: OpenSession) -> SessionGrant | Reason:
        record = self._admit(ask)
        if isinstance(record, Reason):
            return record
        if record.id not in self.opened:
            if len(self.opened) >= _MOST_OPEN:
                return Reason.BUDGET
            self._keeper.note_session("join", record, listener=ask.listener[:64])
            self.opened.add(record.id)
        line = self._keeper.sessions.line(record)
        place = _place(line)
        return SessionGrant(
            id=record.id,
            owner=record.owner,
            policy=record.policy,
            source=None if place is None else place.source,
            expires_in=record.expires_in(self._keeper.clock),
            frozen=record.frozen,
            holdings=tuple(Holding(name, text) for name, text in record.placeholders.items()),
            secrets=self._keeper.leases.secrets(record.id),
            epoch=self._keeper.epoch,
            call=record.call,
            root=line[-1].id,
        )

    def _admit(self, ask: OpenSession) -> Record | Reason:
        source = parse_source(ask.source[:128])
        here = self._keeper.sessions.at(source)
        if ask.token is None:
            if here is None:
                return Reason.SESSION_REQUIRED
            if here.id not in self.opened and not self._allowances.by_source.take(self._keeper.clock.boot()):
                return Reason.BUDGET
            return here
        record = self._by_token(ask.token)
        if record is None:
            return Reason.SESSION_INVALID
        line = self._keeper.sessions.line(record)
        if _is_elsewhere(line, source) or (here is not None and here not in line):
            self._tell("session_misplaced", record, detail=f"token used from {ask.source[:64]}")
            return Reason.SESSION_INVALID
        return record

    def _by_token(self, token: str) -> Record | None:
        claims = read_token(token, self._keeper.keys.token_public)
        record = self._keeper.sessions.get(claims.sid) if claims is not None else None
        return record if record is not None and claims is not None and claims.exp == record.exp else None

    def _mine(self, sid: SessionId) -> Record | Reason:
        """Return a live session that was opened on this link."""
        if sid not in self.opened:
            self._tell("session_not_here", None, detail=f"worker {self.worker} asked for session {sid[:64]}")
            return Reason.SESSION_INVALID
        return self._keeper.sessions.get(sid) or Reason.SESSION_INVALID

    # --- what is given ---------------------------------------------------------------------------

    async def _lease(self, ask: Lease) -> object:
        record = self._mine(ask.session)
        if isinstance(record, Reason):
            return record
        if record.frozen:
            return Reason.SESSION_FROZEN
        if ask.credential not in record.placeholders:
            return Reason.CREDENTIAL_OUT_OF_SCOPE
        return await self._keeper.leases.lend(record, ask.credential, self)

    def _sign(self, ask: SignLeaf) -> object:
        record = self._mine(ask.session)
        if isinstance(record, Reason):
            return record
        host = _host(ask.name)
        if host is None:
            return Reason.MALFORMED_HOST
        keeper = self._keeper
        if not ask.denied and not keeper.book.could_allow(record.policy, host, keeper.clock.wall()):
            return Reason.NOT_IN_ALLOWLIST
        per_minute = keeper.book.settings.limits.denied_leaves_per_minute
        if not self._allowances.leaves.take(
            record.id, denied=ask.denied, per_minute=per_minute, now=keeper.clock.boot()
        ):
            return Reason.BUDGET
        try:
            return sign_leaf(keeper.keys.authority, ask.name, ask.public_key_der, keeper.clock)
        except UnfitKey as fault:
            raise KeeperError(str(fault)) from fault

    def _number(self, ask: Number) -> int | Reason:
        record = self._mine(ask.session)
        if isinstance(record, Reason):
            return record
        host = _host(ask.name)
        if not isinstance(host, str):
            return Reason.MALFORMED_HOST
        if not self._keeper.book.reachable(record.policy, host, self._keeper.clock.wall()):
            return Reason.NOT_IN_ALLOWLIST
        found = self._keeper.virtual.number(record.id, ask.name)
        return Reason.BUDGET if found is None else found

    def _numbered(self, ask: Numbered) -> str | Reason:
        record = self._mine(ask.session)
        return record if isinstance(record, Reason) else self._keeper.virtual.name(record.id, ask.number) or ""

    def _draw(self, ask: Draw) -> object:
        record = self._mine(ask.session)
        if isinstance(record, Reason):
            return record
        scope, name = _scope(ask.kind, ask.key)
        book = self._keeper.book
        window = WINDOWS.get(ask.kind)  # ours: by a window of its own choice a worker would have a fresh budget
        if window is None or not book.has_scope(record.policy, scope, ask.kind):
            raise KeeperError("there is no such budget")
        if not (ask.amount > 0 and ask.limit >= 0):
            raise KeeperError("the draw is out of bounds")
        ours = book.budget_limit(record.policy, scope=scope, kind=ask.kind)
        limit = ask.limit if ours is None else min(ask.limit, ours)
        bucket = f"{_bucket(record, scope, self._keeper.sessions.line(record)[-1])}/{ask.kind}/{window}"
        if name is not None:
            return self._keeper.budgets.draw_name(bucket, name[:255], limit=limit, window=window)
        amount = min(ask.amount, slice_of(limit))
        return self._keeper.budgets.draw(bucket, amount=amount, limit=limit, window=window)

    # --- evidence --------------------------------------------------------------------------------

    def _announce(self, chain: str) -> bool:
        taken = self._keeper.chains.announce(chain, self._claim or "", self._keeper.journal)
        if not taken:
            self._tell("chain_refused", None, detail=f"worker {self.worker} named chain {chain[:100]}")
        return taken

    def _checkpoint(self, ask: Checkpoint) -> object:
        head = Head(ask.chain, ask.seq, ask.head)
        note = self._keeper.chains.sign(head, self._claim or "", self._keeper.journal, last=ask.last)
        if note is None:
            detail = f"worker {self.worker}, chain {ask.chain[:100]}, seq {ask.seq}"
            self._tell("checkpoint_refused", None, detail=detail)
            return Reason.AUDIT_UNAVAILABLE
        if ask.last:
            self.opened.clear()  # it has cut all it had: no lease waits for this worker
        return note.encode()

    def _tell(self, name: str, record: Record | None, *, detail: str) -> None:
        if not self._allowances.incidents.take(self._keeper.clock.boot()):
            return
        with contextlib.suppress(TidegateError):  # the refusal stands with or without its record
            self._keeper.journal.incident(name, record, detail=detail)


def _place(line: tuple[Record, ...]) -> Record | None:
    """Return the one of a session and its parents that says where it is: by its doors, or by its network."""
    return next((one for one in line if one.doors or one.source is not None), None)


def _is_elsewhere(line: tuple[Record, ...], source: Source) -> bool:
    """Tell whether a token is shown where its session is not: outside of its network, or not behind its own door.

    A call's session that has neither is where its parent is.
    """
    place = _place(line)
    if place is None or place.doors or place.source is None:
        return source.door != (None if place is None else place.id)
    return not source.within(ipaddress.ip_network(place.source))


def _host(name: str) -> Host | None:
    """Read a name that is in our one form already; anything else is refused."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        host = parse_host(name)
        return None if isinstance(host, Reason) or host_text(host) != name else host
    return address if str(address) == name and "%" not in name else None


def _scope(kind: str, key: str) -> tuple[str, str | None]:
    if kind != "distinct_names":
        return key, None
    scope, _, name = key.partition(":")
    return scope, name


def _bucket(record: Record, scope: str, root: Record) -> str:
    match scope:
        case "policy":
            return f"policy/{record.policy}"
        case "owner":
            return f"owner/{record.owner}"
        case _:
            return f"session/{root.id}/{scope}"  # calls draw on the budgets of the session that they are made in
