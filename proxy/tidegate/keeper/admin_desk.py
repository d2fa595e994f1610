"""What the operator is given, and, by the same words, what a harness may do with its own sessions."""

import ipaddress
from typing import Final, final

from tidegate.audit.event import Session
from tidegate.errors import ConfigError, KeeperError
from tidegate.keeper.calls import as_child, scope_of
from tidegate.keeper.core import Keeper
from tidegate.keeper.harness import Harness
from tidegate.keeper.protocol import (
    ANOTHER_SOURCE,
    GATE_USER,
    USERS,
    AdminAsk,
    AuditKey,
    CaPem,
    Commit,
    ConfigRefused,
    Configure,
    FaultReport,
    HarnessCall,
    HarnessList,
    HarnessNew,
    HarnessOpened,
    HarnessRevoke,
    HarnessView,
    KeeperStatus,
    LaunchReport,
    SessionEnv,
    SessionFreeze,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionShow,
    SessionThaw,
    SessionView,
    Status,
    WallDrop,
    WallReport,
)
from tidegate.keeper.reload import Reload
from tidegate.keeper.sessions import Record
from tidegate.session.identity import SessionId, parse_source
from tidegate.session.token import Claims, mint_token

__all__ = ["AdminDesk"]

_LONGEST_TTL: Final = 366 * 86_400.0


