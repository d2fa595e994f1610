"""One request and its answer, without any engine in it: heads and bytes in, effects out.

| the engine | calls | and does |
|---|---|---|
| has a request head | `judge` | what `effect` says: `Forward`, or a `Denial` |
| has body bytes of the client's | `upload`, `upload_end` | sends them on, or stops with the Reason |
| has a response head | `judge_response` | what `response_effect` says: `Relay`, or a `Denial` |
| has body bytes of the upstream's | `download`, `download_end` | sends what comes back |
| cannot go on | `stop`, `client_gone` | says the Denial if it still can |
| is done | `finish` | - |

Without an effect nothing may be sent. The record of a decision is written before the effect that it
announces is handed out (invariant 6); the secret is put in after every other edit (invariant 5).
"""

import time
from typing import Literal

import msgspec

from tidegate.audit.event import Credential, Http, Ws
from tidegate.audit.flow import new_flow
from tidegate.audit.redact import PATH_CAP, Loggable, loggable
from tidegate.credentials.bodywatch import BodyWatch
from tidegate.credentials.scrub import Scrubber, Unscannable
from tidegate.credentials.swap import Refusal, RequestView, SwapPlan, apply_swap, plan_swap
from tidegate.errors import CredentialError
from tidegate.exchange.channel import Channel, verdict_of
from tidegate.exchange.charges import body_limit, request_charges, upload_charges
from tidegate.exchange.fields import clean_request, clean_response, first
from tidegate.exchange.head import RequestHead, ResponseHead
from tidegate.exchange.redirect import Base, redirect_reason, refresh_target
from tidegate.exchange.reply import Denial, denial
from tidegate.exchange.sessions import Lease, LiveSession
from tidegate.policy.decide import Ask, Decision, Policy, decide
from tidegate.policy.names import Authority, Host, host_text, parse_authority
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.target import parse_absolute
from tidegate.session.budget import Charge

__all__ = ["Exchange", "Forward", "Relay"]

_GATHER_BYTES = 64 * 1024
_OBSERVED_BYTES = 1_000_000
_DEFAULT_PORTS = {"https": 443, "http": 80}


class Forward(msgspec.Struct, frozen=True):
    """Send the request on. `headers` are without Host, which is `authority`; the secret is in place."""

    host: str
    port: int
    tls: bool
    target: bytes
    authority: str
    headers: list[tuple[bytes, bytes]]


class Relay(msgspec.Struct, frozen=True):
    """Give the response to the client.

    `headers` are without framing. `length` None with a body: unknown, the engine frames it anew.
    `gather`: hold the short body back and send it with its final length in one piece. `upgrade`:
    after the head come bytes, both ways.
    """

    headers: list[tuple[bytes, bytes]]
    length: int | None
    has_body: bool
    gather: bool = False
    upgrade: bool = False


