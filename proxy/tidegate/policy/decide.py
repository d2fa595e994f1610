"""The decision: pure, total, and independent of the number of rules.

Order of judgement, which is the order of `Reason`:

1. a metadata name or address, the gate's own machine, an address used as a host;
2. `deny`, which always wins over `allow`;
3. `allow`: of all rules for the host, the one that comes furthest names the reason.

A deny rule refuses with the narrowest thing it names: its path, else its method, else the host.
During `unsafe_observe_until` what step 2 or 3 refuses passes and is marked; step 1, tcp, CONNECT
and TRACE do not.
"""

import hashlib
from ipaddress import IPv4Address, IPv6Address

import msgspec

from tidegate.policy.addresses import NO_SITE, Site, literal_reason, parse_networks, vet
from tidegate.policy.lane import Lane, Match, Table
from tidegate.policy.names import Host, PolicyError, is_gateway_name, is_metadata_name
from tidegate.policy.paths import Path
from tidegate.policy.reasons import Reason, Verdict
from tidegate.policy.rules import DEFAULT_PORTS, PolicySpec, Protocol, Rule

__all__ = ["Ask", "Decision", "Policy", "compile_policy", "decide"]


class Ask(msgspec.Struct, frozen=True):
    """What is asked for. `method` None is the connect stage: could anything here be allowed?"""

    host: Host
    port: int
    protocol: Protocol
    method: str | None = None
    path: Path | None = None


class Decision(msgspec.Struct, frozen=True):
    """The answer. `rule` is the allow rule, or the deny rule that refused.

    `observed` marks what passes by observe only; it has the reason it would be denied for, and no rule.
    """

    verdict: Verdict
    reason: Reason | None
    rule: Rule | None
    observed: bool = False

    @property
    def allowed(self) -> bool:
        """Tell whether the request may go on."""
        return self.verdict is Verdict.ALLOW


class Policy:
    """A compiled policy. `ports` are all ports that an allow rule names; `hash` is over its meaning, not its lines."""

    __slots__ = ("_allow", "_deny", "hash", "name", "ports", "site", "spec")

    def __init__(self, spec: PolicySpec, site: Site, digest: str, allow: Table, deny: Table | None) -> None:
        self.name = spec.name
        self.hash = digest
        self.spec = spec
        self.site = site
        self.ports = frozenset(port for rule in spec.allow for port in rule.ports or DEFAULT_PORTS[rule.protocol])
        self._allow = allow
        self._deny = deny

    def names_port(self, port: int) -> bool:
        """Tell whether any allow rule names the port: one that none names is refused at CONNECT already."""
        return port in self.ports

    def unreachable(self, host: Host, now: float) -> Reason | None:
        """Return why no connection to the host could be allowed at wall time `now`, whatever its port, or None."""
        first = decide(Ask(host, 443, "https"), self, now)
        if first.allowed:
            return None
        lanes = [lane for bucket in self._allow.find(host) for lane in bucket.lanes]
        protocols: tuple[Protocol, ...] = ("https", "http", "tcp")
        asks = [Ask(host, port, one) for one in protocols for protocol, port in lanes if protocol == one]
        return None if any(decide(ask, self, now).allowed for ask in asks) else first.reason

    def __repr__(self) -> str:
        return f"Policy({self.name!r}, {self.hash})"


def compile_policy(spec: PolicySpec, *, site: Site = NO_SITE) -> Policy:
    """Return the policy ready to decide; raise `PolicyError` for a rule that cannot be compiled."""
    allow, deny = Table(), Table()
    for position, rule in enumerate(spec.allow):
        if rule.protocol == "any":
            raise PolicyError("protocol `any` is for deny rules", where=rule.origin)
        ports = rule.ports or DEFAULT_PORTS[rule.protocol]
        if not ports:
            raise PolicyError("a tcp rule must give its ports", where=rule.origin, hint="ports: [5432]")
        parse_networks(rule.addresses)
        allow.at(rule.host).add(rule, ports, position)
    for position, rule in enumerate(spec.deny):
        deny.at(rule.host).add(rule, rule.ports or (0,), position)
    return Policy(spec, site, _digest(spec), allow, deny if spec.deny else None)


