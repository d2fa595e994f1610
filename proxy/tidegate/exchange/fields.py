"""Header fields that do not travel on, and why; and the framing, which is written anew.

Names are compared with `_` read as `-`: servers that hand fields on as variables (CGI, WSGI) make one of both.
"""

import re

from tidegate.credentials.request import Fields

__all__ = ["Fields", "clean_request", "clean_response", "first", "request_framing"]

# Between two hops only (RFC 9110 7.6.1), or ours to write.
_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate proxy-authentication-info "
    b"te trailer transfer-encoding upgrade http2-settings host expect".split()
)
# Claims of another method, path or host, which some servers believe over the request itself (P-31).
_OVERRIDES = frozenset(
    b"x-http-method-override x-http-method x-method-override x-original-url x-rewrite-url x-original-host "
    b"x-forwarded-host x-forwarded-server x-forwarded-port x-forwarded-proto x-forwarded-prefix x-host forwarded "
    b"x-original-method x-override-url".split()
)
_REQUEST_DROPS = _HOP | _OVERRIDES | {b"content-length"}
_REQUEST_SIZES = frozenset(map(len, _REQUEST_DROPS))
_RESPONSE_DROPS = (_HOP - {b"host", b"expect"}) | {b"alt-svc", b"content-length"}
_RESPONSE_SIZES = frozenset(map(len, _RESPONSE_DROPS))
# Methods whose requests have no body as a rule: without one, nothing need be said of it (RFC 9110 8.6).
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "CONNECT"})
_OURS = re.compile(rb"\s*\"?tidegate\b", re.IGNORECASE)


def clean_request(fields: Fields, listed: frozenset[bytes], *, identity: bool) -> Fields:
    """Return what of a request's fields may go on.

    `listed` are the names that Connection lists; `identity` asks the upstream for bytes that can be
    searched, in the place of whatever coding the client would take.
    """
    out: Fields = []
    cookies: list[bytes] = []
    for field in fields:
        name = field[0]
        size = len(name)
        if size in _REQUEST_SIZES or listed or size in (6, 15):
            key = name.lower().replace(b"_", b"-")
            if key in _REQUEST_DROPS or (listed and name.lower() in listed):
                continue
            if key == b"cookie":
                cookies.append(field[1])
                continue
            if identity and key == b"accept-encoding":
                continue
        out.append(field)
    if cookies:
        # HTTP/2 splits Cookie (RFC 9113 8.2.3); HTTP/1 has one.
        out.append((b"Cookie", b"; ".join(cookies)))
    if identity:
        out.append((b"Accept-Encoding", b"identity"))
    return out


def clean_response(fields: Fields, listed: frozenset[bytes], *, cookies: bool) -> Fields:
    """Return what of a response's fields may go on; without `cookies`, none may be set (R-13, C-35)."""
    out: Fields = []
    for field in fields:
        name = field[0]
        size = len(name)
        if size in _RESPONSE_SIZES or listed or size in (10, 11, 12) or size > 9:
            key = name.lower().replace(b"_", b"-")
            if key in _RESPONSE_DROPS or (listed and name.lower() in listed):
                continue
            if key.startswith(b"tidegate-") or (key == b"set-cookie" and not cookies):
                continue
            if key == b"proxy-status":
                kept = [part for part in field[1].split(b",") if not _OURS.match(part)]
                if not kept:
                    continue
                field = (name, b",".join(kept))
        out.append(field)
    return out


def request_framing(length: int | None, method: str, *, http2: bool = False) -> Fields:
    """Return the fields that say where a request's body ends, by our own reading of it: nothing else writes them.

    `length` None: in chunks, or as long as the HTTP/2 stream.
    """
    if length is None:
        return [] if http2 else [(b"Transfer-Encoding", b"chunked")]
    if length or method not in _BODILESS:
        return [(b"content-length" if http2 else b"Content-Length", b"%d" % length)]
    return []


def first(fields: Fields, name: bytes) -> bytes | None:
    """Return the value of the first field called `name` (lower case)."""
    size = len(name)
    for key, value in fields:
        if len(key) == size and key.lower() == name:
            return value
    return None
