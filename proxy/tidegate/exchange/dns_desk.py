"""A question of the sandbox's DNS, judged and recorded: may this session reach the name at all?

No packet leaves for it (invariant 1): the answer is the gate's own address on the sandbox's network, so that what
comes next is a connection to the gate, which is judged anew by name, port, path and address. A name counts against
the budgets of names here as it does in a CONNECT.

| what is against it | answer |
|---|---|
| the gate failed, its keeper is gone, there can be no record | SERVFAIL, which nobody remembers as a denial |
| it comes from no session, or from one that has ended or is frozen | REFUSED |
| a type or a class that is never answered | REFUSED |
| anything else: the name may not be reached | as `dns.denied` says |
"""

from typing import Final

import dns.opcode
import dns.rcode

from tidegate.audit.event import Dns
from tidegate.audit.flow import new_flow
from tidegate.audit.recorder import NOBODY
from tidegate.audit.redact import loggable
from tidegate.exchange.channel import verdict_of
from tidegate.exchange.charges import name_charges
from tidegate.exchange.door import Door
from tidegate.exchange.gate import Gate
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.names import Host, IPAddress, parse_host
from tidegate.policy.reasons import Reason, Verdict
from tidegate.resolve.responder import SINKHOLE_V4, SINKHOLE_V6, Malformed, Question, answer, read_question, refuse

__all__ = ["DnsDesk"]

_CODES: Final = {
    Reason.KEEPER_UNAVAILABLE: dns.rcode.SERVFAIL,
    Reason.AUDIT_UNAVAILABLE: dns.rcode.SERVFAIL,
    Reason.INTERNAL_FAULT: dns.rcode.SERVFAIL,
    Reason.SESSION_REQUIRED: dns.rcode.REFUSED,
    Reason.SESSION_INVALID: dns.rcode.REFUSED,
    Reason.SESSION_FROZEN: dns.rcode.REFUSED,
}
"""What is no judgement of the name."""

_SINKHOLES: Final[dict[str, IPAddress]] = {"A": SINKHOLE_V4, "AAAA": SINKHOLE_V6}


class DnsDesk:
    """Answers questions that come to one listener; `here` is where names lead from there, the gate on that network.

    What comes by a door is that session's, whatever its source.
    """

    def __init__(self, gate: Gate, listener: tuple[str, int], here: IPAddress, door: Door | None = None) -> None:
        self._gate = gate
        self._door = door
        self._listener = f"{listener[0]}:{listener[1]}" if door is None else door.listener
        self._here = here

    async def answer(self, wire: bytes, source: str) -> bytes | None:
        """Return what to answer to `source`; None: nothing."""
        try:
            question = read_question(wire)
        except Malformed:
            self._record(None, None, Reason.DNS_MALFORMED, ())
            return None
        session = await self._session(source)
        if isinstance(session, Reason):
            return self._refuse(None, question, session, _CODES.get(session, dns.rcode.REFUSED))
        if question.opcode != dns.opcode.QUERY:
            return self._refuse(session, question, Reason.DNS_MALFORMED, dns.rcode.NOTIMP)
        return await self._judge(session, question)

    async def _session(self, source: str) -> LiveSession | Reason:
        if self._gate.keeper_gone():
            return Reason.KEEPER_UNAVAILABLE
        token, source = (None, source) if self._door is None else (self._door.token, self._door.source)
        found: LiveSession | Reason | None = self._gate.sessions.known(token, source)
        if found is None:
            found = await self._gate.sessions.open(token, source, self._listener)
        if isinstance(found, Reason):
            return found
        return found.refusal(self._gate.clock.boot()) or found

    async def _judge(self, session: LiveSession, question: Question) -> bytes:
        found = await self._find(session, question)
        if not isinstance(found, Reason):
            return self._say(session, question, None, found)
        if found in _CODES:
            return self._refuse(session, question, found, _CODES[found])
        if question.refused:
            return self._refuse(session, question, found, dns.rcode.REFUSED)
        if self._gate.settings.dns.denied == "nxdomain":
            return self._refuse(session, question, found, dns.rcode.NXDOMAIN)
        return self._say(session, question, found, _SINKHOLES.get(question.rrtype))

    async def _find(self, session: LiveSession, question: Question) -> IPAddress | Reason | None:
        """Return where the name leads, or why nowhere; None when it has no address of the kind that is asked for."""
        host = parse_host(question.name)
        if isinstance(host, Reason):
            return host
        if question.refused:
            return Reason.NOT_IN_ALLOWLIST
        unreachable = session.policy.unreachable(host, self._gate.clock.wall())
        if unreachable is not None:
            return unreachable
        names = name_charges(session, host)
        unpaid = await self._gate.ledger.take_or_draw(names) if names else None
        return await self._lead(session, question, host) if unpaid is None else unpaid

    async def _lead(self, session: LiveSession, question: Question, host: Host) -> IPAddress | Reason | None:
        """Return where an allowed name leads: to the gate on that network, or to an address of the name's own."""
        wanted = {"A": 4, "AAAA": 6}.get(question.rrtype)
        if self._here.version != wanted:
            return None
        if not self._gate.virtual.used or not isinstance(host, str):
            return self._here
        number = await session.virtual.number(self._gate.keeper, session.id, host)
        return number if isinstance(number, Reason) else self._gate.virtual.address(number, self._here.version)

    def _say(self, session: LiveSession, question: Question, reason: Reason | None, address: IPAddress | None) -> bytes:
        unrecorded = self._record(session, question, reason, () if address is None else (str(address),))
        return answer(question, address) if unrecorded is None else refuse(question, dns.rcode.SERVFAIL)

    def _refuse(self, session: LiveSession | None, question: Question, reason: Reason, code: dns.rcode.Rcode) -> bytes:
        unrecorded = self._record(session, question, reason, ())
        return refuse(question, code if unrecorded is None else dns.rcode.SERVFAIL)

    def _record(
        self, session: LiveSession | None, question: Question | None, reason: Reason | None, told: tuple[str, ...]
    ) -> Reason | None:
        block = Dns(
            name=None if question is None else loggable(question.name),
            rrtype=None if question is None else loggable(question.rrtype),
            answer=told or None,
        )
        return self._gate.recorder.event(
            NOBODY if session is None else session.subject,
            new_flow(),
            block,
            verdict=Verdict.ALLOW if reason is None else verdict_of(reason),
            reason=reason,
        )
