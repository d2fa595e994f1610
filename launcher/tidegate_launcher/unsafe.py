"""What is not a boundary against an attacker: made only by who says `unsafe`, and said on stderr at each run."""

import sys
from typing import Final

from tidegate.errors import LaunchError

__all__ = ["WARNING", "must_be_wanted", "warn"]

WARNING: Final = "not a boundary against an attacker"


def must_be_wanted(name: str, *, unsafe: bool) -> None:
    """Take the word of who asks that this is wanted. Raises `LaunchError` without."""
    if not unsafe:
        raise LaunchError(
            f"{name} is {WARNING}",
            where="--boundary",
            hint="if this code is yours: --unsafe-boundary, or unsafe_boundary=True",
        )


def warn(name: str) -> None:
    """Say what it is."""
    print(f"tidegate: boundary {name}: {WARNING}", file=sys.stderr)
