"""A decision in words: the enforcement code answers, this only tells how it came to it."""

from collections.abc import Iterator, Sequence

import msgspec

from tidegate.policy.addresses import classify
from tidegate.policy.cover import ports_of
from tidegate.policy.decide import Ask, Decision, Policy, decide
from tidegate.policy.names import host_text, is_gateway_name, is_metadata_name
from tidegate.policy.paths import ANY_PATH
from tidegate.policy.rules import Rule

__all__ = ["Explanation", "explain"]

_MOST_RULES_TOLD = 20


class Explanation(msgspec.Struct, frozen=True):
    """The decision and the steps that led to it, for the operator; none of it is for the sandbox."""

    decision: Decision
    steps: tuple[str, ...]


def explain(ask: Ask, policy: Policy, now: float) -> Explanation:
    """Return what `decide` answers, and why. Linear in the number of rules: not for the request path."""
    decision = decide(ask, policy, now)
    return Explanation(decision, (*_steps(ask, policy), _verdict(decision)))


def _steps(ask: Ask, policy: Policy) -> Iterator[str]:
    yield f"policy {policy.name} ({policy.hash}): {_asked(ask)}"
    yield from _host_steps(ask, policy)
    if ask.path is not None and ask.path.ambiguous:
        yield f"path {ask.path.text} can be read in more than one way: no rule with `paths` allows it"
    for side, rules in (("deny", policy.spec.deny), ("allow", policy.spec.allow)):
        named = [rule for rule in rules if rule.host.matches(ask.host)]
        if named or side == "allow":
            yield f"{side}: {len(named)} of {len(rules)} rules name this host"
        yield from _rule_steps(ask, named, side)


def _asked(ask: Ask) -> str:
    where = f"{ask.protocol}://{host_text(ask.host)}:{ask.port}"
    if ask.method is None:
        return f"connect to {where}"
    return f"{ask.method} {where}{'' if ask.path is None else ask.path.text}"


def _host_steps(ask: Ask, policy: Policy) -> Iterator[str]:
    if not isinstance(ask.host, str):
        site = policy.site
        facts = classify(ask.host, nat64_prefixes=site.nat64_prefixes, deny_cidrs=site.deny_cidrs)
        yield f"host is an address, {facts.address}: {facts.kind.value}, {facts.why}"
        yield "an address is allowed only by a rule for that address that also has `addresses`"
    elif is_metadata_name(ask.host):
        yield "host is the name of a metadata service: no rule can allow it"
    elif is_gateway_name(ask.host):
        yield "host is a name of the gate's own machine: only a rule with `addresses` allows it"
    if ask.port in policy.site.own_ports and _may_lead_here(ask, policy):
        yield (
            f"a listener of the gate has port {ask.port}: on loopback, or an address of the gate, that is the gate "
            "itself, whatever `addresses` says (self_or_gateway)"
        )


def _may_lead_here(ask: Ask, policy: Policy) -> bool:
    """Tell whether a rule lets the host be where nobody gets without `addresses`, the gate's own machine for one."""
    return any(rule.addresses and rule.host.matches(ask.host) for rule in policy.spec.allow)


def _rule_steps(ask: Ask, rules: Sequence[Rule], side: str) -> Iterator[str]:
    for rule in rules[:_MOST_RULES_TOLD]:
        misses = _misses(ask, rule, deny=side == "deny")
        label = f"{side} {rule.id}" + (f" ({rule.origin})" if rule.origin else "")
        yield f"{label}: {'; '.join(misses) if misses else 'applies'}"
    if len(rules) > _MOST_RULES_TOLD:
        yield f"{side}: {len(rules) - _MOST_RULES_TOLD} more rules not told"


def _misses(ask: Ask, rule: Rule, *, deny: bool) -> list[str]:
    misses = []
    ports = frozenset(rule.ports) if deny else ports_of(rule)
    if ports and ask.port not in ports:
        misses.append(f"port {ask.port} is not {_listed(sorted(ports))}")
    if rule.protocol not in (ask.protocol, "any"):
        misses.append(f"{ask.protocol} is not {rule.protocol}")
    if ask.method is None:
        if deny and not (rule.methods is None and _any_path(rule)):
            misses.append("it is narrower than the host, so it waits for the request")
        return misses
    if rule.methods is not None and ask.method not in rule.methods:
        misses.append(f"method {ask.method} is not {_listed(rule.methods)}")
    elif rule.methods is None and not deny and ask.method in ("CONNECT", "TRACE"):
        misses.append(f"method {ask.method} must be named")
    if not _path_fits(ask, rule, deny=deny):
        misses.append(f"path is not under {_listed(rule.paths or ())}")
    return misses


def _any_path(rule: Rule) -> bool:
    return rule.paths is None or ANY_PATH in rule.paths


def _path_fits(ask: Ask, rule: Rule, *, deny: bool) -> bool:
    if _any_path(rule):
        return True
    if ask.path is None or ask.path.ambiguous:
        return deny
    return any(glob.matches(ask.path.segments) for glob in rule.paths or ())


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values) or "anything"


def _verdict(decision: Decision) -> str:
    rule = "" if decision.rule is None else f" by {decision.rule.id}"
    if decision.reason is None:
        return f"verdict: {decision.verdict.value}{rule}"
    if decision.observed:
        return f"verdict: allow, observed only; would be denied: {decision.reason.code}"
    return f"verdict: {decision.verdict.value}{rule}: {decision.reason.code} ({decision.reason.text})"
