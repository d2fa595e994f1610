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

Longer than a module should be, since the order of what is judged is the safety of it, and is to be read in one place.
"""

import time

from tidegate.audit.flow import new_flow
from tidegate.credentials.bodywatch import BodyWatch
from tidegate.credentials.swap import Refusal, RequestView, SwapPlan, apply_swap, plan_swap
from tidegate.errors import CredentialError
from tidegate.exchange.answer import Answer
from tidegate.exchange.channel import Channel, verdict_of
from tidegate.exchange.charges import body_limit, head_size, name_charges, request_charges, upload_charges
from tidegate.exchange.connect import static_reason
from tidegate.exchange.effects import Forward, Relay
from tidegate.exchange.ending import End
from tidegate.exchange.fields import clean_request, first
from tidegate.exchange.head import RequestHead, ResponseHead
from tidegate.exchange.naming import Naming
from tidegate.exchange.redirect import Base
from tidegate.exchange.reply import Denial, denial
from tidegate.exchange.request_log import RequestLog
from tidegate.exchange.sessions import Lease, LiveSession
from tidegate.policy.decide import Ask, Decision, Policy, decide
from tidegate.policy.names import Host
from tidegate.policy.paths import Path
from tidegate.policy.reasons import Reason, Verdict
from tidegate.session.budget import Charge

__all__ = ["Exchange"]


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
        self._naming = Naming(channel.host, channel.port, tls=channel.tls)
        self._log = RequestLog(channel, self.flow, head, self._naming)
        self._policy: Policy | None = None
        self._decision: Decision | None = None
        self._view: RequestView | None = None
        self._plan: SwapPlan | None = None
        self._lease: Lease | None = None
        self._watch: BodyWatch | None = None
        self._answer: Answer | None = None
        self._response: ResponseHead | None = None
        self._websocket = False
        self._reason: Reason | None = None
        self._culprit: str | None = None
        self._limit: int | None = None
        self._received = self._owed = 0
        self._uploads: tuple[Charge, ...] = ()
        self._promised = False
        self._finished = False
        self._broken_off: str | None = None
        channel.exchanges.add(self)

    # -- the request ------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Judge the head; leaves `effect`, with its decision on record."""
        reason, credential = await self._judge()
        if reason is None:
            reason, credential = self._record_allowed(), None
        self.effect = self._make_forward() if reason is None else self._deny(reason, credential)

    async def _judge(self) -> tuple[Reason | None, str | None]:
        """Return the first reason against the request in order of precedence, and the credential it is about."""
        channel = self.channel
        # First, so that also what cannot be read stands in the log as this session's.
        stranger = await channel.identify(self.head) if channel.host is None else None
        named = self._naming.find(self.head)
        if named is not None:
            # A tunnel that is refused anyway has the earlier reason.
            return (channel.denied or named) if named is Reason.AUTHORITY_MISMATCH else named, None
        session, host, path = channel.session, self._naming.host, self._naming.path
        if host is None or path is None:
            return Reason.MALFORMED_HOST, None
        if stranger is not None or session is None:
            # A client that is nobody still hears of metadata and of the gate's own address.
            return static_reason(host, self._naming.port, channel.gate) or stranger or Reason.SESSION_REQUIRED, None
        refused = Reason.KEEPER_UNAVAILABLE if channel.gate.keeper_gone() else None
        refused = refused or session.refusal(channel.gate.clock.boot()) or channel.denied
        if refused is not None:
            return refused, None
        return await self._judge_by_policy(session, host, path)

    async def _judge_by_policy(self, session: LiveSession, host: Host, path: Path) -> tuple[Reason | None, str | None]:
        # What needs no wait comes first: a placeholder in the wrong place is told whatever the budgets say.
        outcome = self._weigh(session, host, path)
        if outcome[0] is not None:
            return outcome
        # A look-up tells the world what the request says: none for which there may be no record (invariant 6).
        reason = await self._charge(session, host) or self._measure() or self._promise()
        if reason is not None:
            return reason, None
        outcome = await self._provide(session, host)
        while outcome[0] is None and session.policy is not self._policy:
            # A reload came while this waited: what the old policy decided is worth nothing (invariant 8).
            outcome = self._weigh(session, host, path)
            if outcome[0] is None:
                reason = self._measure()
                outcome = (reason, None) if reason is not None else await self._provide(session, host)
        return outcome if outcome[0] is not None else (session.refusal(self.channel.gate.clock.boot()), None)

    def _weigh(self, session: LiveSession, host: Host, path: Path) -> tuple[Reason | None, str | None]:
        """Judge by the policy and by the placeholders, without a wait."""
        reason = self._decide(session, host, path)
        decision = self._decision
        if reason is not None or decision is None:
            return reason or Reason.INTERNAL_FAULT, None
        view = self._view = self._make_view(session, decision, host, path)
        plan = plan_swap(view, session.holdings, session.known)
        if isinstance(plan, Refusal):
            return plan.reason, plan.credential
        if decision.observed and plan.credential is not None:
            return Reason.CREDENTIAL_OUT_OF_SCOPE, plan.credential.spec.name
        self._plan = plan
        refusal = self._open_watch(session)
        return (None, None) if refusal is None else (refusal.reason, refusal.credential)

    def _decide(self, session: LiveSession, host: Host, path: Path) -> Reason | None:
        site, naming = self.channel.gate.site, self._naming
        if host in site.own_addresses and naming.port in site.own_ports:
            return Reason.LOOP
        policy = self._policy = session.policy
        ask = Ask(host, naming.port, naming.scheme, self.head.method, path)
        decision = self._decision = decide(ask, policy, self.channel.gate.clock.wall())
        if not decision.allowed:
            return decision.reason
        rule = decision.rule
        if rule is not None and rule.tls != "inspect":
            return Reason.NOT_HTTP
        # An upgrade that has a body too would go on in two framings at once.
        wanted = self.head.upgrade == b"websocket" and self.head.length == 0
        self._websocket = bool(wanted and rule is not None and rule.websocket)
        self._limit = body_limit(rule, policy.spec)
        return None

    def _measure(self) -> Reason | None:
        """Say what is wrong with the body that the head announces."""
        if self._limit is not None and (self.head.length or 0) > self._limit:
            return Reason.BODY_TOO_LARGE
        return Reason.TRAILERS if self.head.trailers else None

    async def _charge(self, session: LiveSession, host: Host) -> Reason | None:
        """Pay for the request, its name and its head; the body is paid for as it goes on."""
        decision, view = self._decision, self._view
        if decision is None or view is None:
            return Reason.INTERNAL_FAULT
        rule = decision.rule
        ledger = self.channel.gate.ledger
        charges = request_charges(session, rule)
        names = () if self._naming.tunnel else name_charges(session, host)
        for owed in (charges, names):
            unpaid = await ledger.take_or_draw(owed) if owed else None
            if unpaid is not None:
                return unpaid
        uploads = self._uploads = upload_charges(session, rule, observed=decision.observed)
        if not uploads:
            return None
        size = head_size(self.head.method, view.target, self._naming.authority, view.headers)
        if min(charge.limit for charge in uploads) < size + (self.head.length or 0):
            return self._unpaid(Reason.BUDGET)  # said now, since it can never be paid
        unpaid = await ledger.take_or_draw(uploads, size)
        return None if unpaid is None else self._unpaid(unpaid)

    def _unpaid(self, reason: Reason) -> Reason:
        """Return why bytes may not go on that are not paid for: observing ends where its little budget does."""
        decision = self._decision
        if reason is Reason.BUDGET and decision is not None and decision.observed:
            return decision.reason or reason
        return reason

    def _promise(self) -> Reason | None:
        """Have the record of this request promised, and its connection's written."""
        channel = self.channel
        refused = channel.note_request() or channel.gate.recorder.promise(channel.subject)
        self._promised = refused is None
        return refused

    async def _provide(self, session: LiveSession, host: Host) -> tuple[Reason | None, str | None]:
        """Pin the destination, borrow the credential."""
        decision, plan = self._decision, self._plan
        upstreams, port = self.channel.upstreams, self._naming.port
        if decision is None or plan is None:
            return Reason.INTERNAL_FAULT, None
        allowed = () if decision.rule is None else decision.rule.addresses
        if upstreams.has_open(str(host), port):
            # The open connection was vetted for another rule, perhaps, or another epoch.
            reason = upstreams.vet_again(str(host), port, allowed)
        else:
            reason = await upstreams.resolve(host, port, allowed, session)
        if reason is not None or plan.credential is None:
            return reason, None
        return await self._borrow(session, plan.credential.spec.name)

    async def _borrow(self, session: LiveSession, name: str) -> tuple[Reason | None, str | None]:
        gate = self.channel.gate
        lease: Lease | Reason | None = session.lease(name, gate.clock.boot())
        if lease is None:
            lease = await session.borrow(name, gate.keeper, gate.clock)
        if isinstance(lease, Reason):
            return lease, name
        self._lease = lease
        return session.refusal(gate.clock.boot()), name

    def _make_view(self, session: LiveSession, decision: Decision, host: Host, path: Path) -> RequestView:
        rule, naming, head = decision.rule, self._naming, self.head
        target = path.text if path.query is None else f"{path.text}?{path.query}"
        headers = clean_request(head.headers, head.connection_tokens, identity=session.watched)
        strip = () if rule is None else rule.strip
        credential = None if rule is None else rule.credential
        raw = target.encode("latin-1")
        return RequestView(host, naming.port, naming.scheme, head.method, path, raw, headers, strip, credential)

    def _open_watch(self, session: LiveSession) -> Refusal | None:
        if not session.holdings or self.head.length == 0:
            return None
        strict = session.policy.spec.placeholders == "strict"
        coding = first(self.head.headers, b"content-encoding") or b""
        self._watch = BodyWatch(session.holdings, strict=strict, content_encoding=coding)
        return self._watch.open()

    def _record_allowed(self) -> Reason | None:
        plan, lease = self._plan, self._lease
        credential = None if plan is None or plan.credential is None else plan.credential.spec
        borrowed = None if lease is None else lease.id
        return self._log.decision(None, self._decision, credential, lease=borrowed, promised=self._promised)

    def _make_forward(self) -> Forward | Denial:
        plan, view, naming = self._plan, self._view, self._naming
        if plan is None or view is None:
            return self.fault()
        secret = None if self._lease is None else self._lease.secret
        try:
            target, headers = apply_swap(view, plan, secret)
        except CredentialError:
            return self.stop(Reason.CREDENTIAL_UNAVAILABLE)
        if self._websocket:
            headers = [field for field in headers if field[0].lower() != b"sec-websocket-extensions"]
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        return Forward(
            str(view.host),
            naming.port,
            naming.scheme == "https",
            target,
            naming.authority,
            headers,
            self.head.length,
            upgrade=self._websocket,
        )

    def head_sent(self) -> None:
        """Take note that the head of the request leaves; what was allowed and never left does not count."""
        forward = self.effect
        if isinstance(forward, Forward):
            self._sent(head_size(self.head.method, forward.target, forward.authority, forward.headers))

    def _sent(self, size: int) -> None:
        """Count what leaves."""
        self.bytes_up += size
        self.channel.bytes_up += size

    # -- the request's body -----------------------------------------------------------------------

    def upload(self, data: bytes) -> Reason | None:
        """Take body bytes before they go on; a Reason stops the exchange."""
        size = len(data)
        self._received += size
        self._owed = 0
        self.progress = time.monotonic()
        if self.head.length is not None and self._received > self.head.length and not self.upgraded:
            return Reason.AMBIGUOUS
        if self._limit is not None and self._received > self._limit:
            return Reason.BODY_TOO_LARGE
        if self._watch is not None and not self.upgraded:
            refusal = self._watch.feed(data)
            if refusal is not None:
                self._culprit = refusal.credential
                return refusal.reason
        if self._uploads and size:
            paid = self.channel.gate.ledger.take(self._uploads, size)
            if isinstance(paid, Reason):
                return self._unpaid(paid)
            if not paid:
                self._owed = size
                return None
        self._sent(size)
        return None

    def upload_end(self) -> Reason | None:
        """Take the end of the body; a Reason when it is not the body that the head announced (RFC 9113 8.1.1)."""
        self.uploaded = True
        self.progress = time.monotonic()
        whole = self.upgraded or self.head.length is None or self._received == self.head.length
        return None if whole else Reason.AMBIGUOUS

    @property
    def metered(self) -> bool:
        """Whether the last piece of the body could not be paid for out of memory, and `pay` must be asked."""
        return bool(self._owed)

    async def pay(self, size: int) -> Reason | None:
        """Pay for a piece of what the client sends out of the upload budgets."""
        self._owed = 0
        unpaid = await self.channel.gate.ledger.take_or_draw(self._uploads, size)
        if unpaid is not None:
            return self._unpaid(unpaid)
        self._sent(size)
        return None

    # -- the answer -------------------------------------------------------------------------------

    def on_response(self, head: ResponseHead) -> None:
        """Take a response head; `judge_response` comes next."""
        self._response = head
        self.answering = True
        self.progress = time.monotonic()

    def judge_response(self) -> None:
        """Judge the response head; leaves `response_effect`."""
        head, session, host, path = self._response, self.channel.session, self._naming.host, self._naming.path
        if head is None or session is None or host is None or path is None or self.over:
            self.response_effect = self.stop(Reason.SESSION_INVALID)
            return
        self.status = head.status
        gate, naming = self.channel.gate, self._naming
        base = Base(scheme=naming.scheme, host=host, port=naming.port, method=self.head.method, path=path)
        credentialed = self._plan is not None and self._plan.credential is not None
        answer = self._answer = Answer(session, base, gate.redact, credentialed=credentialed, websocket=self._websocket)
        outcome = answer.judge(head, gate.clock.wall())
        for location in answer.removed:
            self._log.removed(location)
        self.response_effect = self.stop(outcome) if isinstance(outcome, Reason) else outcome

    @property
    def upgraded(self) -> bool:
        """Whether bytes go both ways, after 101."""
        return self._answer is not None and self._answer.upgraded

    @property
    def decodes(self) -> bool:
        """Whether the answer comes coded and goes on plain, so that it may be much longer than what is received."""
        return self._answer is not None and self._answer.decodes

    def renew(self) -> Reason | None:
        """Search what is still to come for the secrets that the session has now."""
        return None if self._answer is None else self._answer.renew()

    def download(self, data: bytes) -> bytes | Reason:
        """Take body bytes of the upstream's and return what may go to the client."""
        size = len(data)
        self.bytes_down += size
        self.channel.bytes_down += size
        self.progress = time.monotonic()
        if self.bytes_down > self.channel.gate.settings.limits.response_bytes:
            return Reason.BODY_TOO_LARGE
        told = self._told_length()
        if told is not None and self.bytes_down > told:
            return Reason.BAD_UPSTREAM
        return data if self._answer is None else self._answer.feed(data)

    def _told_length(self) -> int | None:
        """Return how long the upstream said that its body is, if it did."""
        if self._response is None or self._response.length is None or self._response.length < 0 or self.upgraded:
            return None
        return self._response.length

    def download_end(self) -> bytes | Reason:
        """Take the end of the upstream's body and return what was held back."""
        told = self._told_length()
        if told is not None and self.bytes_down != told:
            return Reason.BAD_UPSTREAM
        return b"" if self._answer is None else self._answer.finish()

    # -- how it can stop --------------------------------------------------------------------------

    def stop(self, reason: Reason) -> Denial:
        """Give the exchange up for `reason`; the denial can be told if nothing was."""
        self._reason = self._reason or reason
        self.over = True
        culprit, self._culprit = self._culprit, None
        self.channel.alarm(reason, self.flow, host=self._log.host(), credential=culprit)
        if not self._log.decided:
            self._log.decision(reason, self._decision, None, promised=self._promised)
        if culprit is not None:
            self._log.credential("refuse", culprit, reason)
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
        self.break_off(End.CLIENT_LEFT)

    def break_off(self, end: str, reason: Reason | None = None) -> None:
        """Take note that the connection ends under it: the log's word for that, and the reason if policy had one."""
        if not self.over:
            self.over = True
            self._broken_off, self._reason = end, self._reason or reason

    def overdue(
        self, now: float, *, stall: float, slow: float, rate: int, idle: float = 600.0, life: float = 86400.0
    ) -> Reason | None:
        """Say which deadline has passed at `now` (monotonic), if one has: no byte, too few of them, or too long."""
        if now - self.began > life:
            return Reason.UPSTREAM_TIMEOUT if self.answering else Reason.CLIENT_TIMEOUT
        if isinstance(self.effect, Forward) and not self.answering and self.uploaded and now - self.progress > stall:
            return Reason.UPSTREAM_TIMEOUT
        if self.answering and not self.upgraded and now - self.progress > idle:
            return Reason.UPSTREAM_TIMEOUT
        if not self.uploaded and self.head.length != 0 and not self.upgraded:
            age = now - self.began
            if now - self.progress > stall or (age > slow and self._received < rate * age):
                return Reason.CLIENT_TIMEOUT
        return None

    def refused_by(self, policy: Policy, now: float) -> Reason | None:
        """Say for what `policy` would refuse this request at wall time `now`, if it would."""
        naming = self._naming
        if naming.host is None or naming.path is None or not isinstance(self.effect, Forward):
            return None
        decision = decide(Ask(naming.host, naming.port, naming.scheme, self.head.method, naming.path), policy, now)
        if self.upgraded and not (decision.rule is not None and decision.rule.websocket):
            return decision.reason or Reason.NOT_IN_ALLOWLIST
        return None if decision.allowed else decision.reason

    def _deny(self, reason: Reason, credential: str | None) -> Denial:
        self._reason = reason
        self.over = True
        plan = None if self._plan is None or self._plan.credential is None else self._plan.credential.spec
        refused = self._log.decision(reason, self._decision, plan, promised=self._promised)
        reason = refused or reason
        self.channel.alarm(reason, self.flow, host=self._log.host(), credential=credential)
        if credential is not None:
            self._log.credential("refuse", credential, reason)
        self.channel.count_denial()
        self.status = reason.status
        return denial(reason, flow=self.flow, host=self._told())

    def _told(self) -> str | None:
        return None if self._naming.host is None else str(self._naming.host)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the end; once."""
        if self._finished:
            return
        self._finished = self.over = True
        self.channel.exchanges.discard(self)
        if not self._log.decided:
            self._reason = self._reason or (Reason.CLIENT_TIMEOUT if self._broken_off else Reason.INTERNAL_FAULT)
            self._log.decision(self._reason, self._decision, None, promised=self._promised)
        self._record_marks()
        verdict, reason = self._final()
        self._log.end(
            verdict,
            reason,
            observed=verdict is Verdict.ALLOW and self._decision is not None and self._decision.observed,
            status=self.status,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            began=self.began,
            location=None if self._answer is None else self._answer.location,
            end=self._broken_off,
        )

    def _record_marks(self) -> None:
        seen = set(() if self._plan is None else self._plan.seen)
        seen.update(() if self._watch is None else self._watch.seen)
        for name in sorted(seen):
            self._log.credential("seen", name, Reason.PLACEHOLDER_SEEN)
        found = {} if self._answer is None else self._answer.found
        for name, hits in sorted(found.items()):
            self.channel.alarm(Reason.REFLECTED_SECRET, self.flow, host=self._log.host(), credential=name)
            self._log.credential("scrub", name, Reason.REFLECTED_SECRET, hits=hits)
        if self.upgraded:
            self._log.websocket(bytes_up=self.bytes_up, bytes_down=self.bytes_down)

    def _final(self) -> tuple[Verdict, Reason | None]:
        if self._reason is not None:
            return verdict_of(self._reason), self._reason
        if self._answer is not None and self._answer.hits:
            return Verdict.REDACT, Reason.REFLECTED_SECRET
        if self._broken_off is not None:
            return Verdict.ERROR, None
        # What passed by observe only keeps the reason that it would have been denied for.
        return Verdict.ALLOW, None if self._decision is None else self._decision.reason
