"""Methods: exact bytes, canonical spelling (P-33)."""

import re

from tidegate.policy.reasons import Reason

__all__ = ["KNOWN_METHODS", "parse_method"]

# fmt: off
KNOWN_METHODS = frozenset(
    {
        "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD",
        "LABEL", "LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE",
        "MOVE", "OPTIONS", "ORDERPATCH", "PATCH", "POST", "PRI", "PROPFIND", "PROPPATCH", "PURGE", "PUT",
        "QUERY", "REBIND", "REPORT", "SEARCH", "TRACE", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE",
        "UPDATEREDIRECTREF", "VERSION-CONTROL",
    }
)
# fmt: on
"""The IANA HTTP Method Registry (RFC 9110 section 18.2), and PURGE, which caches use."""

# RFC 9110 section 5.6.2 (token); 32 bytes are more than any registered method has.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}", re.ASCII)


def parse_method(text: bytes | str) -> str | Reason:
    """Return the method, or `MALFORMED_TARGET` for no token or another spelling of a known method."""
    plain = text if isinstance(text, str) else text.decode("latin-1")
    if plain in KNOWN_METHODS:
        return plain
    if not _TOKEN.fullmatch(plain) or plain.upper() in KNOWN_METHODS:
        return Reason.MALFORMED_TARGET
    return plain
