"""The records of one request: its decision, what became of credentials, its end."""

import time
from typing import Literal

import msgspec

from tidegate.audit.event import Credential, Http, Ws
from tidegate.audit.flow import FlowId
from tidegate.audit.redact import PATH_CAP, Loggable, loggable
from tidegate.credentials.spec import CredentialSpec
from tidegate.exchange.channel import Channel, verdict_of
from tidegate.exchange.head import RequestHead
from tidegate.exchange.naming import Naming
from tidegate.policy.decide import Decision
from tidegate.policy.reasons import Reason, Verdict

__all__ = ["RequestLog"]

_VERDICTS = {"refuse": Verdict.DENY, "seen": Verdict.ALLOW, "scrub": Verdict.REDACT}


class RequestLog:
    """Writes what an exchange tells it, under the exchange's flow and its connection's."""

    def __init__(self, channel: Channel, flow: FlowId, head: RequestHead, naming: Naming) -> None:
        self._channel = channel
        self._recorder = channel.gate.recorder
        self._flow = flow
        self._head = head
        self._naming = naming
        self._block: Http | None = None
        self._rule: str | None = None
        self.decided = False

    def decision(
        self,
        reason: Reason | None,
        decision: Decision | None,
        credential: CredentialSpec | None,
        *,
        lease: str | None = None,
        promised: bool = False,
    ) -> Reason | None:
        """Record what was decided, before any effect; a Reason back means that it could not be.

        `lease` is about to travel, and its use is recorded with the decision. `promised`: the recorder has promised
        this line.
        """
        refused = self._channel.note_request()
        if refused is not None:
            return refused
        self.decided = True
        observed = reason is None and decision is not None and decision.observed
        self._rule = None if decision is None or decision.rule is None else decision.rule.id
        return self._recorder.http_decision(
            self._channel.subject,
            self._flow,
            self._make_block(credential),
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=decision.reason if observed and decision is not None else reason,
            rule=self._rule,
            observed=observed,
            parent=self._channel.flow,
            promised=promised,
            use=None if credential is None or lease is None else self._make_use(credential, lease),
        )

    def _make_block(self, credential: CredentialSpec | None) -> Http:
        redact, path = self._channel.gate.redact, self._naming.path
        self._block = Http(
            version=loggable(self._head.version),
            method=loggable(self._head.method, 32),
            scheme=loggable(self._naming.scheme),
            host=self.host(),
            port=self._naming.port or None,
            path=loggable(path.text, PATH_CAP) if path is not None else redact.url(self._head.target),
            query=None if path is None or not path.query else redact.query(path.query),
            credential=None if credential is None else credential.name,
        )
        return self._block

    def _make_use(self, spec: CredentialSpec, lease: str) -> Credential:
        return Credential(name=spec.name, act="use", place=spec.place.kind, lease=lease, host=self.host())

    def credential(self, act: Literal["refuse", "seen", "scrub"], name: str, reason: Reason, *, hits: int = 0) -> None:
        """Record what became of a credential or its placeholder."""
        block = Credential(name=name, act=act, host=self.host(), hits=hits or None)
        self._recorder.event(
            self._channel.subject,
            self._flow,
            block,
            verdict=_VERDICTS[act],
            reason=reason,
            parent=self._channel.flow,
        )

    def removed(self, location: Loggable) -> None:
        """Record that a header which only hinted at a denied place was dropped."""
        block = Http(host=self.host(), port=self._naming.port, location=location)
        self._recorder.event(
            self._channel.subject,
            self._flow,
            block,
            verdict=Verdict.REDACT,
            reason=Reason.REDIRECT_REMOVED,
            parent=self._channel.flow,
        )

    def websocket(self, *, bytes_up: int, bytes_down: int) -> None:
        """Record a WebSocket's whole life."""
        block = Ws(host=self.host(), bytes_up=bytes_up, bytes_down=bytes_down)
        self._recorder.event(self._channel.subject, self._flow, block, verdict=Verdict.ALLOW, parent=self._channel.flow)

    def end(
        self,
        verdict: Verdict,
        reason: Reason | None,
        *,
        observed: bool,
        status: int | None,
        bytes_up: int,
        bytes_down: int,
        began: float,
        location: Loggable | None,
        end: str | None,
    ) -> None:
        """Record how it ended; `end` is the word for what broke it off."""
        ended = msgspec.structs.replace(
            self._block or self._make_block(None),
            status=status,
            address=self._channel.upstreams.address(self._naming.host, self._naming.port),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            duration_ms=int((time.monotonic() - began) * 1000),
            location=location,
            end=end,
        )
        self._recorder.http_end(
            self._channel.subject,
            self._flow,
            ended,
            verdict=verdict,
            reason=reason,
            rule=self._rule,
            observed=observed,
            parent=self._channel.flow,
        )

    def host(self) -> Loggable | None:
        """Return the one name of the request, None while there is none."""
        host = self._naming.host
        return None if host is None else loggable(str(host))
