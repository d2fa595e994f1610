"""One request and its answer between the two legs.

`GateStream` takes the place of mitmproxy's HttpStream. It streams both ways always, answers a denied
upload early, and goes on only with what an `Exchange` has allowed: hooks carry the request to the
exchange, but a hook that fails, or is missing, leaves no effect, and without one nothing is sent
(invariants 1 and 2).

Longer than a module should be, since every way in which one exchange can stop is to be seen beside the others.
"""

import time

from mitmproxy import http
from mitmproxy.connection import Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    DropStream,
    ErrorCode,
    GetHttpConnection,
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
from tidegate.exchange.fields import request_framing
from tidegate.exchange.reply import Denial, phrase
from tidegate.policy.reasons import Reason
from tidegate.runtime.breathe import SLICE_BYTES, TURN_BYTES, TURN_SECONDS, Breath, BreatheHook
from tidegate.runtime.flow import GateFlow
from tidegate.runtime.http1_message import (
    NOTHING,
    Continue,
    Fields,
    ReceivedRequest,
    ReceivedResponse,
    SentRequest,
    SentResponse,
    Unanswered,
)
from tidegate.runtime.http2_head import request_head, response_head
from tidegate.runtime.overdue import Overdue
from tidegate.runtime.pay import Bill, PayHook

__all__ = ["EXCHANGE", "GateStream", "GetUpgradeConnection"]

EXCHANGE = "tidegate.exchange"
"""The key of `flow.metadata` under which hooks find the exchange."""

_RETRY = frozenset({"GET", "HEAD", "OPTIONS"})
_GATHER_BYTES = 256 * 1024
_CODES = {reason.code: reason for reason in Reason}

Commands = layer.CommandGenerator[None]


class GetUpgradeConnection(GetHttpConnection):
    """Get a connection that speaks HTTP/1.1, which alone can become something else."""


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
        self.gathered_bytes = self.turn_bytes = 0
        self.relay: Relay | None = None

    def _handle_event(self, event: events.Event) -> Commands:
        if self.finished and not isinstance(event, RequestHeaders):
            return  # of an upload that is answered already: the client's leg bounds it
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
        limits = self.channel.gate.head_limits
        head = event.head if isinstance(event, ReceivedRequest) else request_head(event, limits)
        if isinstance(head, Reason):
            self.flow = GateFlow(self.context, event.request, None, self.channel.flow)
            yield from self._deny(self.channel.refuse_request(head))
            return
        exchange = self.exchange = Exchange(self.channel, head)
        flow = self.flow = GateFlow(self.context, event.request, head, exchange.flow)
        flow.metadata[EXCHANGE] = exchange
        self.request_whole = event.end_stream
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
        kind = GetUpgradeConnection if effect.upgrade else GetHttpConnection
        connection, error = yield kind((effect.host, effect.port), effect.tls, None)
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
            sent.length = effect.length
            sent.method, sent.target = head.method, effect.target
            sent.fields = [(b"Host", authority), *effect.headers]
        self.exchange.head_sent()
        yield SendHttp(sent, self.upstream)
        if self.request_whole and head.length != 0:
            yield SendHttp(RequestEndOfMessage(self.stream_id), self.upstream)

    def _write_request(self, effect: Forward, authority: bytes) -> None:
        """Write a `Forward` into the flow's request, for an HTTP/2 leg."""
        data = self.flow.request.data
        data.scheme, data.authority, data.path = b"https" if effect.tls else b"http", authority, effect.target
        framing = request_framing(effect.length, self.flow.request.method, http2=True)
        data.headers = http.Headers([*((name.lower(), value) for name, value in effect.headers), *framing])

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
        refusal = self.exchange.upload_end()
        if refusal is not None:
            yield from self._stop(refusal)
            return
        yield SendHttp(RequestEndOfMessage(self.stream_id), self.upstream)

    # -- the answer -------------------------------------------------------------------------------

    def _on_response(self, event: ResponseHeaders) -> Commands:
        if self.exchange is None or self.answered:
            return
        method, limits = self.exchange.head.method, self.channel.gate.head_limits
        head = event.head if isinstance(event, ReceivedResponse) else response_head(event, method, limits)
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
        if not self.exchange.decodes:
            yield from self._pass_on(self.exchange, event.data)
            return
        begun = time.monotonic()
        for at in range(0, len(event.data), SLICE_BYTES):
            if self.finished:
                return
            yield from self._pass_on(self.exchange, event.data[at : at + SLICE_BYTES])
            if self.turn_bytes > TURN_BYTES or time.monotonic() - begun > TURN_SECONDS:
                self.turn_bytes = 0
                yield BreatheHook(Breath(self.channel, f"answer {self.stream_id}"))
                begun = time.monotonic()

    def _pass_on(self, exchange: Exchange, received: bytes) -> Commands:
        data = exchange.download(received)
        if isinstance(data, Reason):
            yield from self._stop(data)
            return
        self.turn_bytes += len(data)
        if self.gathered is not None:
            yield from self._gather(data)
        elif data:
            yield SendHttp(ResponseData(self.stream_id, data), self.context.client)

    def _gather(self, data: bytes) -> Commands:
        """Hold a short body back. One that is long after all, once it is decoded, goes on as it comes."""
        if self.gathered is None or self.relay is None:
            return
        self.gathered.append(data)
        self.gathered_bytes += len(data)
        if self.gathered_bytes > _GATHER_BYTES:
            body, self.gathered = b"".join(self.gathered), None
            yield from self._send_response_head(self.relay, length=None, hold=True)
            yield SendHttp(ResponseData(self.stream_id, body), self.context.client)

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
        yield from self._end(HttpResponseHook(self.flow))
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def _end(self, hook: commands.StartHook) -> Commands:
        """Have the end written, and go."""
        self.finished = True
        self.flow.live = False
        yield hook
        if self.exchange is not None:
            self.exchange.finish()
        yield DropStream(self.stream_id)

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
        yield from self._end(HttpErrorHook(self.flow))
        yield SendHttp(ResponseProtocolError(self.stream_id, reason.code, ErrorCode.KILL), self.context.client)

    def _deny(self, denial: Denial) -> Commands:
        self.answered = True
        bodiless = self.exchange is not None and self.exchange.head.method == "HEAD"
        fields = list(denial.headers)
        sent = self._sent(denial.status, phrase(denial.status), fields, end=bodiless)
        if self.context.client.alpn == b"h2":
            sent.response = _h2_response(denial.status, fields)
        sent.hold = not bodiless
        sent.close = self.channel.closing
        yield from self._end(HttpErrorHook(self.flow))
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


def _h2_response(status: int, fields: Fields) -> http.Response:
    lower = http.Headers([(name.lower(), value) for name, value in fields])
    return http.Response(b"HTTP/2.0", status, b"", lower, None, None, 0.0, 0.0)
