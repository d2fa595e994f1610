"""What passes between HTTP/1 legs and streams: heads with our reading of them, beside mitmproxy's events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mitmproxy import http
from mitmproxy.proxy.layers.http import RequestHeaders, ResponseHeaders, ResponseProtocolError
from mitmproxy.proxy.layers.http._base import HttpEvent

from tidegate.credentials.request import Fields
from tidegate.exchange.head import RequestHead, ResponseHead, serialise_headers
from tidegate.exchange.reply import Denial, phrase

__all__ = [
    "NOTHING",
    "Continue",
    "Fields",
    "ReceivedRequest",
    "ReceivedResponse",
    "SentRequest",
    "SentResponse",
    "Unanswered",
    "denial_bytes",
    "make_request",
    "make_response",
    "phrase_of",
]

NOTHING: Any = None
"""What mitmproxy's events hold in place of objects that nothing reads: heads travel beside them."""


@dataclass
class ReceivedRequest(RequestHeaders):
    """A request head of the client's, with our reading of it."""

    head: RequestHead = field(kw_only=True)


@dataclass
class ReceivedResponse(ResponseHeaders):
    """A response head of the upstream's, with our reading of it."""

    head: ResponseHead = field(kw_only=True)


@dataclass
class SentRequest(RequestHeaders):
    """A request head for the upstream; `length` is the body's, None for unknown.

    An HTTP/1 leg writes `method`, `target` and `fields`, and frames the body by `length`; an HTTP/2 leg writes
    `request`.
    """

    length: int | None = 0
    method: str = ""
    target: bytes = b""
    fields: Fields = field(default_factory=list)


@dataclass
class SentResponse(ResponseHeaders):
    """A response head for the client. `hold`: the body follows in the same turn, so one write does.

    An HTTP/1 leg writes `status`, `phrase` and `fields`, an HTTP/2 leg `response`.
    """

    chunked: bool = False
    close: bool = False
    hold: bool = False
    status: int = 0
    phrase: bytes = b""
    fields: Fields = field(default_factory=list)


@dataclass
class Continue(HttpEvent):
    """Tell an HTTP/1 client to go on with its body (RFC 9110 15.2.1); said only after allow."""


@dataclass
class Unanswered(ResponseProtocolError):
    """The upstream closed without a byte in answer: such a request may be tried once more."""


def phrase_of(status: int) -> bytes:
    """Return a reason phrase for any status."""
    known: Callable[[int, str], str] = http.status_codes.RESPONSES.get
    return known(status, "").encode()


def denial_bytes(denial: Denial) -> bytes:
    """Write a denial as one HTTP/1.1 message that closes the connection."""
    first = b"HTTP/1.1 %d %b" % (denial.status, phrase(denial.status))
    return serialise_headers(first, [*denial.headers, (b"Connection", b"close")]) + denial.body


def make_request(head: RequestHead) -> http.Request:
    """Make mitmproxy's request of a head."""
    return http.Request(
        host="",
        port=0,
        method=head.method.encode(),
        scheme=b"",
        authority=b"",
        path=head.target,
        http_version=b"HTTP/1.1" if head.minor else b"HTTP/1.0",
        headers=http.Headers(head.headers),
        content=None,
        trailers=None,
        timestamp_start=0.0,
        timestamp_end=None,
    )


def make_response(head: ResponseHead) -> http.Response:
    """Make mitmproxy's response of a head."""
    return http.Response(
        http_version=b"HTTP/1.1",
        status_code=head.status,
        reason=head.reason,
        headers=http.Headers(head.headers),
        content=None,
        trailers=None,
        timestamp_start=0.0,
        timestamp_end=None,
    )
