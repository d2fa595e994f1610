"""What the gate itself says: one fixed problem document a reason.

Nothing of the client's, the policy's or the upstream's is in it but the host that was asked for, as
A-label (RFC 9457 problem details, RFC 9209 Proxy-Status).
"""

import msgspec

from tidegate.policy.reasons import Reason

__all__ = ["Denial", "denial", "phrase"]

_PHRASES = {
    400: b"Bad Request",
    403: b"Forbidden",
    407: b"Proxy Authentication Required",
    408: b"Request Timeout",
    413: b"Content Too Large",
    414: b"URI Too Long",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


class Denial(msgspec.Struct, frozen=True):
    """A complete reply of the gate's own. `headers` are without Connection, which the engine sets."""

    reason: Reason
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class _Problem(msgspec.Struct, omit_defaults=True):
    type: str
    title: str
    status: int
    detail: str
    reason: str
    request_id: str
    docs: str
    host: str | None = None


def phrase(status: int) -> bytes:
    """Return the reason phrase of one of our own statuses (RFC 9110 15)."""
    return _PHRASES.get(status, b"Error")


def denial(reason: Reason, *, flow: str, host: str | None = None) -> Denial:
    """Make the reply for `reason`. A reason without a status cannot be spoken; it becomes 403."""
    status = reason.status or 403
    code = reason.public_code
    docs = f"docs/reasons/{code}.md"
    body = msgspec.json.encode(
        _Problem(
            type=f"urn:tidegate:reason:{code}",
            title=phrase(status).decode(),
            status=status,
            detail=reason.text,
            reason=code,
            request_id=flow,
            docs=docs,
            host=host,
        )
    )
    headers = [
        (b"Content-Type", b"application/problem+json"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Cache-Control", b"no-store"),
        (b"Proxy-Status", b'tidegate; error=%b; details="%b"' % (_error_type(reason), code.encode())),
    ]
    if status == 407:
        headers.append((b"Proxy-Authenticate", b'Basic realm="tidegate"'))
    if reason is Reason.LANE_REFUSED:
        headers.append((b"Retry-After", b"0"))
    return Denial(reason, status, tuple(headers), body)


def _error_type(reason: Reason) -> bytes:
    return reason.proxy_status.encode()