class Exchange:
    """The turn of one request."""

    def __init__(self, channel: Channel, head: RequestHead) -> None:
        self.channel = channel
        self.head = head
        self.flow = new_flow()
        self.began = time.monotonic()
        self.progress = self.began
        self.effect: Forward | Denial | None = None
        self.response_effect: Relay | Denial | None = None
        self.over = False
        self.answering = False
        self.uploaded = head.length == 0
        self.status: int | None = None
        self.bytes_up = self.bytes_down = 0
        self._host: Host | None = channel.host
        self._port = channel.port
        self._scheme: Literal["https", "http"] = "https" if channel.tls else "http"
        self._path: Path | None = None
        self._decision: Decision | None = None
        self._policy: Policy | None = None
        self._plan: SwapPlan | None = None
        self._lease: Lease | None = None
        self._watch: BodyWatch | None = None
        self._scrubber: Scrubber | None = None
        self._websocket = False
        self._reason: Reason | None = None
        self._hits = 0
        self._seen: set[str] = set()
        self._location: Loggable | None = None
        self._limit: int | None = None
        self._recorded = self._finished = False
        self._upgraded = self._client_gone = False
        self._metered: tuple[Charge, ...] = ()
        self._view: RequestView
        self._block: Http | None = None
        self._response: ResponseHead | None = None
        channel.exchanges.add(self)

    # -- the request ------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Judge the head; leaves `effect`, with its decision on record."""
        reason, credential = await self._judge()
        if reason is not None:
            self.effect = self._deny(reason, credential)
            return
        refused = self._record_decision(None)
        if refused is not None:
            self.effect = self._deny(refused, None)
            return
        self.effect = self._make_forward()

    async def _judge(self) -> tuple[Reason | None, str | None]:
        """Return the first reason against the request in order of precedence, and the credential it is about."""
        channel = self.channel
        # First, so that also what cannot be read stands in the log as this session's.
        stranger = await channel.identify(self.head) if channel.host is None else None
        named = self._name()
        if named is not None:
            # A tunnel that is refused anyway has the earlier reason.
            return (channel.denied or named) if named is Reason.AUTHORITY_MISMATCH else named, None
        if stranger is not None:
            return self._without_session(stranger), None
        session = channel.session
        if session is None or self._host is None or self._path is None:
            return Reason.SESSION_REQUIRED, None
        refused = Reason.KEEPER_UNAVAILABLE if channel.gate.keeper_gone() else None
        refused = refused or session.refusal(channel.gate.clock.boot()) or channel.denied
        if refused is not None:
            return refused, None
        reason = self._decide(session) or await self._charge(session)
        if reason is not None:
            return reason, None
        outcome = await self._provide(session)
        while outcome[0] is None and session.policy is not self._policy:
            # A reload came while this waited: what the old policy decided is worth nothing (invariant 8).
            reason = self._decide(session)
            outcome = (reason, None) if reason is not None else await self._provide(session)
        return outcome if outcome[0] is not None else (session.refusal(channel.gate.clock.boot()), None)

    def _name(self) -> Reason | None:
        """Bring all names of the request to one (invariant 4), and its target to a path."""
        target = self.head.target
        if target.startswith(b"/"):
            if self.channel.host is None:
                return Reason.LOOP  # origin form on the proxy's own port
            path = parse_target(target.decode("latin-1"))
        else:
            absolute = parse_absolute(target)
            if isinstance(absolute, Reason):
                return absolute
            mismatch = self._take_absolute(absolute.authority, absolute.scheme)
            if mismatch is not None:
                return mismatch
            path = absolute.path
        if isinstance(path, Reason):
            return path
        self._path = path
        return self._check_authority()

    def _take_absolute(self, authority: Authority, scheme: str) -> Reason | None:
        if self.channel.host is not None:
            same = (authority.host, authority.port, scheme) == (self._host, self._port, self._scheme)
            return None if same else Reason.AUTHORITY_MISMATCH
        self._host, self._port = authority.host, authority.port
        return None if scheme == "http" else Reason.SCHEME_NOT_ALLOWED

    def _check_authority(self) -> Reason | None:
        named = self.head.authority
        if named is None:
            return None
        if b"," in named:
            return Reason.AMBIGUOUS_HOST
        authority = parse_authority(named, default_port=self._port)
        if isinstance(authority, Reason):
            return authority
        if authority.host == self._host and authority.port == self._port:
            return None
        return Reason.AMBIGUOUS_HOST if self.channel.host is None else Reason.AUTHORITY_MISMATCH

    def _without_session(self, refused: Reason) -> Reason:
        """A client that is nobody still hears of metadata and of the gate's own address."""
        static = None if self._host is None else self.channel._static_reason(self._host, self._port)
        return static or refused

    def _decide(self, session: LiveSession) -> Reason | None:
        channel = self.channel
        if self._host is None or self._path is None:
            return Reason.MALFORMED_HOST
        if self._host in channel.gate.site.own_addresses and self._port in channel.gate.site.own_ports:
            return Reason.LOOP
        ask = Ask(self._host, self._port, self._scheme, self.head.method, self._path)
        self._policy = session.policy
        decision = self._decision = decide(ask, session.policy, channel.gate.clock.wall())
        if not decision.allowed:
            return decision.reason
        if self.head.trailers:
            return Reason.TRAILERS
        rule = decision.rule
        if rule is not None and rule.tls != "inspect":
            return Reason.NOT_HTTP
        self._websocket = bool(rule is not None and rule.websocket and self.head.upgrade == b"websocket")
        self._limit = body_limit(rule, session.policy.spec)
        if self._limit is not None and (self.head.length or 0) > self._limit:
            return Reason.BODY_TOO_LARGE
        return None

    async def _charge(self, session: LiveSession) -> Reason | None:
        rule = None if self._decision is None else self._decision.rule
        ledger = self.channel.gate.ledger
        charges = request_charges(session, rule)
        if charges and not await ledger.take_or_draw(charges):
            return Reason.BUDGET
        if self.channel.host is None and self._host is not None:
            over = await self.channel._charge_name(self._host)
            if over is not None:
                return over
        uploads = upload_charges(session, rule)
        if uploads and self.head.length and not await ledger.take_or_draw(uploads, self.head.length):
            return Reason.BUDGET
        if uploads and self.head.length is None:
            self._metered = uploads
        return None

    async def _provide(self, session: LiveSession) -> tuple[Reason | None, str | None]:
        """Judge the placeholders, pin the destination, borrow the credential."""
        decision, channel = self._decision, self.channel
        if decision is None or self._host is None or self._path is None:
            return Reason.INTERNAL_FAULT, None
        rule = decision.rule
        view = self._view = self._make_view(session)
        plan = plan_swap(view, session.holdings, session.known)
        if isinstance(plan, Refusal):
            return plan.reason, plan.credential
        if decision.observed and plan.credential is not None:
            return Reason.CREDENTIAL_OUT_OF_SCOPE, plan.credential.spec.name
        self._plan = plan
        self._seen.update(plan.seen)
        refusal = self._open_watch(session)
        if refusal is not None:
            return refusal.reason, refusal.credential
        allowed = () if rule is None else rule.addresses
        if channel.has_upstream(str(self._host), self._port):
            # The open connection was vetted for another rule, perhaps, or another epoch.
            reason = channel.vet_again(str(self._host), self._port, allowed)
        else:
            reason = await channel.resolve(self._host, self._port, allowed)
        if reason is not None:
            return reason, None
        if plan.credential is None:
            return None, None
        return await self._borrow(session, plan.credential.spec.name)

    async def _borrow(self, session: LiveSession, name: str) -> tuple[Reason | None, str | None]:
        gate = self.channel.gate
        lease: Lease | Reason | None = session.lease(name, gate.clock.boot())
        if lease is None:
            lease = await session.borrow(name, gate.keeper, gate.clock)
        if isinstance(lease, Reason):
            return lease, name
        refused = session.refusal(gate.clock.boot())
        if refused is not None:
            return refused, name
        self._lease = lease
        return None, name

    def _make_view(self, session: LiveSession) -> RequestView:
        rule = None if self._decision is None else self._decision.rule
        path = self._path or Path("/", None, (), ambiguous=False)
        target = path.text if path.query is None else f"{path.text}?{path.query}"
        return RequestView(
            self._host if self._host is not None else "",  # type: ignore[arg-type]
            self._port,
            self._scheme,
            self.head.method,
            path,
            target.encode("latin-1"),
            clean_request(self.head.headers, self.head.connection_tokens, identity=session.watched),
            () if rule is None else rule.strip,
            None if rule is None else rule.credential,
        )

    def _open_watch(self, session: LiveSession) -> Refusal | None:
        if not session.holdings or self.head.length == 0:
            return None
        strict = session.policy.spec.placeholders == "strict"
        coding = first(self.head.headers, b"content-encoding") or b""
        self._watch = BodyWatch(session.holdings, strict=strict, content_encoding=coding)
        return self._watch.open()

    def _make_forward(self) -> Forward | Denial:
        plan, view = self._plan, self._view
        if plan is None:
            return self.fault()
        secret = None if self._lease is None else self._lease.secret
        try:
            target, headers = apply_swap(view, plan, secret)
        except CredentialError:
            return self.stop(Reason.CREDENTIAL_UNAVAILABLE)
        if self._websocket:
            headers = [field for field in headers if field[0].lower() != b"sec-websocket-extensions"]
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        host = host_text(view.host)
        authority = host if self._port == _DEFAULT_PORTS[self._scheme] else f"{host}:{self._port}"
        return Forward(str(view.host), self._port, self._scheme == "https", target, authority, headers)

    # -- the request's body -----------------------------------------------------------------------

    def upload(self, data: bytes) -> Reason | None:
        """Take body bytes before they go on; a Reason stops the exchange."""
        size = len(data)
        self.bytes_up += size
        self.channel.bytes_up += size
        self.progress = time.monotonic()
        if self._limit is not None and self.bytes_up > self._limit:
            return Reason.BODY_TOO_LARGE
        if self._decision is not None and self._decision.observed:
            session = self.channel.session
            if session is None or not session.observe_upload(size, _OBSERVED_BYTES):
                return self._decision.reason or Reason.BUDGET
        if self._watch is not None and not self._upgraded:
            refusal = self._watch.feed(data)
            if refusal is not None:
                return refusal.reason
        return None

    def upload_end(self) -> None:
        """Take the end of the body."""
        self.uploaded = True
        self.progress = time.monotonic()

    @property
    def metered(self) -> bool:
        """Whether the body's length is unknown and each piece must be paid for (`pay`)."""
        return bool(self._metered)

    async def pay(self, size: int) -> Reason | None:
        """Pay for a piece of a body of unknown length out of the upload budgets."""
        paid = await self.channel.gate.ledger.take_or_draw(self._metered, size)
        return None if paid else Reason.BUDGET

    # -- the answer -------------------------------------------------------------------------------

    def on_response(self, head: ResponseHead) -> None:
        """Take a response head; `judge_response` comes next."""
        self._response = head
        self.answering = True
        self.progress = time.monotonic()

    def judge_response(self) -> None:
        """Judge the response head; leaves `response_effect`."""
        head, session = self._response, self.channel.session
        if head is None or session is None or self.over:
            self.response_effect = self.stop(Reason.SESSION_INVALID)
            return
        self.status = head.status
        if head.status == 101 and not self._is_upgrade(head):
            self.response_effect = self.stop(Reason.BAD_UPSTREAM)
            return
        credentialed = self._plan is not None and self._plan.credential is not None
        headers = clean_response(head.headers, head.connection_tokens, cookies=not credentialed)
        denied = self._judge_redirects(head, headers, session)
        if denied is not None:
            self.response_effect = denied
            return
        headers, hits = session.needles.scrub_headers(headers) if session.needles else (headers, 0)
        self._hits += hits
        self.response_effect = self._relay(head, headers, session)

    def _is_upgrade(self, head: ResponseHead) -> bool:
        return self._websocket and (first(head.headers, b"upgrade") or b"").lower() == b"websocket"

    def _judge_redirects(
        self, head: ResponseHead, headers: list[tuple[bytes, bytes]], session: LiveSession
    ) -> Denial | None:
        """Refuse a redirect to a denied place; drop what only hints at one. Edits `headers`."""
        redirecting = 300 <= head.status <= 399 and head.status != 304
        for field in list(headers):
            name = field[0].lower()
            if name not in (b"location", b"refresh", b"content-location"):
                continue
            target = refresh_target(field[1]) if name == b"refresh" else field[1]
            if target is None or self._redirect_reason(target, head.status, session) is None:
                continue
            clean, _ = session.needles.scrub(target) if session.needles else (target, 0)
            self._location = self.channel.gate.redact.url(clean)
            if redirecting and name == b"location":
                return self.stop(Reason.REDIRECT_DENIED)
            headers.remove(field)
            self._mark(Reason.REDIRECT_REMOVED)
        return None

    def _redirect_reason(self, target: bytes, status: int, session: LiveSession) -> Reason | None:
        if self._host is None:
            return Reason.MALFORMED_HOST
        base = Base(scheme=self._scheme, host=self._host, port=self._port, method=self.head.method)
        now = self.channel.gate.clock.wall()
        return redirect_reason(target, base=base, status=status, policy=session.policy, now=now)

    def _relay(self, head: ResponseHead, headers: list[tuple[bytes, bytes]], session: LiveSession) -> Relay | Denial:
        if head.status == 101:
            self._upgraded = True
            self._scrubber = Scrubber(session.needles) if session.needles else None
            return Relay([*headers, (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")], None, False, upgrade=True)
        bodiless = self.head.method == "HEAD" or head.status in (204, 304)
        if bodiless:
            told = first(head.headers, b"content-length") if head.status != 204 else None
            kept = [*headers, (b"Content-Length", told)] if told is not None else headers
            return Relay(kept, None, False)
        if head.length == 0:
            return Relay(headers, 0, False)
        length = head.length if head.length is not None and head.length >= 0 else None
        if session.needles:
            coding = b",".join(value for name, value in headers if name.lower() == b"content-encoding")
            try:
                self._scrubber = Scrubber(session.needles, coding)
            except Unscannable:
                return self.stop(Reason.UNSCANNABLE_RESPONSE)
            if self._scrubber.identity:
                headers = [field for field in headers if field[0].lower() != b"content-encoding"]
        gather = length is not None and length <= _GATHER_BYTES
        if self._scrubber is not None and not gather and self._scrubber.length_may_change:
            length = None
        return Relay(headers, length, True, gather=gather)

    def download(self, data: bytes) -> bytes | Reason:
        """Take body bytes of the upstream's and return what may go to the client."""
        size = len(data)
        self.bytes_down += size
        self.channel.bytes_down += size
        self.progress = time.monotonic()
        if self.bytes_down > self.channel.gate.settings.limits.response_bytes:
            return Reason.BODY_TOO_LARGE
        scrubber = self._scrubber
        if scrubber is None:
            return data
        try:
            clean = scrubber.feed(data)
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        if self._upgraded and scrubber.hits:
            self._hits += scrubber.hits
            return Reason.REFLECTED_SECRET
        return clean

    def download_end(self) -> bytes | Reason:
        """Take the end of the upstream's body and return what was held back."""
        scrubber = self._scrubber
        if scrubber is None:
            return b""
        try:
            rest = scrubber.finish()
        except Unscannable:
            return Reason.UNSCANNABLE_RESPONSE
        self._hits += scrubber.hits
        scrubber.hits = 0
        return rest

    # -- how it can stop --------------------------------------------------------------------------

    def stop(self, reason: Reason) -> Denial:
        """Give the exchange up for `reason`; the denial can be told if nothing was."""
        self._reason = self._reason or reason
        self.over = True
        self.channel.alarm(reason, self.flow)
        if not self._recorded:
            self._record_decision(reason)
        self.channel.count_denial()
        if not self.answering or self.response_effect is None:
            self.status = reason.status
        return denial(reason, flow=self.flow, host=self._told())

    def fault(self) -> Denial:
        """Give up because the gate itself failed."""
        self.channel.gate.recorder.fault("exchange", where="hook")
        return self.stop(Reason.INTERNAL_FAULT)

    def failed(self) -> None:
        """Take note that the gate failed under this exchange, whatever it was at."""
        self._reason = self._reason or Reason.INTERNAL_FAULT
        self.over = True

    def client_gone(self) -> None:
        """Take note that the client left before the end."""
        self.over = True
        self._client_gone = True

    def overdue(
        self, now: float, *, stall: float, slow: float, rate: int, idle: float = 600.0, life: float = 86400.0
    ) -> Reason | None:
        """Say which deadline has passed at `now` (monotonic), if one has: no byte, too few of them, or too long."""
        if now - self.began > life:
            return Reason.UPSTREAM_TIMEOUT if self.answering else Reason.CLIENT_TIMEOUT
        if isinstance(self.effect, Forward) and not self.answering and self.uploaded and now - self.progress > stall:
            return Reason.UPSTREAM_TIMEOUT
        if self.answering and not self._upgraded and now - self.progress > idle:
            return Reason.UPSTREAM_TIMEOUT
        if not self.uploaded and self.head.length != 0 and not self._upgraded:
            age = now - self.began
            if now - self.progress > stall or (age > slow and self.bytes_up < rate * age):
                return Reason.CLIENT_TIMEOUT
        return None

    def refused_by(self, policy: Policy, now: float) -> bool:
        """Tell whether `policy` would refuse this request, at wall time `now`."""
        if self._host is None or self._path is None or not isinstance(self.effect, Forward):
            return False
        decision = decide(Ask(self._host, self._port, self._scheme, self.head.method, self._path), policy, now)
        if self._upgraded and not (decision.rule is not None and decision.rule.websocket):
            return True
        return not decision.allowed

    def _deny(self, reason: Reason, credential: str | None) -> Denial:
        self._reason = reason
        self.over = True
        refused = self._record_decision(reason)
        reason = refused or reason
        self.channel.alarm(reason, self.flow, credential=credential)
        if credential is not None:
            self._record_credential("refuse", credential, reason)
        self.channel.count_denial()
        self.status = reason.status
        return denial(reason, flow=self.flow, host=self._told())

    def _told(self) -> str | None:
        return None if self._host is None else str(self._host)

    # -- records ----------------------------------------------------------------------------------

    def _record_decision(self, reason: Reason | None) -> Reason | None:
        channel = self.channel
        refused = channel.note_request()
        if refused is not None:
            return refused
        self._recorded = True
        observed = reason is None and self._decision is not None and self._decision.observed
        told = self._decision.reason if observed and self._decision is not None else reason
        refused = channel.gate.recorder.http_decision(
            channel.subject,
            self.flow,
            self._make_block(),
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=told,
            rule=self._rule_id(),
            observed=observed,
            parent=channel.flow,
        )
        if refused is None and reason is None and self._lease is not None and self._plan is not None:
            return self._record_use()
        return refused

    def _record_use(self) -> Reason | None:
        plan, lease = self._plan, self._lease
        if plan is None or plan.credential is None or lease is None:
            return None
        spec = plan.credential.spec
        block = Credential(name=spec.name, act="use", place=spec.place.kind, lease=lease.id, host=self._host_text())
        return self.channel.gate.recorder.credential_use(
            self.channel.subject,
            self.flow,
            block,
            verdict=Verdict.ALLOW,
            rule=self._rule_id(),
            parent=self.channel.flow,
        )

    def _record_credential(self, act: Literal["refuse", "seen", "scrub"], name: str, reason: Reason) -> None:
        block = Credential(name=name, act=act, host=self._host_text(), hits=self._hits or None)
        verdict = {"refuse": Verdict.DENY, "seen": Verdict.ALLOW, "scrub": Verdict.REDACT}[act]
        self.channel.gate.recorder.credential_use(
            self.channel.subject, self.flow, block, verdict=verdict, reason=reason, parent=self.channel.flow
        )

    def _mark(self, reason: Reason) -> None:
        block = Http(host=self._host_text(), port=self._port, location=self._location)
        self.channel.gate.recorder.event(
            self.channel.subject, self.flow, block, verdict=Verdict.REDACT, reason=reason, parent=self.channel.flow
        )

    def _host_text(self) -> Loggable | None:
        return None if self._host is None else loggable(str(self._host))

    def _rule_id(self) -> str | None:
        return None if self._decision is None or self._decision.rule is None else self._decision.rule.id

    def _make_block(self) -> Http:
        redact, path = self.channel.gate.redact, self._path
        credential = None if self._plan is None else self._plan.credential
        self._block = Http(
            version=loggable(self.head.version),
            method=loggable(self.head.method, 32),
            scheme=loggable(self._scheme),
            host=self._host_text(),
            port=self._port or None,
            path=loggable(path.text, PATH_CAP) if path is not None else redact.url(self.head.target),
            query=None if path is None or not path.query else redact.query(path.query),
            credential=None if credential is None else credential.spec.name,
        )
        return self._block

    def finish(self) -> None:
        """Write the end; once."""
        if self._finished:
            return
        self._finished = self.over = True
        self.channel.exchanges.discard(self)
        if not self._recorded:
            self._reason = self._reason or (Reason.CLIENT_TIMEOUT if self._client_gone else Reason.INTERNAL_FAULT)
            self._record_decision(self._reason)
        if self._scrubber is not None:
            self._hits += self._scrubber.hits
        self._record_marks()
        verdict, reason = self._final()
        block = self._block or self._make_block()
        ended = msgspec.structs.replace(
            block,
            status=self.status,
            address=self.channel.upstream_address(self._host, self._port),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            duration_ms=int((time.monotonic() - self.began) * 1000),
            location=self._location,
        )
        observed = reason is None and self._decision is not None and self._decision.observed
        self.channel.gate.recorder.http_end(
            self.channel.subject,
            self.flow,
            ended,
            verdict=verdict,
            reason=reason,
            rule=self._rule_id(),
            observed=observed,
            parent=self.channel.flow,
        )

    def _final(self) -> tuple[Verdict, Reason | None]:
        if self._reason is not None:
            return verdict_of(self._reason), self._reason
        if self._hits:
            return Verdict.REDACT, Reason.REFLECTED_SECRET
        if self._client_gone:
            return Verdict.ERROR, Reason.CLIENT_TIMEOUT
        return Verdict.ALLOW, None

    def _record_marks(self) -> None:
        if self._watch is not None:
            self._seen.update(self._watch.seen)
        for name in sorted(self._seen):
            self._record_credential("seen", name, Reason.PLACEHOLDER_SEEN)
        if self._hits:
            self.channel.alarm(Reason.REFLECTED_SECRET, self.flow)
            self._record_credential("scrub", "session", Reason.REFLECTED_SECRET)
        if self._upgraded:
            block = Ws(host=self._host_text(), bytes_up=self.bytes_up, bytes_down=self.bytes_down)
            self.channel.gate.recorder.event(
                self.channel.subject, self.flow, block, verdict=Verdict.ALLOW, parent=self.channel.flow
            )
