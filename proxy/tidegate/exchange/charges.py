"""What a request counts against: the budgets of its session, policy and owner, and its rule's limits."""

from collections.abc import Iterable

from tidegate.exchange.sessions import LiveSession
from tidegate.policy.names import Host
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.session.budget import OBSERVED_BYTES, Charge, Kind

__all__ = ["body_limit", "head_size", "name_charges", "request_charges", "upload_charges"]


def request_charges(session: LiveSession, rule: Rule | None) -> tuple[Charge, ...]:
    """Return the charges of one request, per minute."""
    return _charges(session, rule, "requests", "requests_per_minute")


def upload_charges(session: LiveSession, rule: Rule | None, *, observed: bool = False) -> tuple[Charge, ...]:
    """Return the charges of what leaves: heads, bodies, WebSocket and opaque bytes, per hour.

    What is `observed` counts, for the whole policy, against the little that observing alone lets out.
    """
    found = _charges(session, rule, "upload_bytes", "upload_bytes_per_hour")
    if not observed:
        return found
    pool = _pool(session, "policy")
    return (*found, Charge(session.id, "observed_bytes", "policy", OBSERVED_BYTES, pool))


def head_size(method: str, target: bytes, authority: str, headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the bytes of a request's head as HTTP/1.1 writes it, whichever version carries it."""
    line = len(method) + len(target) + len(" " + " HTTP/1.1" + "Host: ") + len(authority) + 3 * len("\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in headers)


def name_charges(session: LiveSession, host: Host) -> tuple[Charge, ...]:
    """Return the charges of a name, per hour; a name is paid once."""
    spec = session.policy.spec
    budgets = (("session", spec.budgets_session), ("policy", spec.budgets_policy), ("owner", spec.budgets_owner))
    return tuple(
        Charge(session.id, "distinct_names", f"{key}:{host}", budget.distinct_names_per_hour, _pool(session, key))
        for key, budget in budgets
        if budget.distinct_names_per_hour is not None
    )


def _charges(session: LiveSession, rule: Rule | None, kind: Kind, field: str) -> tuple[Charge, ...]:
    key = f"{kind} {'' if rule is None else rule.id}"
    known = session.charges.get(key)
    if known is not None:
        return known
    spec = session.policy.spec
    limits: list[tuple[str, int | None]] = [
        ("session", getattr(spec.budgets_session, field)),
        ("policy", getattr(spec.budgets_policy, field)),
        ("owner", getattr(spec.budgets_owner, field)),
        # A rule has the policy's limits where it gives none of its own; what passes by no rule has them too.
        ("rule:*", getattr(spec.limits, field)) if rule is None else (f"rule:{rule.id}", getattr(rule.limits, field)),
    ]
    found = tuple(
        Charge(session.id, kind, name, limit, _pool(session, name)) for name, limit in limits if limit is not None
    )
    session.charges[key] = found
    return found


def _pool(session: LiveSession, scope: str) -> str:
    """Name who shares the budget, as the keeper's buckets do; empty when it is the session's alone."""
    match scope:
        case "policy":
            return f"policy/{session.policy_name}"
        case "owner":
            return f"owner/{session.owner}"
        case _:
            return "" if session.root == session.id else session.root


def body_limit(rule: Rule | None, spec: PolicySpec) -> int | None:
    """Return the longest body allowed, in bytes, the rule's own before the policy's; None is no limit."""
    own = None if rule is None else rule.limits.request_body_bytes
    return spec.limits.request_body_bytes if own is None else own
