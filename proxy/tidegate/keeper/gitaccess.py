"""Which hosts git is to be given a placeholder for: it reads no variable of its own for that."""

from collections.abc import Iterable, Mapping

from tidegate.credentials.spec import SLOT, CredentialSpec
from tidegate.sdk.env import GitCredential

__all__ = ["git_credentials"]


def git_credentials(credentials: Iterable[CredentialSpec], placeholders: Mapping[str, str]) -> list[GitCredential]:
    """Return one entry for each host of each Basic credential whose variable the session has."""
    return [
        # Where the credential names no user, the client's own stays, and git must have one.
        GitCredential(host, spec.place.user or "git", spec.placeholder.env)
        for spec in credentials
        if spec.place.kind == "basic" and spec.place.password == SLOT and spec.placeholder.env in placeholders
        for host in dict.fromkeys(str(scope.host) for scope in spec.scope)
    ]
