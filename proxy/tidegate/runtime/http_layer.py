"""HTTP between the two legs: streams that ask the exchange, and upstream connections that are reused.

`GateStream` takes the place of mitmproxy's HttpStream. It streams both ways always, answers a denied
upload early, and goes on only with what an `Exchange` has allowed: hooks carry the request to the
exchange, but a hook that fails, or is missing, leaves no effect, and without one nothing is sent
(invariants 1 and 2).
"""

from ipaddress import ip_address
from typing import TYPE_CHECKING, override

from mitmproxy import http
from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, tunnel
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    DropStream,
    ErrorCode,
    GetHttpConnection,
    GetHttpConnectionCompleted,
    HttpLayer,
    HTTPMode,
    RegisterHttpConnection,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
    SendHttp,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)

from tidegate.exchange.channel import Channel
from tidegate.exchange.effects import Forward, Relay
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.head import RequestHead, ResponseHead
from tidegate.exchange.reply import Denial, phrase
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin
from tidegate.runtime.http1_downstream import DownstreamHttp1
from tidegate.runtime.http1_message import (
    NOTHING,
    Continue,
    Fields,
    ReceivedRequest,
    ReceivedResponse,
    SentRequest,
    SentResponse,
    Unanswered,
    make_request,
    make_response,
)
from tidegate.runtime.http1_upstream import UpstreamHttp1
from tidegate.runtime.http2 import DownstreamHttp2, UpstreamHttp2, request_head, response_head
from tidegate.runtime.overdue import Overdue
from tidegate.runtime.pay import Bill, PayHook

if TYPE_CHECKING:
    from tidegate.runtime.tls import Contexts

__all__ = ["EXCHANGE", "GateHttpLayer", "GateStream"]

EXCHANGE = "tidegate.exchange"
"""The key of `flow.metadata` under which hooks find the exchange."""

_RETRY = frozenset({"GET", "HEAD", "OPTIONS"})

Commands = layer.CommandGenerator[None]


