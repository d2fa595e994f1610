"""One rule: from the form of the file to the rule that decides."""

from typing import Final

import msgspec

from tidegate.config.form import BudgetForm, RuleForm, RuleLimitsForm
from tidegate.policy.rules import Budgets, Rule, RuleLimits

__all__ = ["allow_rule", "budgets", "deny_rule", "rule_limits", "rule_problems"]


def rule_limits(form: RuleLimitsForm, default: RuleLimits = RuleLimits()) -> RuleLimits:  # noqa: B008 - frozen
    """Return the limits; what the form leaves open is the default's."""
    if form == _NO_LIMITS:
        return default
    return RuleLimits(
        requests_per_minute=form.requests_per_minute or default.requests_per_minute,
        upload_bytes_per_hour=form.upload_bytes_per_hour or default.upload_bytes_per_hour,
        request_body_bytes=form.request_body_bytes or default.request_body_bytes,
    )


_NO_LIMITS: Final = RuleLimitsForm()


def budgets(form: BudgetForm) -> Budgets:
    """Return the budgets."""
    return Budgets(**msgspec.structs.asdict(form))


def allow_rule(form: RuleForm, *, id: str, file: str, limits: RuleLimits) -> Rule:
    """Return the rule; `limits` are the policy's, for what the rule leaves open."""
    return Rule(
        id=id,
        host=form.host,
        protocol=form.protocol or "https",
        ports=form.ports,
        methods=form.methods,
        paths=form.paths,
        credential=form.credential,
        addresses=form.addresses,
        tls=form.tls,
        strip=form.strip,
        websocket=form.websocket,
        limits=rule_limits(form.limits, limits),
        unsafe_wildcard=form.unsafe_wildcard,
        origin=f"{file}:{form.line_}",
    )


def deny_rule(form: RuleForm, *, id: str, file: str) -> Rule:
    """Return the rule; what the form leaves open means every one."""
    return Rule(
        id=id,
        host=form.host,
        protocol=form.protocol or "any",
        ports=form.ports,
        methods=form.methods,
        paths=form.paths,
        unsafe_wildcard=True,
        origin=f"{file}:{form.line_}",
    )


def rule_problems(form: RuleForm, *, deny: bool) -> list[str]:
    """Return what makes the rule mean nothing by its form alone; `policy.lint` judges what it opens."""
    found = []
    if form.methods == () or form.paths == ():
        found.append("an empty list of methods or paths matches nothing: leave the key out, or the rule")
    if deny:
        return found + _deny_problems(form)
    if form.protocol == "tcp" and not form.ports:
        found.append("a tcp rule needs `ports`")
    if form.protocol == "tcp" and form.websocket:
        found.append("websocket needs a request that can be read")
    if form.tls == "unsafe_passthrough" and form.limits.upload_bytes_per_hour is None:
        found.append("unsafe_passthrough needs `limits: {upload_bytes_per_hour: …}`")
    return found


# `unsafe_wildcard` may stand on both sides: it widens nothing in `deny`.
_DENY_KEYS: Final = frozenset({"host", "protocol", "ports", "methods", "paths", "unsafe_wildcard", "line_", "key_"})


def _deny_problems(form: RuleForm) -> list[str]:
    given = msgspec.structs.asdict(form)
    default = {field.name: field.default for field in msgspec.structs.fields(RuleForm)}
    odd = [key for key, value in given.items() if key not in _DENY_KEYS and value != default[key]]
    return [f"{key} means nothing in `deny`" for key in odd]
