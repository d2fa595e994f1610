"""HTTP/1 towards the upstream: one request after another, each answer in one reading.

In the place of mitmproxy's own, which takes a connection for one request only under HTTP/2. The head's framing
is written here, and what follows is counted against it: if another length were sent than was declared, the rest
would be read as a request that nobody judged, so that this connection ends at once (invariant 1).

| state | meaning |
|---|---|
| head | collects one head; 1xx are dropped |
| body | counts, unchunks, or reads to the end |
| pipe | bytes, after 101 |
| done | between two requests, or nothing more |
"""

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
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._base import HttpConnection, HttpEvent, ReceiveHttp

from tidegate.exchange.channel import Channel
from tidegate.exchange.fields import request_framing
from tidegate.exchange.framing import UPSTREAM, Framing
from tidegate.exchange.head import BadReply, parse_response_head, serialise_headers
from tidegate.policy.reasons import Reason
from tidegate.runtime.http1_body import Body, BodyFault, LegState
from tidegate.runtime.http1_message import NOTHING, ReceivedResponse, SentRequest, Unanswered

__all__ = ["UpstreamHttp1"]

Commands = layer.CommandGenerator[None]


class UpstreamHttp1(HttpConnection):
    """The upstream's leg. `idle` tells whether another request may use it."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context, context.server)
        self.channel = channel
        self.stream_id: int | None = None
        self.state = LegState.DONE
        self.buffer = bytearray()
        self.framing = Framing(UPSTREAM)
        self.body = Body(0, self.framing)
        self.method = "GET"
        self.chunked = False
        self.left = 0
        self.request_done = self.response_done = True
        self.close_after = self.heard = False
        self.served = 0

    @property
    def idle(self) -> bool:
        """Whether the connection is open and between two exchanges."""
        # Bytes that came unasked would be taken for the next answer.
        free = self.stream_id is None and not self.close_after and not self.buffer
        return free and self.conn.state is ConnectionState.OPEN

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, HttpEvent):
            yield from self._send(event)
        elif isinstance(event, events.DataReceived):
            self.heard = True
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
            if event.data and self.state is not LegState.DONE:
                yield from self._send_data(event.data)
        elif isinstance(event, RequestEndOfMessage):
            yield from self._send_end()
        elif isinstance(event, RequestProtocolError):
            yield from self._drop()

    def _send_head(self, event: RequestHeaders) -> Commands:
        if not isinstance(event, SentRequest):
            raise TypeError("a request head that is not ours")
        self.stream_id = event.stream_id
        self.method = event.method
        self.chunked, self.left = event.length is None, event.length or 0
        self.request_done = event.end_stream
        self.response_done = self.heard = False
        self.state = LegState.HEAD
        self.served += 1
        fields = [*event.fields, *request_framing(event.length, event.method)]
        first = b"%b %b HTTP/1.1" % (event.method.encode("ascii"), event.target)
        yield commands.SendData(self.conn, serialise_headers(first, fields))

    def _send_data(self, data: bytes) -> Commands:
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self.state is not LegState.PIPE:
            self.left -= len(data)
            if self.left < 0:
                yield from self._fail(Reason.INTERNAL_FAULT)
                return
        yield commands.SendData(self.conn, data)

    def _send_end(self) -> Commands:
        if self.state is LegState.PIPE:
            yield commands.CloseTcpConnection(self.conn, half_close=True)
            return
        if self.chunked:
            yield commands.SendData(self.conn, b"0\r\n\r\n")
        elif self.left and self.state is not LegState.DONE:
            yield from self._fail(Reason.INTERNAL_FAULT)
            return
        self.request_done = True
        yield from self._next_if_done()

    def _advance(self) -> Commands:
        while self.buffer:
            if self.state is LegState.HEAD:
                if not (yield from self._read_head()):
                    return
            elif self.state is LegState.BODY:
                if not (yield from self._read_body()):
                    return
            elif self.state is LegState.PIPE and self.stream_id is not None:
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
        self.body = Body(head.length, self.framing)
        self.state = LegState.PIPE if head.status == 101 else LegState.BODY
        yield ReceiveHttp(ReceivedResponse(self.stream_id, NOTHING, head.length == 0 and head.status != 101, head=head))
        if self.state is LegState.BODY and self.body.whole:
            yield from self._end_response()
        return True

    def _read_body(self) -> layer.CommandGenerator[bool]:
        stream_id = self.stream_id
        try:
            pieces = self.body.take(self.buffer)
        except BodyFault:
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
        self.state = LegState.DONE
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
        to_the_end = state is LegState.BODY and self.body.left == -1
        self.close_after = True
        self.state = LegState.DONE
        if stream_id is not None and not self.response_done:
            self.stream_id = None
            if to_the_end or state is LegState.PIPE:
                self.response_done = True
                yield ReceiveHttp(ResponseEndOfMessage(stream_id))
            else:
                kind = ResponseProtocolError if self.heard else Unanswered
                yield ReceiveHttp(kind(stream_id, Reason.BAD_UPSTREAM.code, ErrorCode.GENERIC_SERVER_ERROR))
        yield from self._drop()

    def _fail(self, reason: Reason) -> Commands:
        stream_id, self.stream_id = self.stream_id, None
        self.buffer.clear()
        yield from self._drop()
        if stream_id is not None:
            yield ReceiveHttp(ResponseProtocolError(stream_id, reason.code, ErrorCode.GENERIC_SERVER_ERROR))

    def _drop(self) -> Commands:
        self.close_after = True
        self.state = LegState.DONE
        if self.conn.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.conn)
