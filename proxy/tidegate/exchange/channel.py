"""One client connection, without any engine in it: who it is, what name it is for, what was decided.

Longer than a module should be, since who comes, by what, and the two records of it are decided together.
"""

import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from tidegate.audit.event import Conn, Http, Subject
from tidegate.audit.flow import FlowId, new_flow
from tidegate.audit.recorder import NOBODY
from tidegate.audit.redact import Loggable, loggable
from tidegate.exchange.connect import judge_connect
from tidegate.exchange.door import Door
from tidegate.exchange.ending import End
from tidegate.exchange.gate import Gate
from tidegate.exchange.head import RequestHead
from tidegate.exchange.proxy_auth import proxy_token
from tidegate.exchange.reply import Denial, denial
from tidegate.exchange.sessions import LiveSession
from tidegate.exchange.tunnel import Opaque, Tunnel
from tidegate.exchange.upstreams import Upstreams
from tidegate.policy.names import Authority, Host, host_text, parse_host
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import Rule
from tidegate.session.budget import Charge

if TYPE_CHECKING:
    from tidegate.exchange.exchange import Exchange

__all__ = ["Channel", "verdict_of"]

_FAULTS = frozenset(
    {
        Reason.DNS_FAILURE,
        Reason.CLIENT_TIMEOUT,
        Reason.UPSTREAM_TLS,
        Reason.BAD_UPSTREAM,
        Reason.UNSCANNABLE_RESPONSE,
        Reason.UPSTREAM_TIMEOUT,
        Reason.INTERNAL_FAULT,
        Reason.CLIENT_TLS,
    }
)
_ALARMS = {
    Reason.METADATA: "metadata",
    Reason.RESOLVED_METADATA: "metadata",
    Reason.BLOCKED_ADDRESS: "private_reach",
    Reason.SELF_OR_GATEWAY: "private_reach",
    Reason.RESOLVED_BLOCKED: "private_reach",
    Reason.UNKNOWN_PLACEHOLDER: "placeholder_refused",
    Reason.CREDENTIAL_OUT_OF_SCOPE: "placeholder_refused",
    Reason.ENCODED_PLACEHOLDER: "placeholder_refused",
    Reason.FOREIGN_CREDENTIAL: "foreign_credential",
    Reason.REFLECTED_SECRET: "reflected_secret",
}


def verdict_of(reason: Reason) -> Verdict:
    """Tell a denial, which policy made, from an error, which the world made."""
    return Verdict.ERROR if reason in _FAULTS else Verdict.DENY


async def _at_once() -> None:
    """Wait for nothing: no engine has said what there is to wait for."""


