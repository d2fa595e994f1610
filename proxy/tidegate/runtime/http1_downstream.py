"""HTTP/1 towards the client: strict heads, bounded buffers, nothing forwarded as it came.

In the place of mitmproxy's own, which accepts what two parsers read differently, holds heads of any
size and crashes on trailers.

| state | meaning |
|---|---|
| head | collects one head, judged by `exchange.head` |
| body | counts or unchunks |
| wait | the request is whole, its answer is not |
| drain | an early answer is out: swallow 64 KiB, then close |
| pipe | bytes, after 101 |
| done | nothing more |
"""

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._base import HttpConnection, HttpEvent, ReceiveHttp

from tidegate.exchange.channel import Channel
from tidegate.exchange.framing import CLIENT, Framing
from tidegate.exchange.head import RequestHead, early_reason, parse_request_head, serialise_headers
from tidegate.policy.reasons import Reason
from tidegate.runtime.http1_body import Body, BodyFault, LegState
from tidegate.runtime.http1_message import NOTHING, Continue, ReceivedRequest, SentResponse, denial_bytes, phrase_of

__all__ = ["DownstreamHttp1"]

_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 2.0
_PIPELINE_BYTES = 1 << 20

Commands = layer.CommandGenerator[None]


class DownstreamHttp1(HttpConnection):
    """The client's leg."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context, context.client)
        self.channel = channel
        self.stream_id = 1
        self.state = LegState.HEAD
        self.buffer = bytearray()
        self.scanned = 0
        self.framing = Framing(CLIENT)
        self.body = Body(0, self.framing)
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
            if self.state is LegState.HEAD:
                if not (yield from self._read_head()):
                    return
            elif self.state is LegState.BODY:
                if not (yield from self._read_body()):
                    return
            elif self.state is LegState.PIPE:
                data = bytes(self.buffer)
                self.buffer.clear()
                yield ReceiveHttp(RequestData(self.stream_id, data))
            elif self.state is LegState.DRAIN:
                self.drained += len(self.buffer)
                self.buffer.clear()
                if self.drained > _DRAIN_BYTES:
                    yield from self._finish()
            else:
                if len(self.buffer) > _PIPELINE_BYTES or self.state is LegState.DONE:
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
        self.body = Body(head.length, self.framing)
        stream_id = self.stream_id
        self.request_done = self.body.whole
        self.state = LegState.WAIT if self.body.whole else LegState.BODY
        yield ReceiveHttp(ReceivedRequest(stream_id, NOTHING, self.body.whole, head=head))
        if self.body.whole:
            yield ReceiveHttp(RequestEndOfMessage(stream_id))

    def _read_body(self) -> layer.CommandGenerator[bool]:
        try:
            pieces = self.body.take(self.buffer)
        except BodyFault:
            yield from self._fail(Reason.AMBIGUOUS)
            return False
        for piece in pieces:
            if self.state is LegState.BODY:
                yield ReceiveHttp(RequestData(self.stream_id, piece))
        if self.state is not LegState.BODY:
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
        self.state = LegState.WAIT
        yield ReceiveHttp(RequestEndOfMessage(self.stream_id))

    def _fail(self, reason: Reason) -> Commands:
        """The body broke: the stream speaks if it still can, if need be later, and then the connection ends."""
        self.channel.body_fault = reason
        self.state = LegState.DRAIN
        self.buffer.clear()
        yield ReceiveHttp(RequestProtocolError(self.stream_id, reason.code, ErrorCode.GENERIC_CLIENT_ERROR))

    def _refuse(self, reason: Reason) -> Commands:
        """Answer a head that is no request: recorded, spoken where a reply is possible, closed."""
        denial = self.channel.refuse(reason)
        if denial.reason.status is not None:
            yield commands.SendData(self.conn, denial_bytes(denial))
        self.state = LegState.DRAIN if denial.reason.status is not None else LegState.DONE
        yield from self._begin_drain()

    def _closed(self) -> Commands:
        if self.state is LegState.PIPE:
            yield ReceiveHttp(RequestEndOfMessage(self.stream_id))
            return
        if self.state in (LegState.BODY, LegState.WAIT):
            gone = RequestProtocolError(self.stream_id, "client closed", ErrorCode.CLIENT_DISCONNECTED)
            self.state = LegState.DONE
            yield ReceiveHttp(gone)
        yield from self._finish()

    # -- writing ----------------------------------------------------------------------------------

    def _send(self, event: HttpEvent) -> Commands:
        if isinstance(event, ResponseHeaders):
            yield from self._send_head(event)
            if self.state is LegState.PIPE:
                yield from self._advance()  # what came with the handshake
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
            self.state = LegState.PIPE
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
        if self.state is LegState.PIPE:
            yield from self._finish()
            return
        self.response_done = True
        if not self.request_done:
            self.state = LegState.DRAIN
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
        self.state = LegState.HEAD
        self.request_done = self.response_done = False
        if self.buffer:
            yield from self._advance()

    def _begin_drain(self) -> Commands:
        """Let the answer be read before the socket closes, at the cost of 64 KiB and two seconds."""
        if self.state is not LegState.DRAIN:
            yield from self._finish()
            return
        self.buffer.clear()
        yield commands.CloseTcpConnection(self.conn, half_close=True)
        yield commands.RequestWakeup(_DRAIN_SECONDS)

    def _finish(self) -> Commands:
        self.state = LegState.DONE
        self.buffer.clear()
        if self.conn.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.conn)
