"""A decision in words."""

import msgspec

from tidegate.policy.decide import Ask, Decision, Policy

__all__ = ["Explanation", "explain"]


class Explanation(msgspec.Struct, frozen=True):
    """The decision and the steps that led to it."""

    decision: Decision
    steps: tuple[str, ...]


def explain(ask: Ask, policy: Policy, now: float) -> Explanation:
    """Return what `decide` answers and why."""
    raise NotImplementedError