def _digest(spec: PolicySpec) -> str:
    def bare(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(msgspec.structs.replace(rule, origin="") for rule in rules)

    meaning = msgspec.structs.replace(spec, allow=bare(spec.allow), deny=bare(spec.deny))
    return hashlib.sha256(msgspec.msgpack.encode(meaning)).hexdigest()[:16]


_REFUSALS = {reason: Decision(Verdict.DENY, reason, None) for reason in Reason}
_OBSERVED = {reason: Decision(Verdict.ALLOW, reason, None, True) for reason in Reason}
# Methods default to all but these. CONNECT is never a request to pass on, named or not.
_NOT_BY_DEFAULT = frozenset({"CONNECT", "TRACE"})
# How far a rule came before it failed, and the reason that gives.
_PROGRESS = (
    Reason.NOT_IN_ALLOWLIST,
    Reason.PORT_NOT_ALLOWED,
    Reason.SCHEME_NOT_ALLOWED,
    Reason.METHOD_NOT_ALLOWED,
    Reason.PATH_NOT_ALLOWED,
)


def decide(ask: Ask, policy: Policy, now: float) -> Decision:
    """Return the verdict on the ask at wall time `now`. Pure and total: it never raises."""
    host = ask.host
    if not isinstance(host, str):
        return _decide_address(host, ask, policy, now)
    if is_metadata_name(host):
        return _REFUSALS[Reason.METADATA]
    decision = _decide_rules(ask, policy, now)
    if is_gateway_name(host) and (decision.rule is None or not decision.rule.addresses):
        return _REFUSALS[Reason.SELF_OR_GATEWAY]
    return decision


def _decide_address(address: IPv4Address | IPv6Address, ask: Ask, policy: Policy, now: float) -> Decision:
    reason = literal_reason(address, policy.site)
    if reason is Reason.METADATA:
        return _REFUSALS[reason]
    decision = _decide_rules(ask, policy, now)
    rule = decision.rule
    networks = () if rule is None else parse_networks(rule.addresses)
    if not decision.allowed and decision.reason is not Reason.NOT_IN_ALLOWLIST:
        return decision
    if not any(address in network for network in networks):
        return _REFUSALS[reason]
    vetted = vet((address,), port=ask.port, allowed=networks, site=policy.site)
    return _REFUSALS[Reason.SELF_OR_GATEWAY] if vetted is Reason.SELF_OR_GATEWAY else decision


def _decide_rules(ask: Ask, policy: Policy, now: float) -> Decision:
    decision = None if policy._deny is None else _denied(ask, policy._deny)
    if decision is None:
        decision = _allowed(ask, policy._allow)
    until = policy.spec.observe_until
    if until is None or decision.verdict is Verdict.ALLOW or now >= until:
        return decision
    if ask.protocol == "tcp" or ask.method in _NOT_BY_DEFAULT or decision.reason is None:
        return decision
    return _OBSERVED[decision.reason]


def _allowed(ask: Ask, table: Table) -> Decision:
    method, path, port = ask.method, ask.path, ask.port
    progress, ambiguous = 0, False
    for bucket in table.find(ask.host):
        lane = bucket.lanes.get((ask.protocol, port))
        if lane is None:
            # Port 80 comes with the scheme http: where that is the port, the scheme is what is refused (P-29).
            schemed = port in bucket.ports or (ask.protocol == "http" and port == 80)
            progress = max(progress, 2 if schemed else 1)
            continue
        if method is None:
            match = lane.first
        elif method == "CONNECT":
            match = None
        else:
            match = lane.pick(method, path, by_default=method != "TRACE")
        if match is not None:
            return Decision(Verdict.ALLOW, None, match.rule)
        progress = max(progress, _reached(lane, method))
        ambiguous = ambiguous or (lane.has_scoped and path is not None and path.ambiguous)
    return _REFUSALS[Reason.AMBIGUOUS_PATH if ambiguous else _PROGRESS[progress]]


def _reached(lane: Lane, method: str | None) -> int:
    takes = method is not None and lane.takes_method(method, by_default=method not in _NOT_BY_DEFAULT) is not None
    return 4 if takes else 3


def _denied(ask: Ask, table: Table) -> Decision | None:
    for bucket in table.find(ask.host):
        for key in ((ask.protocol, ask.port), (ask.protocol, 0), ("any", ask.port), ("any", 0)):
            lane = bucket.lanes.get(key)
            decision = None if lane is None else _refusal(lane, ask)
            if decision is not None:
                return decision
    return None


def _refusal(lane: Lane, ask: Ask) -> Decision | None:
    method, path = ask.method, ask.path
    if method is None:
        # The connect stage asks whether anything could pass: only a rule for the whole host says no.
        return _by(lane.whole())
    decision = _by(lane.pick(method, path, by_default=True))
    if decision is None and lane.has_scoped and (path is None or path.ambiguous):
        scoped = lane.takes_method(method, by_default=True)
        reason = Reason.PATH_NOT_ALLOWED if path is None else Reason.AMBIGUOUS_PATH
        return None if scoped is None else Decision(Verdict.DENY, reason, scoped.rule)
    return decision


def _by(match: Match | None) -> Decision | None:
    if match is None:
        return None
    if match.glob is not None:
        reason = Reason.PATH_NOT_ALLOWED
    else:
        reason = Reason.NOT_IN_ALLOWLIST if match.methods is None else Reason.METHOD_NOT_ALLOWED
    return Decision(Verdict.DENY, reason, match.rule)
