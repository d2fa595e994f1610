"""HTTP/1 on both legs: strict heads, bounded buffers, nothing forwarded as it came.

In the place of mitmproxy's own, which accepts what two parsers read differently, holds heads of any
size, crashes on trailers and reuses an upstream for one request only under HTTP/2. Each side is a
small state machine:

| state | client leg | upstream leg |
|---|---|---|
| head | collects one head, judged by `exchange.head` | collects one head; 1xx are dropped |
| body | counts or unchunks | counts, unchunks, or reads to the end |
| wait | the request is whole, its answer is not | - |
| drain | an early answer is out: swallow 64 KiB, then close | - |
| pipe | bytes, after 101 | bytes, after 101 |
| done | nothing more | nothing more |
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._base import HttpConnection, HttpEvent, ReceiveHttp

from tidegate.exchange.channel import Channel
from tidegate.exchange.head import (
    BadReply,
    RequestHead,
    ResponseHead,
    early_reason,
    parse_request_head,
    parse_response_head,
    serialise_headers,
)
from tidegate.exchange.reply import Denial, phrase
from tidegate.policy.reasons import Reason

__all__ = [
    "Continue",
    "DownstreamHttp1",
    "ReceivedRequest",
    "ReceivedResponse",
    "SentRequest",
    "SentResponse",
    "UpstreamHttp1",
]

_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 2.0
_PIPELINE_BYTES = 1 << 20
_FRAMING_BYTES = 16 * 1024

Commands = layer.CommandGenerator[None]
Fields = list[tuple[bytes, bytes]]


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
    """A request head for the upstream; `chunked`: its body goes out in chunks.

    An HTTP/1 leg writes `line` and `fields`, an HTTP/2 leg `request`.
    """

    chunked: bool = False
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


# What mitmproxy's events hold in place of objects that nothing reads: heads travel beside them.
_NO_REQUEST: Any = None
_NO_RESPONSE: Any = None


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    WAIT = auto()
    DRAIN = auto()
    PIPE = auto()
    DONE = auto()


class _Trailers(Exception):
    """A chunked body ended in trailer fields."""


class _Body:
    """Takes one body out of a buffer. `length`: bytes, None chunked, -1 to the end."""

    def __init__(self, length: int | None) -> None:
        self.left = length
        self.reader = ChunkedReader() if length is None else None
        self.buffer = ReceiveBuffer()
        self.whole = length == 0
        self.trailers = False

    def take(self, buffer: bytearray) -> list[bytes]:
        """Return the pieces that are there now; sets `whole` at the end. Raises h11.ProtocolError."""
        if self.whole:
            return []
        if self.reader is None:
            return self._take_counted(buffer)
        self.buffer += bytes(buffer)
        buffer.clear()
        pieces: list[bytes] = []
        while True:
            event = self.reader(self.buffer)
            if event is None:
                if len(self.buffer) > _FRAMING_BYTES:
                    raise h11.RemoteProtocolError("a chunk's size line or the trailers have no end")
                return pieces
            if isinstance(event, h11.EndOfMessage):
                self.whole = True
                self.trailers = bool(event.headers)
                rest = self.buffer.maybe_extract_at_most(len(self.buffer)) if len(self.buffer) else None
                buffer += rest or b""
                return pieces
            if event.data:
                pieces.append(bytes(event.data))

    def _take_counted(self, buffer: bytearray) -> list[bytes]:
        left = self.left or 0
        if left < 0:
            data = bytes(buffer)
            buffer.clear()
            return [data] if data else []
        if len(buffer) <= left:
            data = bytes(buffer)
            buffer.clear()
        else:
            data = bytes(buffer[:left])
            del buffer[:left]
        self.left = left - len(data)
        self.whole = self.left == 0
        return [data] if data else []


class DownstreamHttp1(HttpConnection):
    """The client's leg."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context, context.client)
        self.channel = channel
        self.stream_id = 1
        self.state = _State.HEAD
        self.buffer = bytearray()
        self.scanned = 0
        self.body = _Body(0)
        self.request_done = self.response_done = False
        self.chunked = self.close_after = False
        self.minor = 1
        self.drained = 0
        self.held = b""
        self.advancing = False

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, HttpEvent):
            yield from self._send(event)
        elif isinstance(event, events.DataReceived):
            self.buffer += event.data
            yield from self._advance()
        elif isinstance(event, events.ConnectionClosed):
            yield from self._closed()
        elif isinstance(event, events.Wakeup):
            yield from self._finish()

    # -- reading ----------------------------------------------------------------------------------

    def _advance(self) -> Commands:
        # An answer may come while its request is still being told, and free the way for the next:
        # the outer turn goes on with that, so that pipelined requests never nest.
        if self.advancing:
            return
        self.advancing = True
        try:
            yield from self._advance_while_bytes()
        finally:
            self.advancing = False

    def _advance_while_bytes(self) -> Commands:
        while self.buffer:
            if self.state is _State.HEAD:
                if not (yield from self._read_head()):
                    return
            elif self.state is _State.BODY:
                if not (yield from self._read_body()):
                    return
            elif self.state is _State.PIPE:
                data = bytes(self.buffer)
                self.buffer.clear()
                yield ReceiveHttp(RequestData(self.stream_id, data))
            elif self.state is _State.DRAIN:
                self.drained += len(self.buffer)
                self.buffer.clear()
                if self.drained > _DRAIN_BYTES:
                    yield from self._finish()
            else:
                if len(self.buffer) > _PIPELINE_BYTES or self.state is _State.DONE:
                    yield from self._finish()
                return

    def _read_head(self) -> layer.CommandGenerator[bool]:
        end = self.buffer.find(b"\r\n\r\n", max(0, self.scanned - 3))
        limits = self.channel.gate.head_limits
        if end < 0:
            self.scanned = len(self.buffer)
            self.channel.head_began()
            if self.scanned > limits.header_bytes + limits.url_bytes:
                yield from self._refuse(Reason.HEADERS_TOO_LARGE)
            else:
                reason = early_reason(self.buffer, limits)
                if reason is not None:
                    yield from self._refuse(reason)
            return False
        raw = bytes(self.buffer[:end])
        del self.buffer[: end + 4]
        self.scanned = 0
        self.channel.head_ended()
        if end > limits.header_bytes + limits.url_bytes:
            yield from self._refuse(Reason.HEADERS_TOO_LARGE)
            return False
        head = parse_request_head(raw, limits)
        if isinstance(head, Reason):
            yield from self._refuse(head)
            return False
        yield from self._receive(head)
        return True

    def _receive(self, head: RequestHead) -> Commands:
        self.request_done = self.response_done = False
        self.minor = head.minor
        self.close_after = head.close
        self.body = _Body(head.length)
        stream_id = self.stream_id
        self.request_done = self.body.whole
        self.state = _State.WAIT if self.body.whole else _State.BODY
        yield ReceiveHttp(ReceivedRequest(stream_id, _NO_REQUEST, self.body.whole, head=head))
        if self.body.whole:
            yield ReceiveHttp(RequestEndOfMessage(stream_id))

    def _read_body(self) -> layer.CommandGenerator[bool]:
        try:
            pieces = self.body.take(self.buffer)
        except h11.ProtocolError:
            yield from self._fail(Reason.AMBIGUOUS)
            return False
        for piece in pieces:
            if self.state is _State.BODY:
                yield ReceiveHttp(RequestData(self.stream_id, piece))
        if self.state is not _State.BODY:
            return True
        if not self.body.whole:
            return False
        if self.body.trailers:
            yield from self._fail(Reason.TRAILERS)
            return False
        yield from self._end_request()
        return True

    def _end_request(self) -> Commands:
        self.request_done = True
        self.state = _State.WAIT
        yield ReceiveHttp(RequestEndOfMessage(self.stream_id))

    def _fail(self, reason: Reason) -> Commands:
        """The body broke: the stream speaks if it still can, if need be later, and then the connection ends."""
        self.channel.body_fault = reason
        self.state = _State.DRAIN
        self.buffer.clear()
        yield ReceiveHttp(RequestProtocolError(self.stream_id, reason.code, ErrorCode.GENERIC_CLIENT_ERROR))

    def _refuse(self, reason: Reason) -> Commands:
        """Answer a head that is no request: recorded, spoken where a reply is possible, closed."""
        denial = self.channel.refuse(reason)
        if denial.reason.status is not None:
            yield commands.SendData(self.conn, denial_bytes(denial))
        self.state = _State.DRAIN if denial.reason.status is not None else _State.DONE
        yield from self._begin_drain()

    def _closed(self) -> Commands:
        if self.state is _State.PIPE:
            yield ReceiveHttp(RequestEndOfMessage(self.stream_id))
            return
        if self.state in (_State.BODY, _State.WAIT):
            gone = RequestProtocolError(self.stream_id, "client closed", ErrorCode.CLIENT_DISCONNECTED)
            self.state = _State.DONE
            yield ReceiveHttp(gone)
        yield from self._finish()

    # -- writing ----------------------------------------------------------------------------------

    def _send(self, event: HttpEvent) -> Commands:
        if isinstance(event, ResponseHeaders):
            yield from self._send_head(event)
        elif isinstance(event, ResponseData):
            data = b"%x\r\n%b\r\n" % (len(event.data), event.data) if self.chunked and event.data else event.data
            if self.held:
                data, self.held = self.held + data, b""
            if data:
                yield commands.SendData(self.conn, data)
        elif isinstance(event, ResponseEndOfMessage):
            last = self.held + (b"0\r\n\r\n" if self.chunked else b"")
            self.held = b""
            if last:
                yield commands.SendData(self.conn, last)
            yield from self._end_response()
        elif isinstance(event, Continue):
            yield commands.SendData(self.conn, b"HTTP/1.1 100 Continue\r\n\r\n")
        elif isinstance(event, ResponseProtocolError):
            self.held = b""
            yield from self._finish()

    def _send_head(self, event: ResponseHeaders) -> Commands:
        if not isinstance(event, SentResponse):
            raise TypeError("a response head that is not ours")
        sent, fields, status = event, event.fields, event.status
        self.chunked = sent.chunked
        self.close_after = self.close_after or sent.close or (not self.request_done and status != 101)
        if sent.chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        if status == 101:
            self.state = _State.PIPE
        elif self.close_after:
            fields.append((b"Connection", b"close"))
        elif self.minor == 0:
            fields.append((b"Connection", b"keep-alive"))
        first = b"HTTP/1.1 %d %b" % (status, sent.phrase or phrase_of(status))
        raw = serialise_headers(first, fields)
        if sent.hold:
            self.held = raw
        else:
            yield commands.SendData(self.conn, raw)

    def _end_response(self) -> Commands:
        if self.state is _State.PIPE:
            yield from self._finish()
            return
        self.response_done = True
        if not self.request_done:
            self.state = _State.DRAIN
            yield from self._begin_drain()
            return
        yield from self._next_if_done()

    def _next_if_done(self) -> Commands:
        if not (self.request_done and self.response_done):
            return
        if self.close_after or self.channel.closing:
            yield from self._finish()
            return
        self.stream_id += 2
        self.state = _State.HEAD
        self.request_done = self.response_done = False
        if self.buffer:
            yield from self._advance()

    def _begin_drain(self) -> Commands:
        """Let the answer be read before the socket closes, at the cost of 64 KiB and two seconds."""
        if self.state is not _State.DRAIN:
            yield from self._finish()
            return
        self.buffer.clear()
        yield commands.CloseTcpConnection(self.conn, half_close=True)
        yield commands.RequestWakeup(_DRAIN_SECONDS)

    def _finish(self) -> Commands:
        self.state = _State.DONE
        self.buffer.clear()
        if self.conn.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.conn)


