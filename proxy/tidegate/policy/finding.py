"""What lint has to say: one finding, and how rules are named in it."""

from typing import Literal

import msgspec

from tidegate.policy.rules import Rule

__all__ = ["Finding", "error", "warning"]


class Finding(msgspec.Struct, frozen=True):
    """One finding. `error` refuses the load; `warning` is told at start; `where` is `file:line` or a key path."""

    severity: Literal["error", "warning"]
    code: str
    where: str
    message: str


def error(rule: Rule, code: str, message: str) -> Finding:
    """Return a finding on the rule that refuses the load."""
    return Finding("error", code, rule.origin or rule.id, message)


def warning(rule: Rule, code: str, message: str) -> Finding:
    """Return a finding on the rule that is told at start."""
    return Finding("warning", code, rule.origin or rule.id, message)
