"""HTTP/2 legs by hand: what waits, for how long, and how much of it."""

from pathlib import Path

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from mitmproxy import http
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import (
    ErrorCode,
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    ResponseEndOfMessage,
)
from mitmproxy.proxy.layers.http._base import ReceiveHttp

from tests.unit.exchange.stage import stage
from tests.unit.runtime.play import context
from tidegate.exchange.channel import Channel
from tidegate.runtime.http1_message import SentResponse
from tidegate.runtime.http2 import DownstreamHttp2, UpstreamHttp2

MIB = 1 << 20
FIELDS = [(":method", "POST"), (":scheme", "https"), (":authority", "api.test"), (":path", "/")]


def asked(stream: int) -> RequestHeaders:
    made = http.Request("", 0, b"POST", b"https", b"api.test", b"/", b"HTTP/2.0", http.Headers(), None, None, 0.0, None)
    return RequestHeaders(stream, made, False)


class Upstream:
    """The upstream's leg, against a server with room for one stream."""

    def __init__(self, folder: Path) -> None:
        self.channel: Channel = stage(folder).channel()
        self.brakes: list[tuple[bool, bool]] = []
        self.channel.brake = lambda _, *, client, on: self.brakes.append((client, on))
        self.context = context(upstream=True)
        self.leg = UpstreamHttp2(self.context, self.channel)
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        room = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1}
        self.server.local_settings = h2.settings.Settings(client=False, initial_values=room)
        self.server.initiate_connection()
        self.handle(events.Start())
        self.handle(events.DataReceived(self.context.server, self.server.data_to_send()))

    def handle(self, event: events.Event) -> None:
        for command in self.leg.handle_event(event):
            if isinstance(command, commands.SendData):
                self.server.receive_data(command.data)

    def end(self, stream: int) -> None:
        """Let the server answer one of its streams."""
        self.server.send_headers(stream, [(":status", "200")], end_stream=True)
        self.server.reset_stream(stream)
        self.handle(events.DataReceived(self.context.server, self.server.data_to_send()))


def test_an_upload_that_waits_for_room_brakes_the_client(tmp_path: Path) -> None:
    up = Upstream(tmp_path)
    assert up.leg.free
    up.handle(asked(1))
    assert not up.leg.free, "another connection is for the next"
    up.handle(asked(3))
    for _ in range(9):
        up.handle(RequestData(3, b"x" * (MIB // 8)))
    assert up.brakes == [(True, True)]
    up.end(1)
    assert not up.leg.stream_queue, "it has its room"


def test_an_upload_that_waits_and_is_abandoned_is_forgotten(tmp_path: Path) -> None:
    up = Upstream(tmp_path)
    up.handle(asked(1))
    up.handle(asked(3))
    up.handle(RequestData(3, b"x" * (2 * MIB)))
    up.handle(RequestProtocolError(3, "gone", ErrorCode.CANCEL))
    assert up.brakes == [(True, True), (True, False)]
    assert not up.leg.stream_queue


class Client:
    """The client's leg, and a client of h2's."""

    def __init__(self, folder: Path) -> None:
        self.channel = stage(folder).channel()
        self.context = context()
        self.leg: layer.Layer = DownstreamHttp2(self.context, self.channel)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.greeting = self.h2.data_to_send()
        self.alarms: list[commands.RequestWakeup] = []
        self.seen: list[h2.events.Event] = []
        self.told: list[object] = []
        self.channel.head_began()  # as the handshake leaves it
        self.handle(events.Start())

    def feed(self, data: bytes) -> None:
        self.handle(events.DataReceived(self.context.client, data))

    def handle(self, event: events.Event) -> None:
        for command in self.leg.handle_event(event):
            if isinstance(command, commands.SendData):
                self.seen += self.h2.receive_data(command.data)
            elif isinstance(command, commands.RequestWakeup):
                self.alarms.append(command)
            elif isinstance(command, ReceiveHttp):
                self.told.append(command.event)

    def greet(self) -> None:
        self.feed(self.greeting + self.h2.data_to_send())

    def request(self, *, end: bool = True) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, FIELDS, end_stream=end)
        self.feed(self.h2.data_to_send())
        return stream

    def answer(self, stream: int) -> None:
        made = http.Response(b"HTTP/2.0", 403, b"", http.Headers(), None, None, 0.0, 0.0)
        self.handle(SentResponse(stream, made, False))
        self.handle(ResponseEndOfMessage(stream))

    def resets(self) -> list[int]:
        return [int(event.error_code) for event in self.seen if isinstance(event, h2.events.StreamReset)]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_the_clock_of_the_handshake_runs_until_the_greeting_is_whole(client: Client) -> None:
    for at in range(len(client.greeting)):
        assert client.channel.head_since is not None
        client.feed(client.greeting[at : at + 1])
    assert client.channel.head_since is None


def test_each_frame_in_pieces_has_a_clock_of_its_own(client: Client) -> None:
    client.greet()
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678"
    client.feed(ping[:3])
    began = client.channel.head_since
    assert began is not None
    client.feed(ping[3:5])
    assert client.channel.head_since == began, "the same frame"
    client.feed(ping[5:] + ping[:3])
    assert client.channel.head_since is not None
    assert client.channel.head_since > began, "the next one"
    client.feed(ping[3:])
    assert client.channel.head_since is None


def test_continuations_do_not_wind_the_clock(client: Client) -> None:
    client.greet()
    client.feed(b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82")
    began = client.channel.head_since
    assert began is not None
    for _ in range(5):
        client.feed(b"\x00\x00\x00\x09\x00\x00\x00\x00\x01")
        assert client.channel.head_since == began


def test_a_long_body_runs_no_clock(client: Client) -> None:
    client.greet()
    stream = client.request(end=False)
    client.h2.send_data(stream, b"x" * 1000)
    data = client.h2.data_to_send()
    client.feed(data[:500])
    assert client.channel.head_since is None


def test_the_rest_of_an_answered_request_has_64_KiB(client: Client) -> None:
    client.greet()
    stream = client.request(end=False)
    client.answer(stream)
    for _ in range(4):
        assert client.resets() == []
        client.h2.send_data(stream, b"x" * 16_384)
        client.feed(client.h2.data_to_send())
    client.h2.send_data(stream, b"x")
    client.feed(client.h2.data_to_send())
    assert client.resets() == [h2.errors.ErrorCodes.NO_ERROR]
    assert isinstance(client.told[-1], RequestProtocolError), "its stream knows"


def test_or_two_seconds(client: Client) -> None:
    client.greet()
    stream = client.request(end=False)
    client.answer(stream)
    (alarm,) = client.alarms
    assert alarm.delay == 2.0
    client.handle(events.Wakeup(alarm))
    assert client.resets() == [h2.errors.ErrorCodes.NO_ERROR]


@pytest.mark.parametrize("how", ["ends", "resets"])
def test_a_client_that_ends_by_itself_is_not_reset(client: Client, how: str) -> None:
    client.greet()
    stream = client.request(end=False)
    client.answer(stream)
    if how == "ends":
        client.h2.end_stream(stream)
    else:
        client.h2.reset_stream(stream)
    client.feed(client.h2.data_to_send())
    client.handle(events.Wakeup(client.alarms[0]))
    assert client.resets() == []


def test_a_whole_request_waits_for_nothing(client: Client) -> None:
    client.greet()
    client.answer(client.request())
    assert client.alarms == []
