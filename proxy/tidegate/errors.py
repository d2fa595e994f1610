"""The faults of Tidegate. A denial is a value (`Decision`), never one of these."""

__all__ = [
    "AuditError",
    "ConfigError",
    "CredentialError",
    "KeeperError",
    "LaunchError",
    "ResolveError",
    "TidegateError",
]


class TidegateError(Exception):
    """A fault with what happened, where, and what to do about it.

    `where` is `file:line`, a key path or a resource; `hint` is the next step in plain words.
    Neither may ever hold a secret (invariant 5).
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(TidegateError):
    """A configuration that cannot be used; nothing of it is applied (invariant 8)."""


class ResolveError(TidegateError):
    """A name that could not be looked up."""


class CredentialError(TidegateError):
    """A credential that could not be read, minted or placed."""


class AuditError(TidegateError):
    """A record that could not be written; the effect it announces must not happen (invariant 6)."""


class KeeperError(TidegateError):
    """The keeper refused, or could not be reached in time."""


class LaunchError(TidegateError):
    """A process or sandbox that could not be started as asked."""
