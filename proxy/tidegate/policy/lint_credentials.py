"""Whether credentials and the rules that name them agree."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tidegate.nearest import did_you_mean
from tidegate.policy.cover import methods_cover, paths_cover
from tidegate.policy.finding import Finding, error
from tidegate.policy.names import HostName
from tidegate.policy.paths import PathGlob
from tidegate.policy.rules import PolicySpec, Rule

__all__ = ["CredentialScope", "Credentials", "lint_credentials"]


class CredentialScope(Protocol):
    """One entry of a credential's `for`, as lint needs to see it."""

    @property
    def host(self) -> str:
        """The exact name."""
        ...

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods; None is all but CONNECT and TRACE."""
        ...

    @property
    def paths(self) -> tuple[PathGlob, ...] | None:
        """The globs; None is `/**`."""
        ...


type Credentials = Mapping[str, Sequence[CredentialScope]]


def lint_credentials(specs: Sequence[PolicySpec], credentials: Credentials) -> Iterator[Finding]:
    """Yield the findings on credentials, over all policies together."""
    naming: dict[str, list[Rule]] = {}
    for spec in specs:
        for rule in spec.allow:
            if rule.credential is not None:
                naming.setdefault(rule.credential, []).append(rule)
    for name, rules in naming.items():
        yield from _unbound(name, rules, credentials.get(name), known=credentials)
    for name, scopes in credentials.items():
        for number, scope in enumerate(scopes):
            if name in naming and not _within(scope, naming[name]):
                message = f"{scope.host}: the scope is wider than every rule that names this credential"
                yield Finding("error", "credential_wider", f"credentials.{name}.for[{number}]", message)


def _unbound(
    name: str, rules: Sequence[Rule], scopes: Sequence[CredentialScope] | None, *, known: Iterable[str]
) -> Iterator[Finding]:
    for rule in rules:
        if scopes is None:
            yield error(rule, "credential_unbound", f"there is no credential {name}{did_you_mean(name, known)}")
        elif not any(rule.host.matches(HostName(scope.host)) for scope in scopes):
            yield error(rule, "credential_unbound", f"the credential {name} is not for {rule.host}")


def _within(scope: CredentialScope, rules: Sequence[Rule]) -> bool:
    """Tell whether each method and path of the scope is allowed by some rule that names the credential."""
    here = [rule for rule in rules if rule.host.matches(HostName(scope.host)) and rule.protocol == "https"]
    methods: Sequence[tuple[str, ...] | None] = [None] if scope.methods is None else [(m,) for m in scope.methods]
    paths: Sequence[tuple[PathGlob, ...] | None] = [None] if scope.paths is None else [(p,) for p in scope.paths]
    return all(
        any(methods_cover(rule.methods, method) and paths_cover(rule.paths, path) for rule in here)
        for method in methods
        for path in paths
    )
