"""HTTP/2 heads: one reading, within the limits of an HTTP/1 head, or a refusal (RFC 9113 8.2, 8.3)."""

import re
from collections.abc import Sequence

from mitmproxy.proxy.layers.http import RequestHeaders, ResponseHeaders

from tidegate.exchange.head import HeadLimits, RequestHead, ResponseHead
from tidegate.policy.methods import parse_method
from tidegate.policy.reasons import Reason

__all__ = ["request_head", "response_head"]

Fields = Sequence[tuple[bytes, bytes]]

# What an HTTP/1 field line can hold and be read in one way (RFC 9113 8.2.1): h2 checks it too, but it is ours to hold.
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_PATH = re.compile(rb"[\x21-\x7e]+")
_CONNECTION_FIELDS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"upgrade", b"transfer-encoding"})


def request_head(event: RequestHeaders, limits: HeadLimits) -> RequestHead | Reason:
    """Read an HTTP/2 request head, or say why it has no one reading (RFC 9113 8.2, 8.3)."""
    data = event.request.data
    oversize = _oversize(data.path, data.headers.fields, limits)
    if oversize is not None:
        return oversize
    method = parse_method(data.method)
    if isinstance(method, Reason):
        return method
    fields = list(data.headers.fields)
    authority: bytes | None = data.authority or None
    length: bytes | None = None
    for name, value in fields:
        if name in _CONNECTION_FIELDS or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return Reason.AMBIGUOUS
        if name == b"host":
            if authority is not None and value.lower() != authority.lower():
                return Reason.AMBIGUOUS_HOST
            authority = value
        elif name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > 18:
                return Reason.AMBIGUOUS
            length = value
        elif (name == b"expect" and value.lower() != b"100-continue") or (
            name == b"te" and value.lower() != b"trailers"
        ):
            return Reason.AMBIGUOUS
    if authority is None:
        return Reason.AMBIGUOUS_HOST
    if _PATH.fullmatch(data.path) is None or data.scheme not in (b"http", b"https"):
        return Reason.MALFORMED_TARGET
    if data.scheme != b"https":
        return Reason.AUTHORITY_MISMATCH  # HTTP/2 is spoken inside TLS alone: another scheme is another place
    if event.end_stream and length is not None and int(length):
        return Reason.AMBIGUOUS
    size = 0 if event.end_stream else int(length) if length is not None else None
    fields = [field for field in fields if field[0] != b"host"]
    head = RequestHead(method, data.path, 1, fields, size, authority)
    head.http2 = True
    head.trailers = any(name == b"trailer" for name, _ in fields)
    return head


def _oversize(path: bytes, fields: Fields, limits: HeadLimits) -> Reason | None:
    """Measure a head by the limits of an HTTP/1 one, as which it may go on."""
    if len(path) > limits.url_bytes:
        return Reason.URL_TOO_LONG
    if len(fields) > limits.headers or sum(len(name) + len(value) + 4 for name, value in fields) > limits.header_bytes:
        return Reason.HEADERS_TOO_LARGE
    return None


def response_head(event: ResponseHeaders, method: str, limits: HeadLimits) -> ResponseHead | None:
    """Read an HTTP/2 response head; None when it has no one reading, or is too large."""
    data = event.response.data
    if _oversize(b"", data.headers.fields, limits) is not None:
        return None
    length: int | None = None
    fields = [(name, value) for name, value in data.headers.fields if not name.startswith(b":")]
    for name, value in fields:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or (length is not None and length != int(value)):
                return None
            length = int(value)
        if name in _CONNECTION_FIELDS or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
    bare = method == "HEAD" or data.status_code in (204, 304)
    if event.end_stream and length and not bare:
        return None
    if event.end_stream or bare:
        length = 0
    if not 200 <= data.status_code <= 599:
        return None
    return ResponseHead(data.status_code, b"", 1, fields, length)
