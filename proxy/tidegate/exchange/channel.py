"""One client connection, without any engine in it: who it is, what name it is for, what was decided."""

import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal

import msgspec

from tidegate.audit.event import Conn, Http, Subject
from tidegate.audit.flow import FlowId, new_flow
from tidegate.audit.recorder import NOBODY
from tidegate.audit.redact import Loggable, loggable
from tidegate.exchange.charges import upload_charges
from tidegate.exchange.gate import Gate
from tidegate.exchange.head import RequestHead
from tidegate.exchange.reply import Denial, denial
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.addresses import Site, literal_reason, parse_networks, vet
from tidegate.policy.decide import Ask, Decision, Policy, decide
from tidegate.policy.names import (
    Authority,
    Host,
    host_text,
    is_gateway_name,
    is_metadata_name,
    parse_authority,
    parse_host,
)
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import Rule
from tidegate.resolve.pin import Pin, pin
from tidegate.session.budget import Charge

if TYPE_CHECKING:
    from tidegate.exchange.exchange import Exchange

__all__ = ["Channel", "Opaque", "Tunnel", "proxy_token", "verdict_of"]

_AT_CONNECT = frozenset(
    {
        Reason.MALFORMED_HOST,
        Reason.MALFORMED_TARGET,
        Reason.AMBIGUOUS_HOST,
        Reason.AMBIGUOUS,
        Reason.METADATA,
        Reason.SELF_OR_GATEWAY,
        Reason.LOOP,
        Reason.BLOCKED_ADDRESS,
        Reason.IP_LITERAL,
        Reason.SESSION_REQUIRED,
        Reason.SESSION_INVALID,
        Reason.KEEPER_UNAVAILABLE,
        Reason.AUDIT_UNAVAILABLE,
        Reason.AUDIT_BUDGET,
        Reason.INTERNAL_FAULT,
    }
)
_FAULTS = frozenset(
    {
        Reason.RESOLVED_METADATA,
        Reason.DNS_FAILURE,
        Reason.CLIENT_TIMEOUT,
        Reason.UPSTREAM_TLS,
        Reason.BAD_UPSTREAM,
        Reason.UNSCANNABLE_RESPONSE,
        Reason.UPSTREAM_TIMEOUT,
        Reason.INTERNAL_FAULT,
        Reason.CLIENT_TLS,
    }
) - {Reason.RESOLVED_METADATA}
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


def _may_keep(found: Pin, policy: Policy, gate: Gate) -> bool:
    """Tell whether some rule lets the pin's addresses pass, by the policy and the site of now."""
    now = gate.clock.wall()
    protocols: tuple[Literal["https", "tcp", "http"], ...] = ("https", "tcp", "http")
    for protocol in protocols:
        decision = decide(Ask(found.name, found.port, protocol), policy, now)
        networks = parse_networks(() if decision.rule is None else decision.rule.addresses)
        if decision.allowed and not isinstance(
            vet(found.addresses, port=found.port, allowed=networks, site=gate.site), Reason
        ):
            return True
    return False


def proxy_token(head: RequestHead) -> str | Literal[Reason.SESSION_INVALID] | None:
    """Return the session token of Proxy-Authorization (Basic, user `s`, RFC 7617); None without the field."""
    value: bytes | None = None
    for name, text in head.headers:
        if len(name) == 19 and name.lower() == b"proxy-authorization":
            if value is not None:
                return Reason.SESSION_INVALID
            value = text
    if value is None:
        return None
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return Reason.SESSION_INVALID
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except (Base64Error, ValueError):
        return Reason.SESSION_INVALID
    return password if colon and user == "s" and 0 < len(password) <= 512 else Reason.SESSION_INVALID


class Tunnel(msgspec.Struct, frozen=True):
    """CONNECT is answered 200. What is inside is HTTP, over TLS or not, or a denial to be told there."""


class Opaque(msgspec.Struct, frozen=True):
    """CONNECT is answered 200 and bytes go both ways unread: a `tcp` or passthrough rule.

    `check_sni`: the first bytes must be a ClientHello for the channel's name, without ECH.
    """

    host: str
    port: int
    check_sni: bool


