"""Settings in force: checked, compiled, and what the keeper needs to look up in them."""

import ipaddress
from typing import final

import msgspec

from tidegate.collector import no_collection
from tidegate.config.model import KeeperSettings, SessionSpec, SourceSpec, decode_keeper
from tidegate.credentials.spec import CredentialSpec
from tidegate.errors import ConfigError
from tidegate.policy.decide import Ask, Policy, compile_policy, decide
from tidegate.policy.names import Host
from tidegate.policy.rules import RuleLimits
from tidegate.session.budget import OBSERVED_BYTES

__all__ = ["Rulebook"]

_NO_SOURCE_NAME = 28  # a longer sid makes a token that clients cut
_BUDGET_FIELDS = {
    "requests": "requests_per_minute",
    "upload_bytes": "upload_bytes_per_hour",
    "distinct_names": "distinct_names_per_hour",
    "log_bytes": "log_bytes_per_hour",
}
_ALL_RULES = "*"


@final
class Rulebook:
    """One epoch's settings. Raises `ConfigError` for what cannot be used."""

    def __init__(self, encoded: bytes, *, epoch: int, proxy_urls: tuple[str, ...]) -> None:
        try:
            self.settings: KeeperSettings = decode_keeper(encoded)
        except msgspec.MsgspecError as fault:
            raise ConfigError("the keeper cannot read its settings", hint=str(fault)) from fault
        self.encoded = encoded
        self.epoch = epoch
        self.proxy_urls = proxy_urls
        with no_collection():
            self.policies: dict[str, Policy] = {
                name: compile_policy(spec) for name, spec in self.settings.policies.items()
            }
        self._limits: dict[str, dict[str, RuleLimits]] = {}
        self._check_sessions()

    def _check_sessions(self) -> None:
        taken: dict[str, str] = {}
        for name, spec in self.settings.sessions.items():
            where = f"sessions.{name}"
            if spec.from_ is None and len(name) > _NO_SOURCE_NAME:
                raise ConfigError(
                    f"a session without `from` has at most {_NO_SOURCE_NAME} letters", where=where,
                    hint="its token would be longer than clients send",
                )  # fmt: skip
            self.check_use(spec.policy, spec.credentials, where=where)
            if spec.from_ is not None:
                network = str(ipaddress.ip_network(spec.from_))
                if network in taken:
                    raise ConfigError(f"{network} is the source of {taken[network]} too", where=where)
                taken[network] = name

    def check_use(self, policy: str, credentials: tuple[str, ...], *, where: str) -> None:
        """Raise `ConfigError` unless the policy exists and one of its rules names each credential."""
        compiled = self.policies.get(policy)
        if compiled is None:
            known = ", ".join(sorted(self.policies)) or "none"
            raise ConfigError(f"there is no policy {policy!r}", where=where, hint=f"policies of this gate: {known}")
        usable = self.policy_credentials(policy)
        for name in credentials:
            if name not in self.settings.credentials or name not in self.settings.sources:
                known = ", ".join(sorted(self.settings.credentials)) or "none"
                raise ConfigError(f"there is no credential {name!r}", where=where, hint=f"credentials here: {known}")
            if name not in usable:
                raise ConfigError(f"no rule of policy {policy!r} has credential {name!r}", where=where)

    def policy_credentials(self, policy: str) -> frozenset[str]:
        """Return the credentials that a policy's rules name."""
        spec = self.settings.policies[policy]
        return frozenset(rule.credential for rule in spec.allow if rule.credential is not None)

    def credential(self, name: str) -> CredentialSpec | None:
        """Return a credential, or None when these settings have none of that name."""
        return self.settings.credentials.get(name)

    def source(self, name: str) -> SourceSpec:
        """Return where the credential's secret comes from."""
        return self.settings.sources[name]

    def session(self, name: str) -> SessionSpec | None:
        """Return the file's session of that name, or None."""
        return self.settings.sessions.get(name)

    def could_allow(self, policy: str, host: Host, wall: float) -> bool:
        """Say if the policy could allow https to this host, on any of its ports."""
        compiled = self.policies.get(policy)
        if compiled is None:
            return False
        return any(decide(Ask(host, port, "https"), compiled, wall).allowed for port in sorted(compiled.ports))

    def budget_limit(self, policy: str, *, scope: str, kind: str) -> int | None:
        """Return the configured limit of a budget: scope `session`, `policy`, `owner`, `rule:ID` or `rule:*`."""
        if kind == "observed_bytes":
            return OBSERVED_BYTES
        spec = self.settings.policies[policy]
        field = _BUDGET_FIELDS[kind]
        if scope.startswith("rule:"):
            limits = self._rule_limits(policy).get(scope.removeprefix("rule:"))
            return getattr(limits, field, None)
        budgets = {"session": spec.budgets_session, "policy": spec.budgets_policy, "owner": spec.budgets_owner}[scope]
        return getattr(budgets, field, None)

    def has_scope(self, policy: str, scope: str, kind: str) -> bool:
        """Say if budgets of this scope exist, so that a worker cannot invent any."""
        if kind == "observed_bytes":
            return scope == "policy"
        if scope.startswith("rule:"):
            return scope.removeprefix("rule:") in self._rule_limits(policy)
        return scope in ("session", "policy", "owner")

    def _rule_limits(self, policy: str) -> dict[str, RuleLimits]:
        found = self._limits.get(policy)
        if found is None:
            spec = self.settings.policies[policy]
            found = {rule.id: rule.limits for rule in spec.allow} | {_ALL_RULES: spec.limits}
            self._limits[policy] = found
        return found