@final
class AdminDesk:
    """Serves the admin link. `answer` raises `TidegateError` for what cannot be done."""

    def __init__(self, keeper: Keeper, reload: Reload) -> None:
        self._keeper = keeper
        self._reload = reload

    async def answer(self, ask: AdminAsk) -> object:
        """Answer one ask."""
        match ask:
            case Configure():
                await self._reload.configure(ask.epoch, ask.settings, ask.proxy_urls)
            case Commit():
                self._reload.commit(ask.epoch)
            case FaultReport() | ConfigRefused():
                self._put_on_record(ask)
            case WallReport():
                self._wall(ask)
            case LaunchReport():
                if ask.note.act == "start":  # made ahead, it may have lost its session meanwhile
                    self._keeper.sessions.need(ask.session)
                self._keeper.journal.launch(ask.note, session=ask.session, owner=ask.owner, call=ask.call)
            case HarnessCall():
                return self._harness_call(ask)
            case SessionNew() | SessionList() | SessionShow() | SessionEnv() | SessionRevoke():
                return self._sessions(ask, None)
            case SessionFreeze():
                self._keeper.freeze(self._keeper.sessions.need(ask.id), frozen=True)
            case SessionThaw():
                self._keeper.freeze(self._keeper.sessions.need(ask.id), frozen=False)
            case _:
                return self._rest(ask)
        return None

    def _put_on_record(self, ask: FaultReport | ConfigRefused) -> None:
        journal = self._keeper.journal
        if isinstance(ask, ConfigRefused):
            journal.refused(ask.file, ask.problems)
            return
        journal.fault(ask.name, ask.detail, where="supervisor")
        for pid in ask.pids:
            self._keeper.chains.ended(pid)

    def _wall(self, ask: WallReport) -> None:
        for name, detail in ask.incidents:
            self._keeper.journal.incident(name, None, detail=detail)
        for drop in ask.drops:
            self._keeper.journal.dropped(drop, self._sender(drop))

    def _sender(self, drop: WallDrop) -> Record | None:
        """Return the session that the packet came from: what its link lets in has an address of the sandbox's own.

        One that was dropped for its source has said whatever it liked.
        """
        if drop.client is None or drop.rule == ANOTHER_SOURCE or drop.device in (GATE_USER, USERS):
            return None
        return self._keeper.sessions.at(parse_source(drop.client))

    def _rest(self, ask: AdminAsk) -> object:
        match ask:
            case HarnessNew():
                return self._harness_new(ask)
            case HarnessList():
                return tuple(self._harness_view(one) for one in self._keeper.harnesses.live())
            case HarnessRevoke():
                self._harness_revoke(ask.id)
            case AuditKey():
                return self._keeper.audit_key()
            case CaPem():
                return self._keeper.keys.authority.pem()
            case Status():
                return self._status()
            case _:
                raise KeeperError("there is no such ask")
        return None

    def _sessions(
        self, ask: SessionNew | SessionList | SessionShow | SessionEnv | SessionRevoke, harness: Harness | None
    ) -> object:
        match ask:
            case SessionNew():
                return self._new(ask, harness)
            case SessionList():
                return tuple(_view(record) for record in self._visible(harness) if _is_asked(record, ask))
            case SessionShow():
                return _view(self._need(ask.id, harness))
            case SessionEnv():
                return self._opened(self._need(ask.id, harness))
            case SessionRevoke():
                self._keeper.end_session(self._need(ask.id, harness), "revoked")
                return self._keeper.stays_revoked(ask.id)

    def _visible(self, harness: Harness | None) -> list[Record]:
        return [one for one in self._keeper.sessions.live() if harness is None or one.origin == harness.origin]

    def _need(self, sid: SessionId, harness: Harness | None) -> Record:
        record = self._keeper.sessions.need(sid)
        if harness is not None and record.origin != harness.origin:
            raise KeeperError(f"there is no live session {sid!r}")  # the same words: whose it is, is not told
        return record

    def _new(self, ask: SessionNew, harness: Harness | None) -> SessionOpened:
        keeper = self._keeper
        ask = self._as_child(ask, harness)
        if ask.policy is None:
            raise ConfigError("a session has a policy", where="policy")
        keeper.book.check_use(ask.policy, ask.credentials, where="session")
        if ask.ttl_seconds is not None and not 0 < ask.ttl_seconds <= _LONGEST_TTL:
            raise ConfigError(f"a session lives from above 0 to {_LONGEST_TTL:.0f} seconds", where="ttl_seconds")
        if not 0 < len(ask.owner) <= 64 or not ask.owner.isprintable():
            raise ConfigError("an owner has 1 to 64 printable characters", where="owner")
        source = _network(ask.source) if ask.source is not None else None
        if ask.id is not None and any(one.id == ask.id for one in keeper.sessions.all()):
            raise KeeperError(f"there is a session {ask.id!r} already")
        self._check_counts(ask.policy, ask.owner)
        wall, boot = keeper.sessions.lifetime(ask.ttl_seconds)
        record = Record(
            id=ask.id or keeper.sessions.fresh_id(),
            owner=ask.owner,
            policy=ask.policy,
            credentials=ask.credentials,
            source=source,
            origin=_origin(ask, harness),
            doors=ask.doors,
            call=scope_of(ask.call),
            expires_wall=wall,
            expires_boot=boot,
        )
        record = keeper.with_placeholders(record)
        keeper.note_session("open", record)
        return self._opened(keeper.sessions.put(record))

    def _as_child(self, ask: SessionNew, harness: Harness | None) -> SessionNew:
        """Return what is asked, within what the session has that the call is made in, where there is one."""
        if ask.call is None or ask.call.parent is None:
            return ask
        parent = self._need(ask.call.parent, harness)
        return as_child(ask, self._keeper.sessions.line(parent), parent.expires_in(self._keeper.clock))

    def _check_counts(self, policy: str, owner: str) -> None:
        spec = self._keeper.book.settings.policies[policy]
        most = spec.budgets_policy.sessions
        if most is not None and self._keeper.count_sessions(policy=policy) >= most:
            raise KeeperError(f"policy {policy!r} has its {most} sessions already")
        most = spec.budgets_owner.sessions
        if most is not None and self._keeper.count_sessions(owner=owner) >= most:
            raise KeeperError(f"owner {owner!r} has its {most} sessions already")

    def _opened(self, record: Record) -> SessionOpened:
        token = mint_token(Claims(record.id, record.exp), self._keeper.keys.token)
        placeholders = self._keeper.environment(record)
        return SessionOpened(record.id, token, record.expires_wall, placeholders, record.owner, record.call)

    # --- harnesses -------------------------------------------------------------------------------

    def _harness_new(self, ask: HarnessNew) -> HarnessOpened:
        if not ask.policies or not 0 < ask.max_sessions <= 10_000 or not 0 < ask.ttl_seconds <= _LONGEST_TTL:
            raise ConfigError("a harness has a policy, a number of sessions and a lifetime", where="harness")
        for policy in ask.policies:
            self._keeper.book.check_use(policy, (), where="harness")
        one, token = self._keeper.harnesses.new(
            ask.policies, owner=ask.owner, max_sessions=ask.max_sessions, ttl=ask.ttl_seconds
        )
        block = Session(id=one.id, act="delegate", policy=",".join(one.policies), ttl_seconds=int(ask.ttl_seconds))
        self._keeper.journal.session(block, owner=one.owner)
        return HarnessOpened(one.id, token, one.expires_wall)

    def _harness_view(self, one: Harness) -> HarnessView:
        sessions = self._keeper.count_sessions(origin=one.origin)
        return HarnessView(one.id, one.policies, one.owner, one.max_sessions, sessions, one.expires_wall)

    def _harness_revoke(self, harness: str) -> None:
        owner = self._keeper.harnesses.drop(harness).owner
        self._keeper.journal.session(Session(id=harness, act="recall"), owner=owner)
        for record in list(self._keeper.sessions.live()):
            if record.origin == f"harness:{harness}":
                self._keeper.end_session(record, "revoked")

    def _harness_call(self, call: HarnessCall) -> object:
        one = self._keeper.harnesses.of(call.token)
        ask = call.ask
        return self._sessions(self._narrowed(one, ask) if isinstance(ask, SessionNew) else ask, one)

    def _narrowed(self, one: Harness, ask: SessionNew) -> SessionNew:
        """Return what the harness may have of what it asks: its owner, its policies, no network, its own end."""
        if ask.policy is not None and ask.policy not in one.policies:
            raise KeeperError(f"this harness may not use policy {ask.policy!r}")
        if ask.source is not None:
            raise KeeperError("a harness cannot bind a session to a network")
        if self._keeper.count_sessions(origin=one.origin) >= one.max_sessions:
            raise KeeperError(f"this harness has its {one.max_sessions} sessions already")
        left = self._keeper.harnesses.seconds_left(one)
        ttl = left if ask.ttl_seconds is None else min(ask.ttl_seconds, left)
        return SessionNew(ask.policy, ask.credentials, ttl, one.owner, call=ask.call)

    def _status(self) -> KeeperStatus:
        keeper = self._keeper
        minter = keeper.sourcing.minter
        return KeeperStatus(
            epoch=keeper.epoch,
            configured=keeper.rules is not None,
            sessions=keeper.count_sessions(),
            workers=keeper.workers(),
            minter=minter is not None and minter.alive,
            problems=keeper.problems(),
            warnings=keeper.warnings(),
        )


def _origin(ask: SessionNew, harness: Harness | None) -> str:
    if harness is not None:
        return harness.origin
    return "launch" if ask.launch else "admin"


def _view(record: Record) -> SessionView:
    return SessionView(
        record.id, record.owner, record.policy, record.credentials, record.source, record.expires_wall,
        record.frozen, record.origin, record.call,
    )  # fmt: skip


def _is_asked(record: Record, ask: SessionList) -> bool:
    named = ask.call is None or (record.call is not None and record.call.is_named(ask.call))
    return named and ask.owner in (None, record.owner)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as fault:
        raise ConfigError(f"{text!r} is no network", where="source", hint="such as 172.30.0.4/32") from fault
