"""What a request counts against: the budgets of its session, policy and owner, and its rule's limits."""

from tidegate.exchange.sessions import LiveSession
from tidegate.policy.names import Host
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.session.budget import Charge, Kind

__all__ = ["body_limit", "name_charges", "request_charges", "upload_charges"]

_MINUTE = 60
_HOUR = 3600


def request_charges(session: LiveSession, rule: Rule | None) -> tuple[Charge, ...]:
    """Return the charges of one request, per minute."""
    return _charges(session, rule, "requests", "requests_per_minute", _MINUTE)


def upload_charges(session: LiveSession, rule: Rule | None) -> tuple[Charge, ...]:
    """Return the charges of a body's bytes, per hour."""
    return _charges(session, rule, "upload_bytes", "upload_bytes_per_hour", _HOUR)


def name_charges(session: LiveSession, host: Host) -> tuple[Charge, ...]:
    """Return the charges of a name, per hour; a name is paid once."""
    spec = session.policy.spec
    budgets = (("session", spec.budgets_session), ("policy", spec.budgets_policy), ("owner", spec.budgets_owner))
    return tuple(
        Charge(session.id, "distinct_names", f"{key}:{host}", budget.distinct_names_per_hour, _HOUR)
        for key, budget in budgets
        if budget.distinct_names_per_hour is not None
    )


def _charges(session: LiveSession, rule: Rule | None, kind: Kind, field: str, window: int) -> tuple[Charge, ...]:
    key = f"{kind} {'' if rule is None else rule.id}"
    known = session.charges.get(key)
    if known is not None:
        return known
    spec = session.policy.spec
    limits: list[tuple[str, int | None]] = [
        ("session", getattr(spec.budgets_session, field)),
        ("policy", getattr(spec.budgets_policy, field)),
        ("owner", getattr(spec.budgets_owner, field)),
        ("rule:*", getattr(spec.limits, field)),
    ]
    if rule is not None:
        limits.append((f"rule:{rule.id}", getattr(rule.limits, field)))
    found = tuple(Charge(session.id, kind, name, limit, window) for name, limit in limits if limit is not None)
    session.charges[key] = found
    return found


def body_limit(rule: Rule | None, spec: PolicySpec) -> int | None:
    """Return the longest body allowed, in bytes; None is no limit."""
    limits = [spec.limits.request_body_bytes, None if rule is None else rule.limits.request_body_bytes]
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None
