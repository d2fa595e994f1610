"""What is wrong or unwise in a policy, before it is used."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from tidegate.policy.paths import PathGlob
from tidegate.policy.rules import PolicySpec

__all__ = ["CredentialScope", "Finding", "lint"]


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


class Finding(msgspec.Struct, frozen=True):
    """One finding. `error` refuses the load; `warning` is told at start; `where` is `file:line` or a key path."""

    severity: Literal["error", "warning"]
    code: str
    where: str
    message: str


def lint(
    policies: Iterable[PolicySpec], *, credentials: Mapping[str, Sequence[CredentialScope]] | None = None
) -> list[Finding]:
    """Return the findings of all policies, in file order."""
    raise NotImplementedError