class UpstreamHttp1(HttpConnection):
    """The upstream's leg. `idle` tells whether another request may use it."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context, context.server)
        self.channel = channel
        self.stream_id: int | None = None
        self.state = _State.DONE
        self.buffer = bytearray()
        self.body = _Body(0)
        self.method = "GET"
        self.chunked = False
        self.request_done = self.response_done = True
        self.close_after = False
        self.served = 0

    @property
    def idle(self) -> bool:
        """Whether the connection is open and between two exchanges."""
        return self.stream_id is None and not self.close_after and self.conn.state is ConnectionState.OPEN

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, HttpEvent):
            yield from self._send(event)
        elif isinstance(event, events.DataReceived):
            self.buffer += event.data
            yield from self._advance()
        elif isinstance(event, events.ConnectionClosed):
            yield from self._closed()

    def _send(self, event: HttpEvent) -> Commands:
        if isinstance(event, RequestHeaders):
            yield from self._send_head(event)
        elif event.stream_id != self.stream_id:
            return
        elif isinstance(event, RequestData):
            if event.data and self.state is not _State.DONE:
                data = b"%x\r\n%b\r\n" % (len(event.data), event.data) if self.chunked else event.data
                yield commands.SendData(self.conn, data)
        elif isinstance(event, RequestEndOfMessage):
            if self.state is _State.PIPE:
                yield commands.CloseTcpConnection(self.conn, half_close=True)
                return
            if self.chunked:
                yield commands.SendData(self.conn, b"0\r\n\r\n")
            self.request_done = True
            yield from self._next_if_done()
        elif isinstance(event, RequestProtocolError):
            yield from self._drop()

    def _send_head(self, event: RequestHeaders) -> Commands:
        if not isinstance(event, SentRequest):
            raise TypeError("a request head that is not ours")
        self.stream_id = event.stream_id
        self.method = event.method
        self.chunked = event.chunked
        self.request_done = event.end_stream
        self.response_done = False
        self.state = _State.HEAD
        self.served += 1
        fields = event.fields
        if self.chunked:
            fields = [*fields, (b"Transfer-Encoding", b"chunked")]
        first = b"%b %b HTTP/1.1" % (event.method.encode("ascii"), event.target)
        yield commands.SendData(self.conn, serialise_headers(first, fields))

    def _advance(self) -> Commands:
        while self.buffer:
            if self.state is _State.HEAD:
                if not (yield from self._read_head()):
                    return
            elif self.state is _State.BODY:
                if not (yield from self._read_body()):
                    return
            elif self.state is _State.PIPE and self.stream_id is not None:
                data = bytes(self.buffer)
                self.buffer.clear()
                yield ReceiveHttp(ResponseData(self.stream_id, data))
            else:
                # Bytes that answer nothing: this peer cannot be trusted with another request.
                self.buffer.clear()
                yield from self._drop()
                return

    def _read_head(self) -> layer.CommandGenerator[bool]:
        end = self.buffer.find(b"\r\n\r\n")
        limits = self.channel.gate.head_limits
        if end < 0 and len(self.buffer) <= limits.header_bytes:
            return False
        if end < 0 or end > limits.header_bytes or self.stream_id is None:
            yield from self._fail(Reason.BAD_UPSTREAM)
            return False
        raw = bytes(self.buffer[:end])
        del self.buffer[: end + 4]
        try:
            head = parse_response_head(raw, method=self.method, limits=limits)
        except BadReply:
            yield from self._fail(Reason.BAD_UPSTREAM)
            return False
        if head.status < 200 and head.status != 101:
            return True
        self.close_after = self.close_after or head.close
        self.body = _Body(head.length)
        self.state = _State.PIPE if head.status == 101 else _State.BODY
        yield ReceiveHttp(
            ReceivedResponse(self.stream_id, _NO_RESPONSE, head.length == 0 and head.status != 101, head=head)
        )
        if self.state is _State.BODY and self.body.whole:
            yield from self._end_response()
        return True

    def _read_body(self) -> layer.CommandGenerator[bool]:
        stream_id = self.stream_id
        try:
            pieces = self.body.take(self.buffer)
        except h11.ProtocolError:
            yield from self._fail(Reason.BAD_UPSTREAM)
            return False
        for piece in pieces:
            if self.stream_id == stream_id is not None:
                yield ReceiveHttp(ResponseData(stream_id, piece))
        if not self.body.whole or self.stream_id != stream_id:
            return False
        yield from self._end_response()
        return True

    def _end_response(self) -> Commands:
        stream_id = self.stream_id
        self.response_done = True
        if not self.request_done:
            # An answer before the end of the request: the rest of the request has nowhere to go.
            self.close_after = True
        self.state = _State.DONE
        # Free before the end is told: what follows in the same turn may use this connection.
        yield from self._next_if_done()
        if stream_id is not None:
            yield ReceiveHttp(ResponseEndOfMessage(stream_id))

    def _next_if_done(self) -> Commands:
        if not self.response_done:
            return
        if self.close_after:
            yield from self._drop()
        elif self.request_done:
            self.stream_id = None

    def _closed(self) -> Commands:
        stream_id, state = self.stream_id, self.state
        to_the_end = state is _State.BODY and self.body.left == -1
        self.close_after = True
        self.state = _State.DONE
        if stream_id is not None and not self.response_done:
            self.stream_id = None
            if to_the_end or state is _State.PIPE:
                self.response_done = True
                yield ReceiveHttp(ResponseEndOfMessage(stream_id))
            else:
                yield ReceiveHttp(
                    ResponseProtocolError(stream_id, Reason.BAD_UPSTREAM.code, ErrorCode.GENERIC_SERVER_ERROR)
                )
        yield from self._drop()

    def _fail(self, reason: Reason) -> Commands:
        stream_id, self.stream_id = self.stream_id, None
        self.buffer.clear()
        yield from self._drop()
        if stream_id is not None:
            yield ReceiveHttp(ResponseProtocolError(stream_id, reason.code, ErrorCode.GENERIC_SERVER_ERROR))

    def _drop(self) -> Commands:
        self.close_after = True
        self.state = _State.DONE
        if self.conn.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.conn)


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
