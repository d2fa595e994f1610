"""Absolute-form targets and redirect locations: scheme, authority and path, or a refusal."""

import re

import msgspec

from tidegate.policy.names import SCHEME_PORTS, Authority, parse_authority
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Protocol

__all__ = ["AbsoluteTarget", "parse_absolute"]


class AbsoluteTarget(msgspec.Struct, frozen=True):
    """A whole http or https URL, well formed."""

    scheme: Protocol
    authority: Authority
    path: Path


# RFC 3986 section 3 with everything refused that two parsers read apart (N-10 to N-12, N-24).
_URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)


def parse_absolute(raw: bytes | str) -> AbsoluteTarget | Reason:
    """Return the parts of an absolute-form target, or why it has none.

    Schemes other than http and https, userinfo, backslashes and fragments are `MALFORMED_TARGET`.
    """
    text = raw if isinstance(raw, str) else raw.decode("latin-1")
    match = _URL.fullmatch(text)
    if match is None:
        return Reason.MALFORMED_TARGET
    scheme: Protocol = "https" if len(match[1]) == 5 else "http"
    authority = parse_authority(match[2], default_port=SCHEME_PORTS[scheme])
    if isinstance(authority, Reason):
        return authority
    path = parse_target(match[3] if match[3].startswith("/") else "/" + match[3])
    return path if isinstance(path, Reason) else AbsoluteTarget(scheme, authority, path)
