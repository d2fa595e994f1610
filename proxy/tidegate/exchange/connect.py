"""CONNECT, judged: may a tunnel to this name begin, and where is a refusal told?

| reason | told |
|---|---|
| a malformed or ambiguous host, an address, the gate itself, metadata, no session, no record | at CONNECT |
| a port that no rule of the policy names; anything on a `tcp` or passthrough rule | at CONNECT |
| everything else, while a certificate may be spent on it | inside the finished TLS |
"""

from typing import TYPE_CHECKING

from tidegate.exchange.charges import name_charges, upload_charges
from tidegate.exchange.gate import Gate
from tidegate.exchange.head import RequestHead
from tidegate.exchange.sessions import LiveSession
from tidegate.exchange.tunnel import Opaque
from tidegate.exchange.virtual import Called
from tidegate.policy.addresses import literal_reason
from tidegate.policy.decide import Ask, Decision, decide
from tidegate.policy.names import Authority, Host, IPAddress, is_gateway_name, is_metadata_name, parse_authority
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Rule

if TYPE_CHECKING:
    from tidegate.exchange.channel import Channel

__all__ = ["called", "judge_connect", "static_reason"]

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

type Verdict = tuple[Reason | None, bool, Opaque | None]
"""The reason against it, whether that is told at CONNECT, and what an allowed opaque tunnel leads to."""


async def judge_connect(channel: "Channel", head: RequestHead) -> Verdict:
    """Judge a CONNECT on the channel, which takes its name, its session and its rule from it."""
    reason, now, opaque = await _judge(channel, head)
    if reason is not None and not (now or reason in _AT_CONNECT):
        now = not _may_tell_inside(channel)
    if opaque is None and not now:
        refused = await _certify(channel, reason)
        if refused is not None:
            return refused, True, None
    return reason, now or reason in _AT_CONNECT, opaque


async def called(channel: "Channel", address: IPAddress, port: int) -> Called | Reason | None:
    """Say which name a virtual address stands for to the channel's session; None when it is none of that session's.

    Nothing is recorded for it: the name is judged next, as a CONNECT to it.
    """
    number = channel.gate.virtual.number(address)
    if number is None:
        return None
    refused = await channel.identify(RequestHead("CONNECT", b"", 1, [], 0, None))
    session = channel.session
    if session is None or refused is not None:
        return refused or Reason.SESSION_REQUIRED
    name = await session.virtual.name(channel.gate.keeper, session.id, number)
    if name is None or isinstance(name, Reason):
        return name
    decision, opaque = _decide(Authority(name, port), session, channel.gate.clock.wall(), plain=False)
    unread = opaque and decision.rule is not None and decision.rule.protocol == "tcp"
    return Called(name, unread or not decision.allowed)


async def _judge(channel: "Channel", head: RequestHead) -> Verdict:
    authority = parse_authority(head.target, default_port=None)
    if isinstance(authority, Reason):
        # Whose it is goes on record; what is wrong with the target comes first all the same.
        await channel.identify(head)
        channel.name_unread(head.target)
        return authority, True, None
    channel.name(authority)
    if head.authority is not None and parse_authority(head.authority, default_port=authority.port) != authority:
        return Reason.AMBIGUOUS_HOST, True, None
    if head.length != 0:
        return Reason.AMBIGUOUS, True, None
    static = static_reason(authority.host, authority.port, channel.gate)
    refused = await channel.identify(head)
    session = channel.session
    if session is None or refused is not None or static is Reason.LOOP:
        return static or refused, True, None
    return await _judge_by_policy(channel, authority, session)


async def _judge_by_policy(channel: "Channel", authority: Authority, session: LiveSession) -> Verdict:
    decision, opaque = _decide(authority, session, channel.gate.clock.wall(), plain=channel.plain)
    if not decision.allowed:
        return decision.reason, opaque or not session.policy.names_port(authority.port), None
    channel.rule = decision.rule
    channel.observed = decision.reason if decision.observed else None
    names = name_charges(session, authority.host)
    unpaid = await channel.gate.ledger.take_or_draw(names) if names else None
    if unpaid is not None:
        return unpaid, opaque, None
    if not opaque or decision.rule is None:
        return None, False, None
    return await _open(channel, authority, decision.rule, session)


def _decide(authority: Authority, session: LiveSession, now: float, *, plain: bool) -> tuple[Decision, bool]:
    """Ask for https first, then tcp, then plain http; say if the rule makes the tunnel opaque."""
    policy = session.policy
    if plain:
        return decide(Ask(authority.host, authority.port, "http"), policy, now), False
    best = decide(Ask(authority.host, authority.port, "https"), policy, now)
    if best.allowed:
        return best, best.rule is not None and best.rule.tls == "unsafe_passthrough" and not best.observed
    tcp = decide(Ask(authority.host, authority.port, "tcp"), policy, now)
    if tcp.allowed and not tcp.observed:
        return tcp, True
    last = decide(Ask(authority.host, authority.port, "http"), policy, now)
    return (last, False) if last.allowed else (best, False)


async def _open(channel: "Channel", authority: Authority, rule: Rule, session: LiveSession) -> Verdict:
    refused = channel.promise()
    if refused is not None:
        return refused, True, None
    reason = await channel.upstreams.resolve(authority.host, authority.port, rule.addresses, session)
    channel.metered = upload_charges(session, rule)
    return reason, True, Opaque(str(authority.host), authority.port, rule.protocol == "https")


def static_reason(host: Host, port: int, gate: Gate) -> Reason | None:
    """Say what is wrong with a host whatever the policy, for a client whose policy is not known."""
    if not isinstance(host, str):
        if host in gate.site.own_addresses and port in gate.site.own_ports:
            return Reason.LOOP
        return literal_reason(host, gate.site)
    if is_metadata_name(host):
        return Reason.METADATA
    return Reason.SELF_OR_GATEWAY if is_gateway_name(host) else None


async def _certify(channel: "Channel", reason: Reason | None) -> Reason | None:
    """Have a certificate for the name before the tunnel is promised; without one, say so now."""
    certify, session = channel.gate.certify, channel.session
    plain = channel.plain or (channel.rule is not None and channel.rule.protocol == "http")
    if certify is None or session is None or plain:
        return None
    return await certify(session.id, str(channel.host), reason is not None)


def _may_tell_inside(channel: "Channel") -> bool:
    """Whether a certificate may be spent on telling a denial inside the TLS."""
    session = channel.session
    if session is None:
        return False
    now = channel.gate.clock.boot()
    recent = [at for at in session.denied_leaves if now - at < 60]
    allowed = len(recent) < channel.gate.settings.limits.denied_leaves_per_minute
    session.denied_leaves = [*recent, now] if allowed else recent
    return allowed
