"""One policy: its own rules, and those of the presets it uses."""

import msgspec

from tidegate.config.form import LockForm, PolicyForm, PresetForm, RuleForm, UseForm
from tidegate.config.lockfile import LOCK_NAME, locked_rules
from tidegate.config.presets import bind_credential, preset_rules
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.config.rule import allow_rule, budgets, deny_rule, rule_limits, rule_problems
from tidegate.credentials.spec import CredentialSpec
from tidegate.errors import ConfigError
from tidegate.nearest import did_you_mean
from tidegate.policy.rules import PolicySpec, Rule, RuleLimits

__all__ = ["LONGEST_OBSERVE_SECONDS", "PolicyBuilder"]

LONGEST_OBSERVE_SECONDS = 24 * 3600


class PolicyBuilder:
    """Builds policies against one lock and one set of credentials, noting every problem."""

    def __init__(self, credentials: dict[str, CredentialSpec], lock: LockForm | None, *, now: float) -> None:
        self.problems: list[Problem] = []
        self._credentials = credentials
        self._lock = lock
        self._now = now

    def build(self, name: str, form: PolicyForm, file: str) -> PolicySpec:
        """Return the policy; it is of use only if no problem was noted."""
        key = f"policies.{name}"
        limits = rule_limits(form.limits)
        allow: list[Rule] = []
        for index, use in enumerate(form.use):
            allow += self._used(use, name, f"{key}.use[{index}]", file, form, limits, {rule.id for rule in allow})
        for index, rule in enumerate(form.allow):
            self._check(rule, file, deny=False)
            allow.append(allow_rule(rule, id=f"allow[{index}]", file=file, limits=limits))
        deny: list[Rule] = []
        for index, rule in enumerate(form.deny):
            self._check(rule, file, deny=True)
            deny.append(deny_rule(rule, id=f"deny[{index}]", file=file))
        self._check_observe(form, key, file)
        if form.budgets.session.sessions is not None:
            message = "a session has no sessions of its own: count them in budgets.policy or budgets.owner"
            self.problems.append(Problem(file, form.line_, f"{key}.budgets.session.sessions", message))
        return PolicySpec(
            name=name,
            allow=tuple(allow),
            deny=tuple(deny),
            placeholders=form.placeholders,
            observe_until=form.unsafe_observe_until,
            limits=limits,
            budgets_session=budgets(form.budgets.session),
            budgets_policy=budgets(form.budgets.policy),
            budgets_owner=budgets(form.budgets.owner),
        )

    def _check(self, rule: RuleForm, file: str, *, deny: bool) -> None:
        for message in rule_problems(rule, deny=deny):
            self.problems.append(Problem(file, rule.line_, rule.key_, message))

    def _check_observe(self, form: PolicyForm, key: str, file: str) -> None:
        until = form.unsafe_observe_until
        if until is not None and until > self._now + LONGEST_OBSERVE_SECONDS:
            message = "is more than 24 hours ahead"
            self.problems.append(Problem(file, form.line_, f"{key}.unsafe_observe_until", message))

    def _used(
        self,
        use: str | UseForm,
        policy: str,
        key: str,
        file: str,
        form: PolicyForm,
        limits: RuleLimits,
        taken: set[str],
    ) -> list[Rule]:
        given = UseForm(preset=use, line_=form.line_) if isinstance(use, str) else use
        try:
            preset, rules = preset_rules(given.preset, given.tenant)
            source = f"allowlists/{preset.id}.yaml"
            if preset.discover is not None:
                rules, source = self._discovered(preset, given), LOCK_NAME
            bound = [bind_credential(rule, preset, self._credentials, given.credential) for rule in rules]
            self._check_choice(given, bound)
        except ConfigErrors as fault:
            self.problems += fault.problems
            return []
        except ConfigError as fault:
            message = f"{fault.what} ({fault.hint})" if fault.hint else fault.what
            self.problems.append(Problem(file, given.line_, key, message))
            return []
        prefix = _free(preset.id, taken)
        made = []
        for index, rule in enumerate(bound):
            if given.addresses:
                rule = msgspec.structs.replace(rule, addresses=given.addresses)
            for message in rule_problems(rule, deny=False):
                self.problems.append(Problem(source, rule.line_, f"rules[{index}]", message))
            made.append(allow_rule(rule, id=f"{prefix}[{index}]", file=source, limits=limits))
        return made

    def _discovered(self, preset: PresetForm, given: UseForm) -> list[RuleForm]:
        rules = locked_rules(self._lock, preset.discover or "", given.addresses) if self._lock else []
        if not rules:
            raise ConfigError(
                f"{preset.id} has no host in {LOCK_NAME}", hint="run tidegate policy lock, and review what it writes"
            )
        return rules

    def _check_choice(self, given: UseForm, bound: list[RuleForm]) -> None:
        if given.credential is None or any(rule.credential == given.credential for rule in bound):
            return
        if given.credential not in self._credentials:
            near = did_you_mean(given.credential, self._credentials)
            raise ConfigError(f"no such credential: {given.credential}{near}")
        raise ConfigError(
            f"{given.credential} is for no host of {given.preset}", hint="see the `for` of the credential"
        )


def _free(name: str, taken: set[str]) -> str:
    """Return a prefix for rule ids that no earlier use of the same preset has."""
    number, prefix = 1, name
    while f"{prefix}[0]" in taken:
        number += 1
        prefix = f"{name}#{number}"
    return prefix
