"""Paths and path globs."""

import msgspec

from tidegate.policy.reasons import Reason

__all__ = ["Path", "PathGlob", "parse_glob", "parse_target"]


class Path(msgspec.Struct, frozen=True):
    """A request path: `text` without the query, its segments decoded once, and whether it is ambiguous."""

    text: str
    query: str | None
    segments: tuple[str, ...]
    ambiguous: bool


class PathGlob(msgspec.Struct, frozen=True):
    """A path glob of a rule, by its text."""

    text: str

    def matches(self, segments: tuple[str, ...]) -> bool:
        """Tell whether the segments match, in time linear in them."""
        raise NotImplementedError


def parse_target(raw: str) -> Path | Reason:
    """Return the path of an origin-form target (with its query), or `MALFORMED_TARGET`."""
    raise NotImplementedError


def parse_glob(text: str) -> PathGlob:
    """Return the glob; raise `PolicyError` with what is wrong."""
    raise NotImplementedError
