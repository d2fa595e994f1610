"""Strict HTTP/1 heads: bytes in, one reading out, or a refusal.

Theory: a gate that forwards a head which two parsers could read differently can be made to judge
one request and send another. So a head is accepted only in the one form that every parser reads
alike, and is always written anew from its parts; nothing of the client's framing travels on.

| input | outcome | source |
|---|---|---|
| bare CR or LF, NUL, obs-fold, space before the colon | `ambiguous` | RFC 9112 2.2, 5, 5.2 |
| Content-Length with Transfer-Encoding, or twice, or not digits | `ambiguous` | RFC 9112 6.3 |
| a Transfer-Encoding other than exactly `chunked`, or with HTTP/1.0 | `ambiguous` | RFC 9112 6.1 |
| no Host, or two | `ambiguous_host` | RFC 9112 3.2 |
| Connection lists a field that is for all recipients | `ambiguous` | RFC 9110 7.6.1 |
| method not in its canonical spelling | `malformed_target` | RFC 9110 9.1 |

An upstream's head that breaks the same rules is a `BadReply`.
"""

import re
from collections.abc import Iterable

import msgspec

from tidegate.credentials.request import Fields
from tidegate.policy.methods import parse_method
from tidegate.policy.reasons import Reason

__all__ = [
    "BadReply",
    "HeadLimits",
    "RequestHead",
    "ResponseHead",
    "early_reason",
    "parse_request_head",
    "parse_response_head",
    "serialise_headers",
]

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# One field line: a name, a colon at once, a value without control characters but HTAB (RFC 9110 5.5).
# Possessive throughout: a hostile line costs one pass (V-18).
_FIELD = rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n"
_FIELDS = re.compile(_FIELD)
_ALL_FIELDS = re.compile(b"(?:" + _FIELD.replace(b"(", b"(?:") + b")*+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_OPTIONS = frozenset({b"close", b"keep-alive", b"upgrade", b"te"})
# What Connection may not list: who drops such a field as told sees another message than who does not, and one that
# loses its framing, its host or its coding on the way is a request, or a text, that nobody judged.
_END_TO_END = re.compile(
    rb"(?:accept|access-control|content|if|sec|signature|want|x-amz|x-forwarded|x-goog)-.*|.*-(?:key|token)|accept|age"
    rb"|allow|authorization|cache-control|cookie2?|date|digest|etag|expect|expires|forwarded|from|host|last-modified"
    rb"|link|location|origin|pragma|proxy-status|range|referer|refresh|retry-after|server|set-cookie2?|signature"
    rb"|transfer-encoding|user-agent|vary|via|www-authenticate"
)


class HeadLimits(msgspec.Struct, frozen=True):
    """Upper bounds of a head, in bytes and in fields."""

    header_bytes: int = 65536
    headers: int = 200
    url_bytes: int = 16384


class RequestHead(msgspec.Struct):
    """One request head.

    `length` is the body's length in bytes, None for chunked. `authority` is the Host field or the
    `:authority` pseudo-header; None only for HTTP/1.0 without Host. `headers` keep their order and
    case and hold no framing surprises.
    """

    method: str
    target: bytes
    minor: int
    headers: Fields
    length: int | None
    authority: bytes | None
    expect_continue: bool = False
    close: bool = False
    trailers: bool = False
    upgrade: bytes | None = None
    connection_tokens: frozenset[bytes] = frozenset()
    http2: bool = False

    @property
    def version(self) -> str:
        """The version as the log has it."""
        return "2" if self.http2 else f"1.{self.minor}"


class ResponseHead(msgspec.Struct):
    """One response head. `length` None: chunked; -1: until the peer closes (RFC 9112 6.3)."""

    status: int
    reason: bytes
    minor: int
    headers: Fields
    length: int | None
    close: bool = False
    connection_tokens: frozenset[bytes] = frozenset()


class BadReply(Exception):
    """The upstream's head cannot be read in one way. Carries a fixed text, none of its bytes."""


def parse_request_head(raw: bytes, limits: HeadLimits) -> RequestHead | Reason:
    """Read `raw`, a head without its closing empty line, or say why not. Never raises."""
    first, _, rest = raw.partition(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        return _why_no_request_line(first, limits)
    target, minor = line.group(2), line.group(3) == b"1"
    if len(target) > limits.url_bytes:
        return Reason.URL_TOO_LONG
    method = parse_method(line.group(1))
    if isinstance(method, Reason):
        return method
    fields = _parse_fields(rest, limits)
    if isinstance(fields, Reason):
        return fields
    return _finish_request(method, target, int(minor), fields)


def early_reason(buffer: bytes | bytearray, limits: HeadLimits) -> Reason | None:
    """Judge an unfinished head by what is there: bare line feeds, a first line that is no request."""
    if b"\n" not in buffer:
        return None
    if b"\n" in buffer.replace(b"\r\n", b""):
        return Reason.AMBIGUOUS if b" HTTP/1." in buffer else Reason.NOT_HTTP
    first, _, _ = bytes(buffer).partition(b"\r\n")
    head = parse_request_head(first, limits)
    return head if isinstance(head, Reason) and head is not Reason.AMBIGUOUS_HOST else None


def _why_no_request_line(first: bytes, limits: HeadLimits) -> Reason:
    """Tell a request that is wrong from bytes that are no request at all."""
    if len(first) > limits.url_bytes:
        return Reason.URL_TOO_LONG
    if re.match(rb"[!-~]+ +[!-~].* HTTP/[0-9]", first) or re.fullmatch(rb"[A-Z]+ [^ ]+(?: HTTP.*)?", first):
        return Reason.MALFORMED_TARGET
    if re.match(rb"[A-Z]{3,12} ", first):
        return Reason.MALFORMED_TARGET
    return Reason.NOT_HTTP


def _parse_fields(rest: bytes, limits: HeadLimits) -> Fields | Reason:
    if not rest:
        return []
    block = rest + b"\r\n"
    if _ALL_FIELDS.fullmatch(block) is None:
        return Reason.HEADERS_TOO_LARGE if block.count(b"\n") > limits.headers else Reason.AMBIGUOUS
    fields: Fields = _FIELDS.findall(block)
    if len(fields) > limits.headers:
        return Reason.HEADERS_TOO_LARGE
    if b" \r\n" in block or b"\t\r\n" in block:
        return [(name, value.rstrip(b" \t")) for name, value in fields]
    return fields


def tokens(value: bytes) -> frozenset[bytes]:
    """Split a comma list into lower-case tokens."""
    return frozenset(part.strip(b" \t").lower() for part in value.split(b",") if part.strip(b" \t"))


def _hides(options: frozenset[bytes]) -> bool:
    """Tell whether Connection lists a field that is for all recipients, in either spelling of `-`."""
    if options <= _OPTIONS:
        return False
    return any(_END_TO_END.fullmatch(option.replace(b"_", b"-")) for option in options)


def _finish_request(method: str, target: bytes, minor: int, fields: Fields) -> RequestHead | Reason:
    """Read the fields that frame or name the request; each may stand once."""
    head = RequestHead(method, target, minor, fields, 0, None)
    coding: bytes | None = None
    length: bytes | None = None
    hosts = 0
    for name, value in fields:
        size = len(name)
        if size not in _SPECIAL_SIZES:
            continue
        key = name.lower()
        if key == b"host":
            hosts += 1
            head.authority = value
        elif key == b"content-length":
            if length is not None or _DIGITS.fullmatch(value) is None:
                return Reason.AMBIGUOUS
            length = value
        elif key == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked" or minor == 0:
                return Reason.AMBIGUOUS
            coding = value
        elif key == b"connection":
            head.connection_tokens = head.connection_tokens | tokens(value)
        elif key == b"expect":
            if value.lower() != b"100-continue":
                return Reason.AMBIGUOUS
            head.expect_continue = True
        elif key == b"trailer":
            head.trailers = True
        elif key == b"upgrade":
            head.upgrade = value.lower()
    if hosts > 1 or (hosts == 0 and minor == 1):
        return Reason.AMBIGUOUS_HOST
    if (coding is not None and length is not None) or _hides(head.connection_tokens):
        return Reason.AMBIGUOUS
    head.length = None if coding is not None else int(length or 0)
    head.close = b"close" in head.connection_tokens or (minor == 0 and b"keep-alive" not in head.connection_tokens)
    return head


# Lengths of the names read above: most fields are passed over by one look-up.
_SPECIAL_SIZES = frozenset(
    len(name)
    for name in (b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"trailer", b"upgrade")
)


def parse_response_head(raw: bytes, *, method: str, limits: HeadLimits) -> ResponseHead:
    """Read an upstream's head for a request of `method`; raise `BadReply` unless it has one reading."""
    first, _, rest = raw.partition(b"\r\n")
    line = _STATUS_LINE.fullmatch(first)
    if line is None:
        raise BadReply("the status line is not well formed")
    fields = _parse_fields(rest, limits)
    if isinstance(fields, Reason):
        raise BadReply("a header field is not well formed, or there are too many")
    status, minor = int(line.group(2)), int(line.group(1))
    head = ResponseHead(status, line.group(3) or b"", minor, fields, -1)
    _frame_response(head, method)
    return head


def _frame_response(head: ResponseHead, method: str) -> None:
    coding: bytes | None = None
    length: bytes | None = None
    for name, value in head.headers:
        if len(name) not in _SPECIAL_SIZES:
            continue
        key = name.lower()
        if key == b"content-length":
            if (length is not None and length != value) or _DIGITS.fullmatch(value) is None:
                raise BadReply("Content-Length is not one number")
            length = value
        elif key == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked":
                raise BadReply("Transfer-Encoding is not chunked")
            coding = value
        elif key == b"connection":
            head.connection_tokens = head.connection_tokens | tokens(value)
    if coding is not None and length is not None:
        raise BadReply("both Content-Length and Transfer-Encoding")
    # Transfer-Encoding is between two hops, and some servers do list it (RFC 9110 7.6.1); its reading is our own.
    if _hides(head.connection_tokens - {b"transfer-encoding"}):
        raise BadReply("Connection lists a field that is for all recipients")
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        head.length = 0
    elif coding is not None:
        head.length = None
    elif length is not None:
        head.length = int(length)
    head.close = (
        head.length == -1
        or b"close" in head.connection_tokens
        or (head.minor == 0 and b"keep-alive" not in head.connection_tokens)
    )


def serialise_headers(first: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write a head: `first` line, fields, empty line."""
    return b"".join([first, b"\r\n", *[b"%b: %b\r\n" % field for field in fields], b"\r\n"])