class Channel:
    """A client connection: its session, its one name, its pins, its counts and its two records.

    `cut`, `hold` and `wait` are set by the engine: they end the connection at once, stop reading all of it, or
    stop reading the client's body.
    """

    def __init__(self, gate: Gate, peer: tuple[str, int], local: tuple[str, int]) -> None:
        self.gate = gate
        self.peer = peer
        self.listener = f"{local[0]}:{local[1]}"
        self.flow = new_flow()
        self.began = time.monotonic()
        self.cut: Callable[[Reason], None] = lambda _: None
        self.hold: Callable[..., None] = lambda **_: None
        self.wait: Callable[..., None] = lambda **_: None
        self.brake: Callable[..., None] = lambda **_: None
        self.joined: Callable[[], None] = lambda: None
        self.crowded = False
        self.session: LiveSession | None = None
        self.host: Host | None = None
        self.port = 0
        self.tls = False
        self.offers_h2 = False
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
        self._observed: Reason | None = None
        self._name: Loggable | None = None
        self._token: str | None = None
        self._pins: dict[tuple[str, int], Pin] = {}
        self._vetted_for: dict[tuple[str, int], tuple[tuple[str, ...], Site]] = {}
        self._open: dict[tuple[str, int], int] = {}
        self._addresses: dict[tuple[str, int], str] = {}
        self._address: str | None = None
        self._vetted: tuple[str, ...] | None = None
        self._recorded = self._told_before = False
        self._closed = False

    # -- who --------------------------------------------------------------------------------------

    @property
    def subject(self) -> Subject:
        """Whom the records are about."""
        return NOBODY if self.session is None else self.session.subject

    async def identify(self, head: RequestHead) -> Reason | None:
        """Find the session by the head's token and the source; None when it is known and may go on."""
        token = proxy_token(head)
        if isinstance(token, Reason):
            return token
        if self.gate.keeper_gone():
            return Reason.KEEPER_UNAVAILABLE
        if self.session is None or (token is not None and token != self._token):
            found: LiveSession | Reason | None = self.gate.sessions.known(token, self.peer[0], self.listener)
            if found is None:
                found = await self.gate.sessions.open(token, self.peer[0], self.listener)
            if isinstance(found, Reason):
                return found
            refused = self._join(found)
            if refused is not None:
                return refused
            self._token = token
        return None if self.session is None else self.session.refusal(self.gate.clock.boot())

    def _join(self, session: LiveSession) -> Reason | None:
        if self.session is not None and self.session is not session:
            # One connection, one session: a second one would inherit tunnels and pins.
            return Reason.SESSION_INVALID
        if len(session.channels) >= self.gate.settings.limits.connections_per_session:
            return Reason.BUDGET
        self.session = session
        session.channels.add(self)
        self.joined()
        return None

    # -- CONNECT ----------------------------------------------------------------------------------

    async def admit(self, head: RequestHead) -> None:
        """Judge a CONNECT; leaves `outcome`. The decision is on record when this returns."""
        self.outcome = None
        reason, spoken_now = await self._judge_connect(head)
        if reason is not None and (spoken_now or reason in _AT_CONNECT or not self._may_tell_inside()):
            self.outcome = self._deny_connect(reason)
            return
        refused = await self._certify(reason) or self._record_connect(reason)
        if refused is not None:
            self.outcome = self._deny_connect(refused)
            return
        self.denied = reason
        if reason is not None:
            self._alarm(reason, self.flow)
        if self.outcome is None:
            self.outcome = Tunnel()

    async def _judge_connect(self, head: RequestHead) -> tuple[Reason | None, bool]:
        """Return the reason against a CONNECT, and whether it must be spoken at once."""
        authority = parse_authority(head.target, default_port=None)
        if isinstance(authority, Reason):
            # Whose it is goes on record; what is wrong with the target comes first all the same.
            await self.identify(head)
            self._name = self.gate.redact.url(head.target)
            return authority, True
        self._set_name(authority)
        if head.authority is not None:
            named = parse_authority(head.authority, default_port=authority.port)
            if named != authority:
                return Reason.AMBIGUOUS_HOST, True
        if head.length != 0:
            return Reason.AMBIGUOUS, True
        static = self._static_reason(authority.host, authority.port)
        refused = await self.identify(head)
        if self.session is None or refused is not None or static is Reason.LOOP:
            return static or refused, True
        decision, opaque = self._decide_connect(authority)
        if not decision.allowed:
            return decision.reason, opaque or not self.session.policy.names_port(authority.port)
        self.rule = decision.rule
        self._observed = decision.reason if decision.observed else None
        over = await self._charge_name(authority.host)
        if over is not None:
            return over, False
        return (await self._open_opaque(authority, decision.rule), True) if opaque and decision.rule else (None, False)

    async def _certify(self, reason: Reason | None) -> Reason | None:
        """Have a certificate for the name before the tunnel is promised; without one, say so now."""
        certify, session = self.gate.certify, self.session
        plain = self.rule is not None and self.rule.protocol == "http"
        if self.outcome is not None or certify is None or session is None or plain:
            return None
        return await certify(session.id, str(self.host), reason is not None)

    def _set_name(self, authority: Authority) -> None:
        self.host, self.port = authority.host, authority.port
        self._name = loggable(str(authority.host))

    def _static_reason(self, host: Host, port: int) -> Reason | None:
        """Say what is wrong with a host whatever the policy, for a client whose policy is not known."""
        if not isinstance(host, str):
            if host in self.gate.site.own_addresses and port in self.gate.site.own_ports:
                return Reason.LOOP
            return literal_reason(host, self.gate.site)
        if is_metadata_name(host):
            return Reason.METADATA
        return Reason.SELF_OR_GATEWAY if is_gateway_name(host) else None

    def _decide_connect(self, authority: Authority) -> tuple[Decision, bool]:
        """Ask for https first, then tcp, then plain http; say if the rule makes the tunnel opaque."""
        if self.session is None:
            return Decision(Verdict.DENY, Reason.SESSION_REQUIRED, None), False
        policy, now = self.session.policy, self.gate.clock.wall()
        best = decide(Ask(authority.host, authority.port, "https"), policy, now)
        if best.allowed:
            opaque = best.rule is not None and best.rule.tls == "unsafe_passthrough" and not best.observed
            return best, opaque
        tcp = decide(Ask(authority.host, authority.port, "tcp"), policy, now)
        if tcp.allowed and not tcp.observed:
            return tcp, True
        plain = decide(Ask(authority.host, authority.port, "http"), policy, now)
        return (plain, False) if plain.allowed else (best, False)

    async def _charge_name(self, host: Host) -> Reason | None:
        if self.session is None:
            return Reason.SESSION_REQUIRED
        spec = self.session.policy.spec
        charges = [
            Charge(self.session.id, "distinct_names", f"{key}:{host}", budget.distinct_names_per_hour, 3600)
            for key, budget in (
                ("session", spec.budgets_session),
                ("policy", spec.budgets_policy),
                ("owner", spec.budgets_owner),
            )
            if budget.distinct_names_per_hour is not None
        ]
        if charges and not await self.gate.ledger.take_or_draw(charges):
            return Reason.BUDGET
        return None

    async def _open_opaque(self, authority: Authority, rule: Rule) -> Reason | None:
        reason = await self.resolve(authority.host, authority.port, rule.addresses)
        if reason is None and self.session is not None:
            passthrough = rule.protocol == "https"
            self.metered = upload_charges(self.session, rule)
            self.outcome = Opaque(str(authority.host), authority.port, passthrough)
        return reason

    async def pay(self, size: int) -> Reason | None:
        """Pay for bytes of an opaque tunnel out of the upload budgets."""
        return None if await self.gate.ledger.take_or_draw(self.metered, size) else Reason.BUDGET

    def _may_tell_inside(self) -> bool:
        """Whether a certificate may be spent on telling a denial inside the TLS."""
        if self.session is None:
            return False
        now = self.gate.clock.boot()
        recent = [at for at in self.session.denied_leaves if now - at < 60]
        allowed = len(recent) < self.gate.settings.limits.denied_leaves_per_minute
        self.session.denied_leaves = [*recent, now] if allowed else recent
        return allowed

    def _record_connect(self, reason: Reason | None) -> Reason | None:
        if self._recorded:
            self._end_record()
            self.flow = new_flow()
        self._recorded = True
        return self.gate.recorder.conn_decision(
            self.subject,
            self.flow,
            self._conn(),
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=reason or self._observed,
            rule=self.rule.id if self.rule is not None and reason is None else None,
            observed=reason is None and self._observed is not None,
        )

    def _deny_connect(self, reason: Reason) -> Denial:
        """Record a CONNECT that is refused at once, both lines, and count it against the connection."""
        self.denied = reason
        refused = self._record_connect(reason)
        reason = refused or reason
        self._alarm(reason, self.flow)
        reply = denial(reason, flow=self.flow, host=self._told())
        self._end_record()
        self._forget_connect()
        self.count_denial()
        return reply

    def _forget_connect(self) -> None:
        """Leave nothing of a refused CONNECT for what follows on the same connection (P-40)."""
        self.flow = new_flow()
        self.host, self.port, self.rule, self.denied = None, 0, None, None
        self._name = self._vetted = None
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

    def count_denial(self) -> None:
        """Close a connection that does nothing but be denied (P-40)."""
        self._denials += 1
        if self._denials >= self.gate.settings.limits.denials_per_connection:
            self.closing = True

    # -- where ------------------------------------------------------------------------------------

    async def resolve(self, host: Host, port: int, allowed: tuple[str, ...]) -> Reason | None:
        """Look the host up once, vet the whole answer and pin it (invariant 3)."""
        gate = self.gate
        payer = None if self.session is None else self.session.id
        found = await pin(
            host, port, allowed=allowed, site=gate.site, resolver=gate.resolver, clock=gate.clock, payer=payer
        )
        if isinstance(found, Reason):
            return found
        self._pins[str(host), port] = found
        self._vetted_for[str(host), port] = (allowed, gate.site)
        self._vetted = tuple(str(address) for address in found.addresses)
        return None

    def pin(self, host: str, port: int) -> Pin | None:
        """Return the pin that may be dialled for `host:port`, if there is one and it is young enough."""
        found = self._pins.get((host, port))
        if found is None or not self.pin_is_fresh(host, port):
            return None
        return found

    def pin_is_fresh(self, host: str, port: int) -> bool:
        """Tell whether what was vetted for `host:port` is younger than `upstream.pin_max_age_seconds`."""
        found = self._pins.get((host, port))
        max_age = self.gate.settings.upstream.pin_max_age_seconds
        return found is not None and found.is_fresh(now=self.gate.clock.boot(), max_age=max_age)

    def revet(self) -> bool:
        """Vet the pins again, after a reload; False when something is open that would not be opened now."""
        session, stays = self.session, True
        for (name, port), found in list(self._pins.items()):
            if session is not None and _may_keep(found, session.policy, self.gate):
                continue
            del self._pins[name, port]
            stays = stays and not self._open.get((name, port))
        return stays

    def has_upstream(self, host: str, port: int) -> bool:
        """Tell whether an open connection may be used again, so that no look-up is due."""
        return bool(self._open.get((host, port))) and self.pin_is_fresh(host, port)

    def vet_again(self, host: str, port: int, allowed: tuple[str, ...]) -> Reason | None:
        """Judge the addresses of an open connection by this rule's `addresses`; they were let in by another's."""
        found, site = self._pins[host, port], self.gate.site
        if self._vetted_for.get((host, port)) == (allowed, site):
            return None
        vetted = vet(found.addresses, port=port, allowed=parse_networks(allowed), site=site)
        return vetted if isinstance(vetted, Reason) else None

    def upstream_opened(self, host: str, port: int, address: str) -> None:
        """Take note of an open upstream connection and of the address that it went to."""
        self._open[host, port] = self._open.get((host, port), 0) + 1
        self._address = self._addresses[host, port] = str(ip_address(address.partition("%")[0]))

    def upstream_address(self, host: Host | None, port: int) -> str | None:
        """Return the address of the last upstream connection to `host:port`."""
        return self._addresses.get((str(host), port))

    def upstream_closed(self, host: str, port: int) -> None:
        """Take note that an upstream connection is gone."""
        self._open[host, port] = max(0, self._open.get((host, port), 0) - 1)

    # -- refusals, faults and the end -------------------------------------------------------------

    def refuse(self, reason: Reason) -> Denial:
        """Record what the engine refuses by itself, before there is a request (invariant 6)."""
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

    def alarm(self, reason: Reason, flow: str, *, credential: str | None = None) -> None:
        """Raise the incident that belongs to a reason, if one does."""
        self._alarm(reason, flow, credential)

    def _alarm(self, reason: Reason, flow: str, credential: str | None = None) -> None:
        name = _ALARMS.get(reason)
        if name is not None:
            self.gate.recorder.incident(self.subject, flow, name, reason=reason, host=self._name, credential=credential)

    def head_began(self) -> None:
        """Start the clock of a header block; the first byte counts, not each (V-01)."""
        if self.head_since is None:
            self.head_since = time.monotonic()

    def head_ended(self) -> None:
        """Stop the clock of a header block."""
        self.head_since = None

    def close(self) -> None:
        """Write the connection's end and every open exchange's; once."""
        if self._closed:
            return
        self._closed = True
        if self.session is not None:
            self.session.channels.discard(self)
        try:
            for exchange in list(self.exchanges):
                exchange.client_gone()
                exchange.finish()
        finally:
            if not self._recorded and not self._told_before:
                # It came and went without a request: a connection all the same (invariant 6).
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
            reason=reason or self._observed,
            rule=self.rule.id if self.rule is not None and reason is None else None,
            observed=reason is None and self._observed is not None,
        )

    def _conn(self, *, ended: bool = False) -> Conn:
        client = f"{host_text(ip_address(self.peer[0]))}:{self.peer[1]}" if self.peer[1] else self.peer[0]
        name, port = self._name, self.port or None
        if not ended:
            return Conn(client=client, name=name, port=port)
        return Conn(
            client=client,
            name=name,
            port=port,
            address=self._address,
            vetted=self._vetted,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            duration_ms=int((time.monotonic() - self.began) * 1000),
            end=self.end_reason or "closed",
        )