class Channel:
    """A client connection: its session, its one name, its pins, its counts and its two records.

    `cut`, `end`, `hold`, `wait` and `writable` are set by the engine: they end the connection at once, end it with a
    word where one can be said, stop reading all of it, stop reading the client's body, or wait for the client to read.
    """

    def __init__(self, gate: Gate, peer: tuple[str, int], local: tuple[str, int], door: Door | None = None) -> None:
        self.gate = gate
        self.peer = peer
        self.door = door
        self.source = peer[0] if door is None else door.source
        """What tells peers apart: their address, or the door that they came by."""
        self.listener = f"{local[0]}:{local[1]}" if door is None else door.listener
        self.flow = new_flow()
        self.began = time.monotonic()
        self.cut: Callable[[Reason | None, End | None], None] = lambda *_: None
        self.end: Callable[[Reason], None] = lambda _: None
        self.hold: Callable[..., None] = lambda **_: None
        self.wait: Callable[..., None] = lambda **_: None
        self.brake: Callable[..., None] = lambda **_: None
        self.writable: Callable[[], Awaitable[None]] = _at_once
        self.joined: Callable[[], None] = lambda: None
        self.session: LiveSession | None = None
        self.host: Host | None = None
        self.port = 0
        self.tls = False
        self.offers_h2 = False
        self.dialled: tuple[str, int] | None = None
        """What a client dialled that knows of no proxy."""
        self.plain = False
        """Whether what comes next is known to be HTTP without TLS, before anything was promised."""
        self.leaf_name: str | None = None
        self.metered: tuple[Charge, ...] = ()
        self.rule: Rule | None = None
        self.denied: Reason | None = None
        self.outcome: Tunnel | Opaque | Denial | None = None
        self.exchanges: set[Exchange] = set()
        self.closing = False
        self.body_fault: Reason | None = None
        self.end_reason: str | None = None
        self.head_since: float | None = None
        self.bytes_up = self.bytes_down = 0
        self._denials = 0
        self.observed: Reason | None = None
        self._name: Loggable | None = None
        self._token: str | None = None
        self.upstreams = Upstreams(gate)
        self._subject = NOBODY
        self._recorded = self._told_before = self._promised = False
        self._closed = False

    # -- who --------------------------------------------------------------------------------------

    @property
    def subject(self) -> Subject:
        """Whom the records are about."""
        return self._subject if self.session is None else self.session.subject

    async def identify(self, head: RequestHead) -> Reason | None:
        """Find the session by the head's token and the source; None when it is known and may go on."""
        token = proxy_token(head)
        if isinstance(token, Reason):
            return token
        if self.gate.keeper_gone():
            return Reason.KEEPER_UNAVAILABLE
        if token is None and self.door is not None:
            token = self.door.token
        if self.session is None or (token is not None and token != self._token):
            found: LiveSession | Reason | None = self.gate.sessions.known(token, self.source)
            if found is None:
                found = await self.gate.sessions.open(token, self.source, self.listener)
            if isinstance(found, Reason):
                if self.door is not None:
                    self._note_whose()
                return found
            refused = self._join(found)
            if refused is not None:
                return refused
            self._token = token
        return None if self.session is None else self.session.refusal(self.gate.clock.boot())

    def _note_whose(self) -> None:
        """Take for the record whose it is, as far as that is known without asking: by its door, or its address."""
        known = self.gate.sessions.known(None if self.door is None else self.door.token, self.source)
        self._subject = self._subject if known is None else known.subject

    def _join(self, session: LiveSession) -> Reason | None:
        if self.session is not None and self.session is not session:
            # One connection, one session: a second one would inherit tunnels and pins.
            return Reason.SESSION_INVALID
        if len(session.channels) >= self.gate.settings.limits.connections_per_session:
            self._subject = session.subject  # it is not of the session, but the record is
            return Reason.BUDGET
        self.session = session
        session.channels.add(self)
        self.joined()
        return None

    # -- CONNECT ----------------------------------------------------------------------------------

    async def admit(self, head: RequestHead) -> None:
        """Judge a CONNECT; leaves `outcome`. The decision is on record when this returns."""
        self.outcome = None
        reason, told_now, outcome = await judge_connect(self, head)
        if reason is None or not told_now:
            refused = self._record_connect(reason)
            reason, told_now = (reason, False) if refused is None else (refused, True)
        if reason is not None and told_now:
            self.outcome = self._deny_connect(reason)
            return
        self.denied = reason
        if reason is not None:
            self.alarm(reason, self.flow)
        self.outcome = outcome or Tunnel()

    def name(self, authority: Authority) -> None:
        """Take the one name of the connection."""
        self.host, self.port = authority.host, authority.port
        self._name = loggable(str(authority.host))

    def name_unread(self, target: bytes) -> None:
        """Take a target that could not be read, for the log alone."""
        self._name = self.gate.redact.url(target)

    async def pay(self, size: int) -> Reason | None:
        """Pay for bytes of an opaque tunnel out of the upload budgets."""
        return await self.gate.ledger.take_or_draw(self.metered, size)

    def promise(self) -> Reason | None:
        """Have the record of this CONNECT promised, before a name is looked up for it."""
        refused = self.gate.recorder.promise(self.subject)
        self._promised = refused is None
        return refused

    def _record_connect(self, reason: Reason | None) -> Reason | None:
        if self._recorded:
            self._end_record()
            self.flow = new_flow()
        self._recorded = True
        promised, self._promised = self._promised, False
        return self.gate.recorder.conn_decision(
            self.subject,
            self.flow,
            self._conn(),
            promised=promised,
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=reason or self.observed,
            rule=self.rule.id if self.rule is not None and reason is None else None,
            observed=reason is None and self.observed is not None,
        )

    def _deny_connect(self, reason: Reason) -> Denial:
        """Record a CONNECT that is refused at once, both lines, and count it against the connection."""
        self.denied = reason
        refused = self._record_connect(reason)
        reason = refused or reason
        self.alarm(reason, self.flow)
        reply = denial(reason, flow=self.flow, host=self._told())
        self._end_record()
        self._forget_connect()
        self.count_denial()
        return reply

    def _forget_connect(self) -> None:
        """Leave nothing of a refused CONNECT for what follows on the same connection (P-40)."""
        self.flow = new_flow()
        self.host, self.port, self.rule, self.denied = None, 0, None, None
        self._name, self._subject = None, NOBODY
        self.upstreams.last_vetted = None
        self._recorded = False
        self._told_before = True

    def _told(self) -> str | None:
        return None if self.host is None else str(self.host)

    # -- TLS --------------------------------------------------------------------------------------

    def hello(self, sni: str | None) -> None:
        """Take the ClientHello's name; leaves `leaf_name`, the name that our certificate must bear."""
        self.tls = True
        self.leaf_name = "" if self.host is None else str(self.host)
        if sni is None:
            return
        parsed = parse_host(sni)
        if parsed != self.host:
            self.denied = self.denied or Reason.SNI_MISMATCH
        if not isinstance(parsed, Reason):
            self.leaf_name = str(parsed)

    @property
    def opaque(self) -> bool:
        """Whether bytes go both ways unread."""
        return isinstance(self.outcome, Opaque)

    def tls_failed(self) -> None:
        """Take note that the client's handshake failed: an error of its own, never a passthrough (P-37)."""
        self.denied = self.denied or Reason.CLIENT_TLS

    # -- requests ---------------------------------------------------------------------------------

    def note_request(self) -> Reason | None:
        """Record the connection that a first plain request came on, before anything of it goes on."""
        if self._recorded:
            return None
        self._recorded = True
        return self.gate.recorder.conn_decision(self.subject, self.flow, self._conn(), verdict=Verdict.ALLOW)

    def renew(self) -> None:
        """Search the answers under way for a secret that came to the session; cut what cannot be searched."""
        reasons = [exchange.renew() for exchange in self.exchanges]
        refused = next((reason for reason in reasons if reason is not None), None)
        if refused is not None:
            self.cut(refused, None)

    def count_upstream(self, change: int) -> None:
        """Count an upstream that was opened for the session, or is gone."""
        if self.session is not None:
            self.session.upstreams += change

    def count_denial(self) -> None:
        """Close a connection that does nothing but be denied (P-40)."""
        self._denials += 1
        if self._denials >= self.gate.settings.limits.denials_per_connection:
            self.closing = True

    # -- refusals, faults and the end -------------------------------------------------------------

    def refuse(self, reason: Reason) -> Denial:
        """Record what the engine refuses by itself, before there is a request (invariant 6)."""
        if self.session is None:
            self._note_whose()
        self.closing = True
        self.denied = self.denied or reason
        self.end_reason = self.end_reason or reason.code
        if self._recorded:
            return self.refuse_request(reason)
        refused = self._record_connect(reason)
        return denial(refused or reason, flow=self.flow, host=self._told())

    def refuse_request(self, reason: Reason) -> Denial:
        """Record one request that has no reading; what else is under way on the connection goes on."""
        flow = self._record_refused_request(reason)
        self.count_denial()
        return denial(reason, flow=flow, host=self._told())

    def _record_refused_request(self, reason: Reason) -> FlowId:
        block = Http(scheme=loggable("https" if self.tls else "http"), host=self._name, port=self.port)
        flow = new_flow()
        verdict = verdict_of(reason)
        recorder = self.gate.recorder
        recorder.http_decision(self.subject, flow, block, verdict=verdict, reason=reason, parent=self.flow)
        recorder.http_end(self.subject, flow, block, verdict=verdict, reason=reason, parent=self.flow)
        return flow

    def fault(self, place: str) -> None:
        """Record that the gate itself failed on this connection, and where."""
        self.end_reason = Reason.INTERNAL_FAULT.code
        self.denied = self.denied or Reason.INTERNAL_FAULT
        for exchange in self.exchanges:
            exchange.failed()
        self.gate.recorder.fault("connection", where=place)

    def alarm(self, reason: Reason, flow: str, *, host: Loggable | None = None, credential: str | None = None) -> None:
        """Raise the incident that belongs to a reason, if one does; `host` where the connection is for none."""
        name = _ALARMS.get(reason)
        if name is not None:
            self.gate.recorder.incident(
                self.subject, flow, name, reason=reason, host=host or self._name, credential=credential
            )

    def head_began(self) -> None:
        """Start the clock of a header block; the first byte counts, not each (V-01)."""
        if self.head_since is None:
            self.head_since = time.monotonic()

    def head_ended(self) -> None:
        """Stop the clock of a header block."""
        self.head_since = None

    def break_off(self, reason: Reason | None, end: End | None) -> None:
        """Take note that the connection is cut now, and why; what is under way ends by the same word and reason."""
        word = end or (End.CLOSED if reason is None else reason.code)
        self.end_reason = self.end_reason or word
        for exchange in self.exchanges:
            exchange.break_off(word, reason)

    def close(self) -> None:
        """Write the connection's end and every open exchange's; once."""
        if self._closed:
            return
        self._closed = True
        if self.session is not None:
            self.session.channels.discard(self)
        try:
            for exchange in list(self.exchanges):
                self.end_reason = self.end_reason or End.CLIENT_LEFT
                exchange.client_gone()
                exchange.finish()
        finally:
            if not self._recorded and not self._told_before:
                # It came and went without a request: a connection all the same (invariant 6).
                self.end_reason = self.end_reason or End.CLIENT_LEFT
                self.denied = self.denied or Reason.CLIENT_TIMEOUT
                self._record_connect(self.denied)
            if self._recorded:
                self._end_record()

    def _end_record(self) -> None:
        reason = self.denied
        self.gate.recorder.conn_end(
            self.subject,
            self.flow,
            self._conn(ended=True),
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=reason or self.observed,
            rule=self.rule.id if self.rule is not None and reason is None else None,
            observed=reason is None and self.observed is not None,
        )

    def _conn(self, *, ended: bool = False) -> Conn:
        client = f"{host_text(ip_address(self.peer[0]))}:{self.peer[1]}" if self.peer[1] else self.peer[0]
        name, port = self._name, self.port or None
        if name is None and self.dialled is not None:
            name, port = loggable(self.dialled[0]), self.dialled[1]
        if not ended:
            return Conn(client=client, name=name, port=port)
        return Conn(
            client=client,
            name=name,
            port=port,
            address=self.upstreams.last_address,
            vetted=self.upstreams.last_vetted,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            duration_ms=int((time.monotonic() - self.began) * 1000),
            end=self.end_reason or End.CLOSED,
        )
