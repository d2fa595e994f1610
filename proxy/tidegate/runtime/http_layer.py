"""All streams of a client connection, and the upstream connections that they share.

An upstream connection serves requests to one name, one after another (HTTP/1) or side by side (HTTP/2). When a
client has opened more than `_MOST_UPSTREAMS`, the longest idle ones make room.
"""

from ipaddress import ip_address
from typing import TYPE_CHECKING, override

from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, tunnel
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    GetHttpConnection,
    GetHttpConnectionCompleted,
    HttpLayer,
    HTTPMode,
    RegisterHttpConnection,
)

from tidegate.exchange.channel import Channel
from tidegate.resolve.pin import Pin
from tidegate.runtime.http1_downstream import DownstreamHttp1
from tidegate.runtime.http1_upstream import UpstreamHttp1
from tidegate.runtime.http2 import DownstreamHttp2, UpstreamHttp2
from tidegate.runtime.overdue import Overdue
from tidegate.runtime.stream import GateStream, GetUpgradeConnection

if TYPE_CHECKING:
    from tidegate.runtime.tls import Contexts

__all__ = ["GateHttpLayer"]

_MOST_UPSTREAMS = 32

Commands = layer.CommandGenerator[None]


def _fork(context: Context) -> Context:
    """Fork a context for a stream without making a server connection that is thrown away at once."""
    forked = Context.__new__(Context)
    forked.client, forked.options, forked.server = context.client, context.options, context.server
    forked.layers = context.layers.copy()
    return forked


class _UpstreamHttp(layer.Layer):
    """The innermost layer of an upstream connection: HTTP/2 or HTTP/1, once it is open."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.child: layer.Layer | None = None
        self._pin: Pin | None = None

    @property
    def idle(self) -> bool:
        """Whether it is open and serves nobody."""
        return isinstance(self.child, UpstreamHttp1 | UpstreamHttp2) and self.child.idle

    def stands_for(self, pin: Pin) -> bool:
        """Tell whether the peer is an address of `pin`: a newer look-up may have left it out (invariant 3)."""
        if pin is not self._pin:
            peer = self.context.server.peername
            if peer is None or ip_address(peer[0].partition("%")[0]) not in pin.addresses:
                return False
            self._pin = pin
        return True

    def _handle_event(self, event: events.Event) -> Commands:
        if self.child is not None:
            yield from self.child.handle_event(event)
            return
        if not isinstance(event, events.Start):
            return
        error = yield commands.OpenConnection(self.context.server)
        if not error:
            h2 = self.context.server.alpn == b"h2"
            self.child = UpstreamHttp2(self.context, self.channel) if h2 else UpstreamHttp1(self.context, self.channel)
            yield from self.child.handle_event(event)
        yield RegisterHttpConnection(self.context.server, error)


class GateHttpLayer(HttpLayer):
    """All streams and upstream connections of one client connection."""

    def __init__(self, context: Context, channel: Channel, contexts: "Contexts") -> None:
        super().__init__(context, HTTPMode.regular)
        self.channel = channel
        self.contexts = contexts
        self.clients: dict[Connection, _UpstreamHttp] = {}

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Start):
            h2 = self.context.client.alpn == b"h2"
            context = self.context.fork()
            leg: layer.Layer = DownstreamHttp2(context, self.channel) if h2 else DownstreamHttp1(context, self.channel)
            self.connections[self.context.client] = leg
            yield from self.event_to_child(leg, event)
        elif isinstance(event, events.ConnectionEvent) and event.connection not in self.connections:
            return
        elif isinstance(event, Overdue):
            streams: list[layer.Layer] = list(self.streams.values())
            for stream in streams:
                if isinstance(stream, GateStream) and stream.exchange is event.exchange:
                    yield from self.event_to_child(stream, event)
        else:
            yield from super()._handle_event(event)

    @override
    def make_stream(self, stream_id: int) -> Commands:
        self.streams[stream_id] = GateStream(_fork(self.context), stream_id, self.channel)  # type: ignore[assignment]
        yield from ()

    @override
    def get_connection(self, event: GetHttpConnection, *, reuse: bool = True) -> Commands:
        if reuse:
            found = self._find(event)
            if found is not None:
                if found in self.waiting_for_establishment:
                    self.waiting_for_establishment[found].append(event)
                else:
                    yield from self._give(event, found, reused=True)
                return
        yield from self._make_room()
        context = self.context.fork()
        context.server = Server(address=event.address)
        if isinstance(event, GetUpgradeConnection):
            context.server.alpn_offers = [b"http/1.1"]
        stack = tunnel.LayerStack()
        if event.tls:
            context.server.sni = event.address[0]
            stack /= self.contexts.upstream_layer(context, self.channel)
        client = _UpstreamHttp(context, self.channel)
        stack /= client
        self.connections[context.server] = stack[0]
        self.clients[context.server] = client
        self.waiting_for_establishment[context.server].append(event)
        yield from self.event_to_child(stack[0], events.Start())

    def _make_room(self) -> Commands:
        """Close the longest idle upstreams, so that what one client holds open stays within a bound."""
        for connection, client in list(self.clients.items()):  # in the order of their last use
            if len(self.clients) < _MOST_UPSTREAMS:
                return
            if connection.state is ConnectionState.CLOSED and connection not in self.waiting_for_establishment:
                self._forget(connection)
            elif client.idle:
                self._forget(connection)
                yield commands.CloseConnection(connection)

    def _find(self, event: GetHttpConnection) -> Server | None:
        """Return a connection to the same name that may take one more request, or is being opened."""
        for connection in list(self.connections):
            if not isinstance(connection, Server) or not event.connection_spec_matches(connection):
                continue
            http1 = isinstance(event, GetUpgradeConnection)
            if connection in self.waiting_for_establishment:
                if http1 or connection.alpn_offers:
                    continue
                if self.context.client.alpn == b"h2" or not self.waiting_for_establishment[connection]:
                    return connection
                continue
            if connection.state is ConnectionState.CLOSED:
                self._forget(connection)
                continue
            child = self.clients[connection].child
            if http1 and not isinstance(child, UpstreamHttp1):
                continue
            pin = self.channel.upstreams.pin(event.address[0], event.address[1])
            if pin is None or not self.clients[connection].stands_for(pin):
                continue
            if isinstance(child, UpstreamHttp2) and child.free and connection.state is ConnectionState.OPEN:
                return connection
            if isinstance(child, UpstreamHttp1) and child.idle:
                return connection
        return None

    def _forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.clients.pop(connection, None)

    def _give(self, event: GetHttpConnection, connection: Server, *, reused: bool) -> Commands:
        stream = self.command_sources.pop(event)
        if isinstance(stream, GateStream):
            stream.reused = reused
        self.clients[connection] = self.clients.pop(connection)  # the last used is the last
        yield from self.event_to_child(stream, GetHttpConnectionCompleted(event, (connection, None)))

    @override
    def register_connection(self, command: RegisterHttpConnection) -> Commands:
        waiting = self.waiting_for_establishment.pop(command.connection)
        if command.err or not isinstance(command.connection, Server):
            self.connections.pop(command.connection, None)
            self.clients.pop(command.connection, None)
            for event in waiting:
                stream = self.command_sources.pop(event)
                yield from self.event_to_child(stream, GetHttpConnectionCompleted(event, (None, command.err or "")))
            return
        shared = command.connection.alpn == b"h2"
        for index, event in enumerate(waiting):
            if index == 0 or shared:
                yield from self._give(event, command.connection, reused=False)
            else:
                # An HTTP/1 upstream serves one at a time: the others get connections of their own.
                yield from self.get_connection(event, reuse=False)
