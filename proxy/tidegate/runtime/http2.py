"""HTTP/2 on both legs: mitmproxy's framing, and bounds on what is held and on what is waited for."""

from typing import override

from h2.connection import ConnectionState as H2State
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, StreamEnded, StreamReset
from h2.exceptions import StreamClosedError
from h2.stream import StreamState
from hyperframe.frame import DataFrame, Frame
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    ReceiveHttp,
    RequestData,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection

from tidegate.exchange.channel import Channel
from tidegate.exchange.framing import CLIENT, UPSTREAM, Frames
from tidegate.policy.reasons import Reason
from tidegate.runtime.breathe import WINDOWS

__all__ = ["DownstreamHttp2", "UpstreamHttp2"]

Commands = layer.CommandGenerator[None]

_BRAKE_BYTES = 1 << 20
# Past the brake comes only what was on its way already, 64 KiB an upstream.
_HELD_BYTES = 8 << 20
_RESETS = 200
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Of an upload that is answered already: what a stream may still send, for how long, and what all of them may.
_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 2.0
_LATE_BYTES = 16 << 20


class _Brake:
    """Stops the far side while a leg's windows are shut: mitmproxy would hold all that comes, without a bound."""

    def __init__(self, channel: Channel, connection: BufferedH2Connection, *, client: bool) -> None:
        self._channel = channel
        self._connection = connection
        self._client = client
        self._why = f"{WINDOWS} {id(self)}" if client else WINDOWS
        self._before = 0
        self.on = False

    def look(self, *, queued: int = 0) -> int:
        """Brake or release by what the leg holds, with `queued` beside its windows; return it, in bytes."""
        held = queued + _held(self._connection)
        before, self._before = self._before, held
        on = held > (_BRAKE_BYTES // 2 if self.on else _BRAKE_BYTES)
        if on != self.on or (on and held < before):
            self.on = on
            self._channel.brake(self._why, client=self._client, on=on)
        return held

    def release(self) -> None:
        """Let go: the leg is closed."""
        if self.on:
            self.on = False
            self._channel.brake(self._why, client=self._client, on=False)


def _held(connection: BufferedH2Connection) -> int:
    return sum(len(chunk.data) for chunks in connection.stream_buffers.values() for chunk in chunks)


def _sends_too_much(frames: Frames, connection: BufferedH2Connection, event: events.Event) -> bool:
    """Count what a peer has sent; tell whether that is more than it may, while the connection still stands."""
    received = isinstance(event, events.DataReceived) and not frames.received(event.data)
    return received and connection.state_machine.state is not H2State.CLOSED


def _waits_for_too_much(connection: BufferedH2Connection) -> bool:
    """Tell whether a frame has begun that is longer than allowed: h2 refuses it when it is whole, 16 MiB later."""
    waiting = connection.incoming_buffer._data
    return (
        len(waiting) >= 9
        and int.from_bytes(waiting[:3]) > connection.max_inbound_frame_size
        and connection.state_machine.state is not H2State.CLOSED
    )


class _HeadClock:
    """Runs the channel's header clock while the client has begun what is no body, and not finished it.

    The greeting, a header block in pieces, a frame in pieces: each has the time of one HTTP/1 head, from its own
    first byte. A DATA frame is its exchange's business.
    """

    def __init__(self, channel: Channel, connection: BufferedH2Connection) -> None:
        self._channel = channel
        self._buffer = connection.incoming_buffer
        self._block: object = None
        self._waiting = 0
        self.greeted = False

    def look(self, size: int) -> None:
        """Take note of what is unfinished after `size` more bytes."""
        if not self.greeted:
            return  # it runs since the handshake
        blocks, data = self._buffer._headers_buffer, self._buffer._data
        block = blocks[0] if blocks else None
        waiting = len(data) if len(data) < 4 or data[3] != 0 else 0  # type 0 is DATA
        same = block is self._block if block is not None else 0 < self._waiting == waiting - size
        if not same:
            self._channel.head_ended()
        if block is not None or waiting:
            self._channel.head_began()
        self._block, self._waiting = block, waiting


class DownstreamHttp2(Http2Server):
    """The client's leg.

    Bounds: what a client that does not read makes us hold, its resets, its heads in size and in time, and what it
    sends of an upload that is answered already.
    """

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.resets = 0
        self._late = 0
        self._answered: dict[int, int] = {}
        self._alarms: dict[commands.Command, int] = {}
        self._brake = _Brake(channel, self.h2_conn, client=False)
        self._clock = _HeadClock(channel, self.h2_conn)
        self._frames = Frames(CLIENT, skip=len(_PREFACE))
        limits = channel.gate.head_limits
        # What is longer than a head may be still comes whole, up to here, and is refused by name.
        self.h2_conn.decoder.max_header_list_size = 2 * (limits.header_bytes + limits.url_bytes + 64 * limits.headers)
        self._closed_stream = self.h2_conn._handle_data_on_closed_stream
        self.h2_conn._handle_data_on_closed_stream = self._take_late  # type: ignore[method-assign]

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Wakeup):
            yield from self._drained(event)
            return
        if isinstance(event, ResponseData):
            self._frames.sent(len(event.data))
        elif _sends_too_much(self._frames, self.h2_conn, event):
            yield from self.protocol_error("too much framing", ErrorCodes.ENHANCE_YOUR_CALM)
            return
        yield from super()._handle_event(event)
        if isinstance(event, events.DataReceived):
            self._clock.look(len(event.data))
            if _waits_for_too_much(self.h2_conn):
                yield from self.protocol_error("frame too long", ErrorCodes.FRAME_SIZE_ERROR)
                return
            if self._late > _LATE_BYTES and self.h2_conn.state_machine.state is not H2State.CLOSED:
                yield from self.protocol_error("too much for streams that are over", ErrorCodes.ENHANCE_YOUR_CALM)
                return
        elif isinstance(event, ResponseEndOfMessage):
            yield from self._begin_drain(event.stream_id)
        if self._brake.on or isinstance(event, ResponseData | events.DataReceived):
            held = self._brake.look()
            if held > _HELD_BYTES and isinstance(event, ResponseData):
                yield from self._give_up(event.stream_id)
        if self.channel.closing and isinstance(event, events.DataReceived | ResponseEndOfMessage):
            yield from self._close_when_idle()

    def _give_up(self, stream_id: int) -> Commands:
        gone = ResponseProtocolError(stream_id, "client does not read", ErrorCode.CANCEL)
        yield from super()._handle_event(gone)
        # The stream must know too, or it would fetch the rest for no one.
        yield ReceiveHttp(RequestProtocolError(stream_id, "client does not read", ErrorCode.CLIENT_DISCONNECTED))

    # -- uploads that are answered already --------------------------------------------------------

    def _begin_drain(self, stream_id: int) -> Commands:
        """Let the rest of a request come for a moment: a reset at once may cost the client its answer."""
        stream = self.h2_conn.streams.get(stream_id)
        if stream is None or stream.state_machine.state not in (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL):
            return
        self._answered[stream_id] = 0
        alarm = commands.RequestWakeup(_DRAIN_SECONDS)
        self._alarms[alarm] = stream_id
        yield alarm

    def _drained(self, event: events.Wakeup) -> Commands:
        stream_id = self._alarms.pop(event.command, None)
        if stream_id not in self._answered:
            return
        if self._is_out(stream_id):
            yield from self._reset(stream_id)
            yield commands.SendData(self.conn, self.h2_conn.data_to_send())
            if self.channel.closing:
                yield from self._close_when_idle()
        else:
            yield from self._begin_drain(stream_id)

    def _is_out(self, stream_id: int) -> bool:
        """Tell whether the whole answer has left: its end may still wait for the client's windows."""
        stream = self.h2_conn.streams.get(stream_id)
        return stream is None or stream.state_machine.state is not StreamState.OPEN

    def _reset(self, stream_id: int) -> Commands:
        """Have no more of the request (RFC 9113 8.1): NO_ERROR, since the answer stands."""
        self._answered.pop(stream_id, None)
        if not self.is_closed(stream_id):
            self.h2_conn.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        if self.streams.pop(stream_id, None) is not None:
            yield ReceiveHttp(RequestProtocolError(stream_id, "answered", ErrorCode.CANCEL))

    def _take_late(
        self, events: list[Event], exc: StreamClosedError, frame: DataFrame
    ) -> tuple[list[Frame], list[Event]]:
        """Count what comes for a stream that is closed: h2 throws it away, for as long as the client likes."""
        self._late += frame.flow_controlled_length
        return self._closed_stream(events, exc, frame)

    def _close_when_idle(self) -> Commands:
        """Serve nothing more after the last open stream (P-40, and a gate that drains)."""
        if self.h2_conn.open_inbound_streams or self.conn.state is ConnectionState.CLOSED:
            return
        if self.h2_conn.state_machine.state is not H2State.CLOSED:
            yield from super().protocol_error("closing", ErrorCodes.NO_ERROR)

    @override
    def handle_h2_event(self, event: object) -> layer.CommandGenerator[bool]:
        if isinstance(event, RemoteSettingsChanged) and not self._clock.greeted:
            self._clock.greeted = True
            self.channel.head_ended()
        elif isinstance(event, StreamReset):
            self.resets += self._answered.pop(event.stream_id, None) is None
            if self.resets > _RESETS:
                # RFC 9113 10.5: a peer that opens and resets without end is a flood.
                yield from self.protocol_error("too many resets")
                return True
        elif isinstance(event, StreamEnded):
            self._answered.pop(event.stream_id, None)
        stopped: bool = yield from super().handle_h2_event(event)  # type: ignore[arg-type]
        if isinstance(event, DataReceived) and event.stream_id in self._answered:
            self._late += event.flow_controlled_length or 0
            self._answered[event.stream_id] += event.flow_controlled_length or 0
            if self._answered[event.stream_id] > _DRAIN_BYTES and self._is_out(event.stream_id):
                yield from self._reset(event.stream_id)
        return stopped

    def protocol_error(self, message: str, error_code: int = 1) -> Commands:
        """Close, and leave a record: this refusal is the engine's own (invariant 6)."""
        self.channel.body_fault = Reason.AMBIGUOUS
        self.channel.refuse(Reason.AMBIGUOUS)
        yield from super().protocol_error("protocol error", error_code)


