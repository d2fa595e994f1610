"""HTTP/2 on both legs: mitmproxy's framing, our reading of heads, and bounds on what is held."""

import re
from typing import override

from h2.connection import ConnectionState as H2State
from h2.errors import ErrorCodes
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    ReceiveHttp,
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection

from tidegate.exchange.channel import Channel
from tidegate.exchange.head import RequestHead, ResponseHead
from tidegate.policy.methods import parse_method
from tidegate.policy.reasons import Reason

__all__ = ["DownstreamHttp2", "UpstreamHttp2", "request_head", "response_head"]

Commands = layer.CommandGenerator[None]

_BRAKE_BYTES = 1 << 20
# Past the brake comes only what was on its way already, 64 KiB an upstream.
_HELD_BYTES = 8 << 20
_RESETS = 200
# What an HTTP/1 field line can hold and be read in one way (RFC 9113 8.2.1): h2 checks it too, but it is ours to hold.
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_PATH = re.compile(rb"[\x21-\x7e]+")
_CONNECTION_FIELDS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"upgrade", b"transfer-encoding"})


def request_head(event: RequestHeaders) -> RequestHead | Reason:
    """Read an HTTP/2 request head, or say why it has no one reading (RFC 9113 8.2, 8.3)."""
    data = event.request.data
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
    if event.end_stream and length is not None and int(length):
        return Reason.AMBIGUOUS
    size = 0 if event.end_stream else int(length) if length is not None else None
    fields = [field for field in fields if field[0] != b"host"]
    head = RequestHead(method, data.path, 1, fields, size, authority)
    head.http2 = True
    head.trailers = any(name == b"trailer" for name, _ in fields)
    return head


def response_head(event: ResponseHeaders, method: str) -> ResponseHead | None:
    """Read an HTTP/2 response head; None when it has no one reading."""
    data = event.response.data
    length: int | None = None
    fields = [(name, value) for name, value in data.headers.fields if not name.startswith(b":")]
    for name, value in fields:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or (length is not None and length != int(value)):
                return None
            length = int(value)
        if name in _CONNECTION_FIELDS or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
    if event.end_stream or method == "HEAD" or data.status_code in (204, 304):
        length = 0
    if not 200 <= data.status_code <= 599:
        return None
    return ResponseHead(data.status_code, b"", 1, fields, length)


class _Brake:
    """Stops the far side while a leg's windows are shut: mitmproxy would hold all that comes, without a bound."""

    def __init__(self, channel: Channel, connection: BufferedH2Connection, *, client: bool) -> None:
        self._channel = channel
        self._connection = connection
        self._client = client
        self._why = f"brake {id(self)}"
        self._held = 0
        self.on = False

    def look(self) -> int:
        """Brake or release by what the leg holds; return it, in bytes."""
        before, self._held = self._held, _held(self._connection)
        on = self._held > (_BRAKE_BYTES // 2 if self.on else _BRAKE_BYTES)
        if on != self.on or (on and self._held < before):
            self.on = on
            self._channel.brake(self._why, client=self._client, on=on)
        return self._held

    def release(self) -> None:
        """Let go: the leg is closed."""
        if self.on:
            self.on = False
            self._channel.brake(self._why, client=self._client, on=False)


def _held(connection: BufferedH2Connection) -> int:
    return sum(len(chunk.data) for chunks in connection.stream_buffers.values() for chunk in chunks)


def _waits_for_too_much(connection: BufferedH2Connection) -> bool:
    """Tell whether a frame has begun that is longer than allowed: h2 refuses it when it is whole, 16 MiB later."""
    waiting = connection.incoming_buffer._data
    return (
        len(waiting) >= 9
        and int.from_bytes(waiting[:3]) > connection.max_inbound_frame_size
        and connection.state_machine.state is not H2State.CLOSED
    )


class DownstreamHttp2(Http2Server):
    """The client's leg. Bounds: what a client that does not read makes us hold, and its resets."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.resets = 0
        self._brake = _Brake(channel, self.h2_conn, client=False)

    def _handle_event(self, event: events.Event) -> Commands:
        yield from super()._handle_event(event)
        if isinstance(event, events.DataReceived) and _waits_for_too_much(self.h2_conn):
            yield from self.protocol_error("frame too long", ErrorCodes.FRAME_SIZE_ERROR)
            return
        if self._brake.on or isinstance(event, ResponseData | events.DataReceived):
            held = self._brake.look()
            if held > _HELD_BYTES and isinstance(event, ResponseData):
                gone = ResponseProtocolError(event.stream_id, "client does not read", ErrorCode.CANCEL)
                yield from super()._handle_event(gone)
                # The stream must know too, or it would fetch the rest for no one.
                left = RequestProtocolError(event.stream_id, "client does not read", ErrorCode.CLIENT_DISCONNECTED)
                yield ReceiveHttp(left)
        if self.channel.closing and isinstance(event, events.DataReceived | ResponseEndOfMessage):
            yield from self._close_when_idle()

    def _close_when_idle(self) -> Commands:
        """Serve nothing more after the last open stream (P-40, and a gate that drains)."""
        if self.h2_conn.open_inbound_streams or self.conn.state is ConnectionState.CLOSED:
            return
        if self.h2_conn.state_machine.state is not H2State.CLOSED:
            yield from super().protocol_error("closing", ErrorCodes.NO_ERROR)

    @override
    def handle_h2_event(self, event: object) -> layer.CommandGenerator[bool]:
        if type(event).__name__ == "StreamReset":
            self.resets += 1
            if self.resets > _RESETS:
                # RFC 9113 10.5: a peer that opens and resets without end is a flood.
                yield from self.protocol_error("too many resets")
                return True
        stopped: bool = yield from super().handle_h2_event(event)  # type: ignore[arg-type]
        return stopped

    def protocol_error(self, message: str, error_code: int = 1) -> Commands:
        """Close, and leave a record: this refusal is the engine's own (invariant 6)."""
        self.channel.body_fault = Reason.AMBIGUOUS
        self.channel.refuse(Reason.AMBIGUOUS)
        yield from super().protocol_error("protocol error", error_code)


class UpstreamHttp2(Http2Client):
    """The upstream's leg. `closing`: no further request may use it."""

    closing = False

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self._brake = _Brake(channel, self.h2_conn, client=True)

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.ConnectionClosed):
            self.closing = True
        yield from super()._handle_event(event)
        if isinstance(event, events.ConnectionClosed):
            self._brake.release()
        elif self._brake.on or isinstance(event, RequestData | events.DataReceived):
            self._brake.look()

    @override
    def close_connection(self, msg: str) -> Commands:
        self.closing = True
        yield from super().close_connection("bad_upstream")