class GateStream(layer.Layer):
    """One request and its answer."""

    def __init__(self, context: Context, stream_id: int, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.stream_id = stream_id
        self.exchange: Exchange | None = None
        self.upstream: Server | None = None
        self.reused = self.retried = False
        self.sent_body = False
        self.request_whole = False
        self.answered = False
        self.finished = False
        self.piped = False
        self.gathered: list[bytes] | None = None
        self.relay: Relay | None = None

    def _handle_event(self, event: events.Event) -> Commands:
        if self.finished and not isinstance(event, RequestHeaders):
            return
        if isinstance(event, RequestHeaders):
            yield from self._on_request(event)
        elif isinstance(event, RequestData):
            yield from self._on_request_data(event)
        elif isinstance(event, ResponseData):
            yield from self._on_response_data(event)
        elif isinstance(event, ResponseHeaders):
            yield from self._on_response(event)
        elif isinstance(event, ResponseEndOfMessage):
            yield from self._on_response_end()
        elif isinstance(event, RequestEndOfMessage):
            yield from self._on_request_end()
        elif isinstance(event, RequestTrailers):
            yield from self._stop(Reason.TRAILERS)
        elif isinstance(event, RequestProtocolError):
            yield from self._on_client_error(event)
        elif isinstance(event, ResponseProtocolError):
            yield from self._on_upstream_error(event)
        elif isinstance(event, ResponseTrailers):
            pass  # Dropped, the body intact, until trailers are scrubbed.
        elif isinstance(event, Overdue):
            yield from self._stop(event.reason)

    # -- the request ------------------------------------------------------------------------------

    def _on_request(self, event: RequestHeaders) -> Commands:
        head = event.head if isinstance(event, ReceivedRequest) else request_head(event)
        if isinstance(head, Reason):
            self.flow = GateFlow(self.context, event.request, None, self.channel.flow)
            yield from self._deny(self.channel.refuse_request(head))
            return
        exchange = self.exchange = Exchange(self.channel, head)
        flow = self.flow = GateFlow(self.context, event.request, head, exchange.flow)
        flow.metadata[EXCHANGE] = exchange
        if not event.end_stream:
            self.channel.wait(waiting=True)
        yield HttpRequestHeadersHook(flow)
        effect = exchange.effect
        if isinstance(effect, Forward):
            yield from self._forward(effect)
        else:
            yield from self._deny(effect or exchange.fault())
        if not event.end_stream:
            self.channel.wait(waiting=False)

    def _forward(self, effect: Forward) -> Commands:
        yield from self._connect(effect)
        if self.upstream is None or self.exchange is None:
            return
        head = self.exchange.head
        if head.expect_continue and head.length != 0:
            yield SendHttp(Continue(self.stream_id), self.context.client)
        yield from self._send_request(effect)

    def _connect(self, effect: Forward) -> Commands:
        connection, error = yield GetHttpConnection((effect.host, effect.port), effect.tls, None)
        if error is not None or not isinstance(connection, Server):
            yield from self._upstream_failed(_CODES.get(error or "", Reason.BAD_UPSTREAM))
            return
        if self.exchange is None or self.exchange.over:
            yield from self._stop(Reason.SESSION_INVALID)
            return
        if self.channel.body_fault is not None:
            return  # told next, and nothing of such a request need have left
        self.upstream = self.context.server = self.flow.server_conn = connection

    def _send_request(self, effect: Forward) -> Commands:
        if self.upstream is None or self.exchange is None:
            return
        head, authority = self.exchange.head, effect.authority.encode()
        h2 = self.upstream.alpn == b"h2"
        sent = SentRequest(self.stream_id, self.flow.request if h2 else NOTHING, head.length == 0)
        if h2:
            self._write_request(effect, authority)
        else:
            sent.chunked = head.length is None
            sent.method, sent.target = head.method, effect.target
            sent.fields = [(b"Host", authority), *effect.headers]
        yield SendHttp(sent, self.upstream)
        if self.request_whole and head.length != 0:
            yield SendHttp(RequestEndOfMessage(self.stream_id), self.upstream)

    def _write_request(self, effect: Forward, authority: bytes) -> None:
        """Write a `Forward` into the flow's request, for an HTTP/2 leg."""
        data = self.flow.request.data
        data.scheme, data.authority, data.path = b"https" if effect.tls else b"http", authority, effect.target
        data.headers = http.Headers([(name.lower(), value) for name, value in effect.headers])

    def _on_request_data(self, event: RequestData) -> Commands:
        if self.exchange is None:
            return
        refusal = self.exchange.upload(event.data)
        if refusal is None and self.exchange.metered:
            bill = Bill(self.exchange, len(event.data))
            yield PayHook(bill)
            refusal = bill.reason
        if refusal is not None:
            yield from self._stop(refusal)
        elif self.upstream is not None:
            self.sent_body = True
            yield SendHttp(event, self.upstream)

    def _on_request_end(self) -> Commands:
        self.request_whole = True
        if self.exchange is None or self.upstream is None:
            return
        self.exchange.upload_end()
        yield SendHttp(RequestEndOfMessage(self.stream_id), self.upstream)

    # -- the answer -------------------------------------------------------------------------------

    def _on_response(self, event: ResponseHeaders) -> Commands:
        if self.exchange is None or self.answered:
            return
        head = event.head if isinstance(event, ReceivedResponse) else response_head(event, self.exchange.head.method)
        if head is None:
            yield from self._stop(Reason.BAD_UPSTREAM)
            return
        self.flow.response_head = head
        self.exchange.on_response(head)
        yield HttpResponseHeadersHook(self.flow)
        effect = self.exchange.response_effect
        if not isinstance(effect, Relay):
            yield from self._abandon_upstream()
            yield from self._deny(effect or self.exchange.fault())
            return
        self.relay = effect
        if effect.upgrade:
            self.piped = True
        if effect.gather:
            self.gathered = []
            return
        yield from self._send_response_head(effect, length=effect.length, hold=False)

    def _send_response_head(self, effect: Relay, *, length: int | None, hold: bool) -> Commands:
        if self.exchange is None:
            return
        fields = list(effect.headers)
        h1 = self.context.client.alpn != b"h2"
        sent = self._sent(self.exchange.status or 502, b"", fields, end=not effect.has_body and not effect.upgrade)
        if length is not None:
            fields.append((b"Content-Length", b"%d" % length))
        elif h1 and effect.has_body:
            sent.chunked = self.exchange.head.minor == 1
            sent.close = not sent.chunked
        self.answered = True
        sent.hold = hold
        sent.close = sent.close or self.channel.closing
        if not h1:
            sent.response = _h2_response(sent.status, fields)
        yield SendHttp(sent, self.context.client)

    def _sent(self, status: int, reason: bytes, fields: Fields, *, end: bool) -> SentResponse:
        sent = SentResponse(self.stream_id, NOTHING, end)
        sent.status, sent.phrase, sent.fields = status, reason, fields
        return sent

    def _on_response_data(self, event: ResponseData) -> Commands:
        if self.exchange is None or self.relay is None:
            return
        data = self.exchange.download(event.data)
        if isinstance(data, Reason):
            yield from self._stop(data)
        elif self.gathered is not None:
            self.gathered.append(data)
        elif data:
            yield SendHttp(ResponseData(self.stream_id, data), self.context.client)

    def _on_response_end(self) -> Commands:
        if self.exchange is None or self.relay is None:
            return
        tail = self.exchange.download_end()
        if isinstance(tail, Reason):
            yield from self._stop(tail)
            return
        if self.gathered is not None:
            body = b"".join([*self.gathered, tail])
            yield from self._send_response_head(self.relay, length=len(body), hold=bool(body))
            tail = body
        if tail:
            yield SendHttp(ResponseData(self.stream_id, tail), self.context.client)
        yield from self._finish()

    def _finish(self) -> Commands:
        self.finished = True
        self.flow.live = False
        yield HttpResponseHook(self.flow)
        if self.exchange is not None:
            self.exchange.finish()
        yield DropStream(self.stream_id)
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    # -- the ways it can stop ---------------------------------------------------------------------

    def _stop(self, reason: Reason) -> Commands:
        """Stop an exchange under way: a denial if nothing was said yet, else a cut."""
        yield from self._abandon_upstream()
        if self.exchange is None:
            yield from self._deny(self.channel.refuse(reason))
            return
        denial = self.exchange.stop(reason)
        if self.answered:
            yield from self._cut_client(reason)
        else:
            yield from self._deny(denial)

    def _cut_client(self, reason: Reason) -> Commands:
        self.finished = True
        self.flow.live = False
        yield HttpErrorHook(self.flow)
        if self.exchange is not None:
            self.exchange.finish()
        yield DropStream(self.stream_id)
        yield SendHttp(ResponseProtocolError(self.stream_id, reason.code, ErrorCode.KILL), self.context.client)

    def _deny(self, denial: Denial) -> Commands:
        self.finished = self.answered = True
        self.flow.live = False
        bodiless = self.exchange is not None and self.exchange.head.method == "HEAD"
        fields = list(denial.headers)
        sent = self._sent(denial.status, phrase(denial.status), fields, end=bodiless)
        if self.context.client.alpn == b"h2":
            sent.response = _h2_response(denial.status, fields)
        sent.hold = not bodiless
        sent.close = self.channel.closing
        yield HttpErrorHook(self.flow)
        if self.exchange is not None:
            self.exchange.finish()
        yield DropStream(self.stream_id)
        yield SendHttp(sent, self.context.client)
        if not bodiless:
            yield SendHttp(ResponseData(self.stream_id, denial.body), self.context.client)
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def _abandon_upstream(self) -> Commands:
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            gone = RequestProtocolError(self.stream_id, "abandoned", ErrorCode.CANCEL)
            yield SendHttp(gone, upstream)

    def _on_client_error(self, event: RequestProtocolError) -> Commands:
        if self.channel.body_fault is not None:
            yield from self._stop(self.channel.body_fault)
            return
        yield from self._abandon_upstream()
        if self.exchange is not None:
            self.exchange.client_gone()
        yield from self._cut_client(Reason.CLIENT_TIMEOUT)

    def _on_upstream_error(self, event: ResponseProtocolError) -> Commands:
        effect = self.exchange.effect if self.exchange is not None else None
        if (
            isinstance(effect, Forward)
            and (isinstance(event, Unanswered) or (self.upstream is not None and self.upstream.alpn == b"h2"))
            and self.reused_and_silent()
            and self.exchange is not None
            and self.exchange.head.method in _RETRY
        ):
            # The upstream closed an idle connection in the same moment: nothing was answered, and the
            # method is safe, so one fresh connection is tried (RFC 9110 9.2.2).
            self.retried = True
            self.upstream = None
            yield from self._connect(effect)
            yield from self._send_request(effect)
            return
        self.upstream = None
        yield from self._upstream_failed(Reason.BAD_UPSTREAM)

    def reused_and_silent(self) -> bool:
        """Tell whether the failed connection had served before and said nothing to this request."""
        return self.reused and not self.retried and not self.answered and not self.sent_body and self.relay is None

    def _upstream_failed(self, reason: Reason) -> Commands:
        if self.exchange is None:
            return
        denial = self.exchange.stop(reason)
        if self.answered:
            yield from self._cut_client(reason)
        else:
            yield from self._deny(denial)


def _fork(context: Context) -> Context:
    """Fork a context for a stream without making a server connection that is thrown away at once."""
    forked = Context.__new__(Context)
    forked.client, forked.options, forked.server = context.client, context.options, context.server
    forked.layers = context.layers.copy()
    return forked


class GateFlow(http.HTTPFlow):
    """A flow under the audit id of its exchange. Its request and response are made only if something reads them."""

    type = "http"

    def __init__(self, context: Context, request: http.Request | None, head: RequestHead | None, flow: str) -> None:
        self.id = flow
        self.client_conn, self.server_conn = context.client, context.server
        self.live, self.intercepted = True, False
        self.timestamp_created = 0.0
        self._resume_event, self._backup = None, None
        self.marked = self.comment = ""
        self.is_replay = None
        self.metadata = {}
        self._request = request
        self._head = head
        self.response_head: ResponseHead | None = None

    @property
    def request(self) -> http.Request:
        """The request, in mitmproxy's form."""
        if self._request is None:
            self._request = make_request(self._head) if self._head else http.Request.make("GET", "http://invalid/")
        return self._request

    @request.setter
    def request(self, value: http.Request) -> None:
        self._request = value

    @property
    def response(self) -> http.Response | None:  # type: ignore[override]
        """The upstream's response head, in mitmproxy's form."""
        return None if self.response_head is None else make_response(self.response_head)


def _h2_response(status: int, fields: Fields) -> http.Response:
    lower = http.Headers([(name.lower(), value) for name, value in fields])
    return http.Response(b"HTTP/2.0", status, b"", lower, None, None, 0.0, 0.0)


_CODES = {reason.code: reason for reason in Reason}


class _UpstreamHttp(layer.Layer):
    """The innermost layer of an upstream connection: HTTP/2 or HTTP/1, once it is open."""

    def __init__(self, context: Context, channel: Channel) -> None:
        super().__init__(context)
        self.channel = channel
        self.child: layer.Layer | None = None
        self._pin: Pin | None = None

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
        context = self.context.fork()
        context.server = Server(address=event.address)
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

    def _find(self, event: GetHttpConnection) -> Server | None:
        """Return a connection to the same name that may take one more request, or is being opened."""
        for connection in list(self.connections):
            if not isinstance(connection, Server) or not event.connection_spec_matches(connection):
                continue
            if connection in self.waiting_for_establishment:
                if self.context.client.alpn == b"h2" or not self.waiting_for_establishment[connection]:
                    return connection
                continue
            if connection.state is ConnectionState.CLOSED:
                self._forget(connection)
                continue
            child = self.clients[connection].child
            pin = self.channel.upstreams.pin(event.address[0], event.address[1])
            if pin is None or not self.clients[connection].stands_for(pin):
                continue
            if isinstance(child, UpstreamHttp2) and connection.state is ConnectionState.OPEN and not child.closing:
                return connection
            if isinstance(child, UpstreamHttp1) and child.idle:
                return connection
        return None

    def _forget(self, connection: Server) -> None:
        self.connections.pop(connection, None)
        self.clients.pop(connection, None)

    def _give(self, event: GetHttpConnection, connection: Server, *, reused: bool) -> Commands:
        stream = self.command_sources.pop(event)
        if isinstance(stream, GateStream):
            stream.reused = reused
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
