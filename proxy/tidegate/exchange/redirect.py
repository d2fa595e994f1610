"""Redirects, judged before the client sees them; nothing is looked up (docs/explanation/policy-model.md).

A Location is resolved against the request as a client would (RFC 3986 5.2), with the tricks that
clients read differently (`/\\evil`, `https:evil`, tabs) taken as denied: the next hop is judged anew
in any case, so this only keeps a target out of a client that would follow it. `urllib.parse.urljoin`
is not used: it drops empty segments and reads more schemes than a client of http has.
"""

import re
from typing import Literal

from tidegate.policy.decide import Ask, Policy, decide
from tidegate.policy.names import Host
from tidegate.policy.paths import Path, parse_target
from tidegate.policy.reasons import Reason
from tidegate.policy.target import parse_absolute

__all__ = ["Base", "redirect_reason", "refresh_target"]

_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_DELAY = re.compile(rb"[0-9.]*+\s*+[;,]?\s*+(?:url\s*+=\s*+)?", re.IGNORECASE)
_TO_GET = frozenset({301, 302})


class Base:
    """The request that is redirected: where it went and how."""

    __slots__ = ("host", "method", "path", "port", "scheme")

    def __init__(self, *, scheme: Literal["https", "http"], host: Host, port: int, method: str, path: Path) -> None:
        self.scheme = scheme
        self.host = host
        self.port = port
        self.method = method
        self.path = path


def redirect_reason(target: bytes, *, base: Base, status: int, policy: Policy, now: float) -> Reason | None:
    """Return why the policy would refuse the hop to `target`, or None if it would let it pass."""
    value = target.strip(b" ")
    method = _next_method(status, base.method)
    value = value.partition(b"#")[0]
    if re.search(rb"[\x00-\x20\x7f-\xff\\]", value):
        return Reason.MALFORMED_TARGET
    if _SCHEME.match(value):
        return _absolute(value, method, policy, now)
    if value.startswith(b"//"):
        return _absolute(base.scheme.encode() + b":" + value, method, policy, now)
    return _relative(value, base, method, policy, now)


def _next_method(status: int, method: str) -> str:
    """RFC 9110 15.4: 303 turns all but HEAD into GET, and so do 301 and 302 for POST."""
    if status == 303 and method != "HEAD":
        return "GET"
    return "GET" if status in _TO_GET and method == "POST" else method


def _absolute(value: bytes, method: str, policy: Policy, now: float) -> Reason | None:
    found = parse_absolute(value)
    if isinstance(found, Reason):
        return found
    ask = Ask(found.authority.host, found.authority.port, found.scheme, method, found.path)
    return _refusal(ask, policy, now)


def _relative(value: bytes, base: Base, method: str, policy: Policy, now: float) -> Reason | None:
    """A path on the same name: its host is allowed, its path may not be."""
    path = parse_target(_resolve(value.decode("latin-1"), base.path))
    if isinstance(path, Reason):
        return path
    return _refusal(Ask(base.host, base.port, base.scheme, method, path), policy, now)


def _refusal(ask: Ask, policy: Policy, now: float) -> Reason | None:
    """Return why the hop may not be; what passes by observe only is no refusal."""
    decision = decide(ask, policy, now)
    return None if decision.allowed else decision.reason or Reason.REDIRECT_DENIED


def _resolve(reference: str, base: Path) -> str:
    """Return the target that a reference without scheme and authority leads to (RFC 3986 5.2.2).

    An absolute path is left as it is written: its dot segments make it ambiguous, as in a request.
    """
    path, mark, query = reference.partition("?")
    if path.startswith("/"):
        return reference
    if path:
        merged = base.text[: base.text.rindex("/") + 1] + path
        return _without_dots(merged) + mark + query
    if mark or base.query is None:
        return base.text + mark + query
    return f"{base.text}?{base.query}"


def _without_dots(path: str) -> str:
    """Remove the dot segments of a path that begins with a slash (RFC 3986 5.2.4)."""
    pieces = path[1:].split("/")
    kept: list[str] = []
    for piece in pieces:
        if piece == "..":
            del kept[-1:]
        elif piece != ".":
            kept.append(piece)
    if pieces[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def refresh_target(value: bytes) -> bytes | None:
    """Return the URL of a Refresh field, or None if it only reloads.

    HTML 4.2.5.3, «shared declarative refresh steps»: a blank separates as a semicolon does, `url=` may be missing.
    What stands behind a closing quote makes the whole the target, which is malformed, since clients differ there.
    """
    rest = value.strip()
    rest = _DELAY.sub(b"", rest, count=1)
    quote = rest[:1]
    if quote in (b"'", b'"') and rest.find(quote, 1) in (-1, len(rest) - 1):
        rest = rest[1:].removesuffix(quote)
    return rest.strip() or None