class UpstreamHttp2(Http2Client):
    """The upstream's leg. `closing`: no further request may use it.

    Requests that the upstream has no room for wait here, in mitmproxy's `stream_queue`, with what comes of their
    bodies: the brake counts them too.
    """

    closing = False

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self._brake = _Brake(channel, self.h2_conn, client=True)
        self._frames = Frames(UPSTREAM)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.stream_queue and not self.h2_conn.open_outbound_streams

    @property
    def free(self) -> bool:
        """Whether one more request need not wait."""
        if self.closing or self.stream_queue:
            return False
        most = self.provisional_max_concurrency or self.h2_conn.remote_settings.max_concurrent_streams
        return self.h2_conn.open_outbound_streams < most

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.ConnectionClosed):
            self.closing = True
        if isinstance(event, RequestProtocolError) and event.stream_id in self.stream_queue:
            del self.stream_queue[event.stream_id]  # nothing of it has left
            self._brake.look(queued=self._queued())
            return
        if isinstance(event, RequestData):
            self._frames.sent(len(event.data))
        elif _sends_too_much(self._frames, self.h2_conn, event):
            yield from self.protocol_error("too much framing", ErrorCodes.ENHANCE_YOUR_CALM)
            return
        yield from super()._handle_event(event)
        if isinstance(event, events.ConnectionClosed):
            self._brake.release()
        elif self._brake.on or isinstance(event, RequestData | events.DataReceived):
            self._brake.look(queued=self._queued())

    def _queued(self) -> int:
        waiting = self.stream_queue.values()
        return sum(len(event.data) for queue in waiting for event in queue if isinstance(event, RequestData))

    @override
    def close_connection(self, msg: str) -> Commands:
        self.closing = True
        yield from super().close_connection("bad_upstream")
