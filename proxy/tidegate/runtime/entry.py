"""The first layer of a connection to the proxy port: one CONNECT after another, or plain requests.

A CONNECT that is allowed turns the connection into a tunnel and this layer into a short cut to what is
inside it, so that no byte passes two HTTP layers. A denied one leaves the connection for the next,
each judged alone. Whatever is not a well-formed request is refused, recorded and closed.
"""

import re
from typing import override

from mitmproxy import http
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._hooks import HttpConnectHook

from tidegate.exchange.channel import Channel
from tidegate.exchange.head import RequestHead, early_reason, parse_request_head, serialise_headers
from tidegate.exchange.reply import Denial, denial, phrase
from tidegate.exchange.tunnel import Opaque, Tunnel
from tidegate.policy.reasons import Reason
from tidegate.runtime.hello import BadHello, HelloReader
from tidegate.runtime.http1_message import denial_bytes, make_request
from tidegate.runtime.http_layer import GateHttpLayer
from tidegate.runtime.pay import Bill, PayHook
from tidegate.runtime.tls import ClientTls, Contexts

__all__ = ["HEAD", "EntryLayer", "choose_inside"]

HEAD = "tidegate.head"
"""The key of `flow.metadata` under which the CONNECT hook finds the parsed head."""

_LETTER = re.compile(rb"[A-Za-z]")
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

Commands = layer.CommandGenerator[None]


class EntryLayer(layer.Layer):
    """Reads heads until one is a tunnel or a plain request."""

    def __init__(self, context: Context, channel: Channel, contexts: Contexts) -> None:
        super().__init__(context)
        self.channel = channel
        self.contexts = contexts
        self.buffer = bytearray()
        self.child: layer.Layer | None = None
        self.done = False

    @override
    def handle_event(self, event: events.Event) -> Commands:
        child = self.child
        if child is None or self._paused is not None:
            yield from super().handle_event(event)
            return
        if isinstance(child, layer.NextLayer) and child._handle is not None and child.layer is not None:
            child = self.child = child.layer  # it has chosen, and replayed what it held
        if not isinstance(child, layer.NextLayer):
            # Settled for good: from the next event on, this layer is no longer on the way.
            self.handle_event = child.handle_event  # type: ignore[method-assign]
        yield from child.handle_event(event)

    def _handle_event(self, event: events.Event) -> Commands:
        if self.child is not None:
            yield from self.child.handle_event(event)
        elif isinstance(event, events.DataReceived):
            self.buffer += event.data
            yield from self._advance()
        elif isinstance(event, events.ConnectionClosed):
            yield from self._close()

    def _advance(self) -> Commands:
        while self.buffer and self.child is None and not self.done:
            if not _LETTER.match(self.buffer):
                yield from self._refuse(Reason.NOT_HTTP)
                return
            end = self.buffer.find(b"\r\n\r\n")
            limits = self.channel.gate.head_limits
            most = limits.header_bytes + limits.url_bytes
            if end < 0:
                self.channel.head_began()
                early = early_reason(self.buffer, limits)
                if len(self.buffer) > most or early is not None:
                    yield from self._refuse(early or Reason.HEADERS_TOO_LARGE)
                return
            head = parse_request_head(bytes(self.buffer[:end]), limits)
            if isinstance(head, Reason):
                yield from self._refuse(head)
                return
            if head.method != "CONNECT":
                yield from self._plain()
                return
            del self.buffer[: end + 4]
            self.channel.head_ended()
            yield from self._connect(head)

    def _plain(self) -> Commands:
        self.channel.head_ended()
        data = bytes(self.buffer)
        self.buffer.clear()
        self.child = GateHttpLayer(self.context, self.channel, self.contexts)
        yield from self.child.handle_event(events.Start())
        yield from self.child.handle_event(events.DataReceived(self.context.client, data))

    def _connect(self, head: RequestHead) -> Commands:
        flow = http.HTTPFlow(self.context.client, self.context.server)
        flow.request = make_request(head)
        flow.metadata[HEAD] = head
        self.channel.outcome = None
        yield HttpConnectHook(flow)
        outcome = self._outcome()
        if isinstance(outcome, Tunnel):
            self.channel.head_began()  # what is inside has the time of one head to begin in earnest
            yield from self._established()
            yield from self._descend(layer.NextLayer(self.context))
        elif isinstance(outcome, Opaque):
            yield from self._opaque(outcome)
        else:
            if outcome is None:
                self.channel.fault("no answer to CONNECT")
                self.channel.closing = True
            yield from self._deny(outcome or denial(Reason.INTERNAL_FAULT, flow=self.channel.flow))

    def _outcome(self) -> Tunnel | Opaque | Denial | None:
        """What the hook left: nothing, if it failed or is missing."""
        return self.channel.outcome

    def _deny(self, reply: Denial) -> Commands:
        if self.channel.closing:
            yield commands.SendData(self.context.client, denial_bytes(reply))
            yield from self._close()
            return
        first = b"HTTP/1.1 %d %b" % (reply.status, phrase(reply.status))
        yield commands.SendData(self.context.client, serialise_headers(first, reply.headers) + reply.body)

    def _opaque(self, outcome: Opaque) -> Commands:
        if outcome.check_sni:
            self.channel.head_began()
            yield from self._established()
            yield from self._descend(_Sealed(self.context, self.channel, outcome))
            return
        pipe = _Pipe(self.context, self.channel, outcome)
        error = yield from pipe.open()
        if error:
            self.channel.end_reason = error
            yield from self._deny(denial(Reason.BAD_UPSTREAM, flow=self.channel.flow))
            yield from self._close()
            return
        yield from self._established()
        yield from self._descend(pipe)

    def _established(self) -> Commands:
        """Say that the tunnel stands."""
        yield commands.SendData(self.context.client, _ESTABLISHED)

    def _descend(self, child: layer.Layer) -> Commands:
        self.child = child
        yield from child.handle_event(events.Start())
        if self.buffer:
            data = bytes(self.buffer)
            self.buffer.clear()
            yield from child.handle_event(events.DataReceived(self.context.client, data))

    def _refuse(self, reason: Reason) -> Commands:
        reply = self.channel.refuse(reason)
        if reply.reason.status is not None:
            yield commands.SendData(self.context.client, denial_bytes(reply))
        yield from self._close()

    def _close(self) -> Commands:
        self.done = True
        self.buffer.clear()
        if self.context.client.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.context.client)


