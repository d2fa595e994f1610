"""Which sandbox a call's command runs in. It is decided here, and nowhere else."""

from typing import Literal, get_args

from tidegate.errors import LaunchError

__all__ = ["Risk", "check_risk", "sandbox_for"]

type Risk = Literal["low", "high"]
"""How far a harness trusts a tool with what the calls before it have left: `high`, not at all."""


def check_risk(risk: str) -> None:
    """Raise `LaunchError` for a word that is none: what it would have meant cannot be guessed."""
    words = get_args(Risk.__value__)
    if risk not in words:
        raise LaunchError(f"a call's risk is one of {', '.join(words)}", where="risk")


def sandbox_for[T](risk: Risk, *, fresh: T, shared: T | None = None) -> T:
    """Return what runs the command: `shared` where one stands and the risk is low, else a fresh sandbox.

    A call of high risk is never in a sandbox that another command was in, or will be. Raises `LaunchError`.
    """
    check_risk(risk)
    return shared if shared is not None and risk == "low" else fresh
