"""Absolute-form targets and redirect locations: scheme, authority and path, or a refusal."""

import msgspec

from tidegate.policy.names import Authority
from tidegate.policy.paths import Path
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Protocol

__all__ = ["AbsoluteTarget", "parse_absolute"]


class AbsoluteTarget(msgspec.Struct, frozen=True):
    """A whole http or https URL, well formed."""

    scheme: Protocol
    authority: Authority
    path: Path


def parse_absolute(raw: bytes | str) -> AbsoluteTarget | Reason:
    """Return the parts of an absolute-form target, or why it has none; other schemes are malformed."""
    raise NotImplementedError