def choose_inside(pending: layer.NextLayer, channel: Channel, contexts: Contexts) -> None:
    """Choose what is inside a tunnel by its first byte; never raw TCP (P-21, P-22)."""
    context = pending.context
    data = pending.data_client()
    if not data:
        return
    inside_tls = context.client.tls
    if data[0] == 0x16 and not inside_tls:
        pending.layer = ClientTls(context, channel, contexts)
    elif _LETTER.match(data):
        pending.layer = GateHttpLayer(context, channel, contexts)
    else:
        pending.layer = _Refused(context, channel)


class _Refused(layer.Layer):
    """Closes what does not speak HTTP, with a record and without a word."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.told = False

    def _handle_event(self, event: events.Event) -> Commands:
        if not self.told:
            self.told = True
            self.channel.refuse(Reason.NOT_HTTP)
        if self.context.client.state is not ConnectionState.CLOSED:
            yield commands.CloseConnection(self.context.client)


class _Pipe(layer.Layer):
    """Bytes both ways, counted, to the one pinned destination of a `tcp` rule."""

    def __init__(self, context: Context, channel: Channel, outcome: Opaque) -> None:
        super().__init__(context)
        self.channel = channel
        self.server = Server(address=(outcome.host, outcome.port))

    def open(self) -> layer.CommandGenerator[str | None]:
        """Open the upstream; return what went wrong."""
        error: str | None = yield commands.OpenConnection(self.server)
        return error

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.DataReceived):
            up = event.connection is self.context.client
            if up:
                bill = Bill(self.channel, len(event.data))
                if self.channel.metered:
                    yield PayHook(bill)
                if bill.reason is not None:
                    # Not closed in order: half an upload must not look like a whole one.
                    self.channel.cut(bill.reason, None)
                    return
                self.channel.bytes_up += len(event.data)
            else:
                self.channel.bytes_down += len(event.data)
            yield commands.SendData(self.server if up else self.context.client, event.data)
        elif isinstance(event, events.ConnectionClosed):
            other = self.server if event.connection is self.context.client else self.context.client
            if other.state & ConnectionState.CAN_READ:
                yield commands.CloseTcpConnection(other, half_close=True)
            else:
                yield from self._close()

    def _close(self) -> Commands:
        for connection in (self.server, self.context.client):
            if connection.state is not ConnectionState.CLOSED:
                yield commands.CloseConnection(connection)


class _Sealed(_Pipe):
    """A passthrough: the ClientHello must name the channel's name in clear, then as a pipe."""

    def __init__(self, context: Context, channel: Channel, outcome: Opaque) -> None:
        super().__init__(context, channel, outcome)
        self.held = bytearray()
        self.hello = HelloReader()
        self.checked = False

    def _handle_event(self, event: events.Event) -> Commands:
        if self.checked or not isinstance(event, events.DataReceived):
            yield from super()._handle_event(event)
            return
        self.held += event.data
        judged = self._judge()
        if judged is False:
            return
        self.checked = True
        self.channel.head_ended()
        reason = judged if isinstance(judged, Reason) else None
        error = None if reason is not None else (yield from self.open())
        if reason is not None or error:
            self.channel.refuse(reason or Reason.BAD_UPSTREAM)
            yield from self._close()
            return
        data = bytes(self.held)
        self.held.clear()
        yield from super()._handle_event(events.DataReceived(self.context.client, data))

    def _judge(self) -> Reason | bool:
        """Say what is against the hello, True for nothing; False while it is not whole."""
        try:
            hello = self.hello.read(self.held)
        except BadHello:
            return Reason.NOT_HTTP
        if hello is None:
            return False
        if hello.ech:
            return Reason.ECH_REFUSED
        self.channel.hello(hello.sni)
        return Reason.SNI_MISMATCH if hello.sni is None or self.channel.denied is not None else True
