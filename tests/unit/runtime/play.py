"""Playbook: layers driven by hand, so that a test reads as a conversation. No socket, no handler.

`Leg` plays one HTTP/1 leg: bytes in, what it tells the stream and the wire out, as short tuples.
`Play` plays a client connection whole, hooks and upstreams included, and keeps a tally of what was
decided and what was sent, which must agree whatever the bytes are.
"""

import functools
import re
from collections import deque
from collections.abc import Awaitable, Callable

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    RequestData,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.test import taddons

from tests.unit.exchange.stage import Stage
from tidegate.config.model import UpstreamSettings
from tidegate.exchange.channel import Channel
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.runtime.entry import EntryLayer, choose_inside
from tidegate.runtime.http1_message import ReceivedRequest, ReceivedResponse
from tidegate.runtime.pay import pay
from tidegate.runtime.tls import Contexts, certify_hook
from tidegate.session.identity import SessionId
from tidegate_addons.admission import Admission
from tidegate_addons.channels import Channels
from tidegate_addons.record import Record
from tidegate_addons.scrub import Scrub
from tidegate_addons.verdict import Verdict

__all__ = ["Leg", "NoSigner", "Play", "context", "make_contexts"]

Hook = Callable[..., Awaitable[None] | None]
_HOOKS = ("http_connect", "tls_clienthello", "requestheaders", "responseheaders", "response", "error")


@functools.cache
def _options() -> Options:
    with taddons.context(Proxyserver()) as ctx:
        options = ctx.options
        options.update(server=False, connection_strategy="lazy", http2_ping_keepalive=0)
        return options


def context(*, upstream: bool = False) -> Context:
    """A context of a client that is connected, with an open server if asked for."""
    client = Client(peername=("10.0.0.2", 40000), sockname=("10.9.9.1", 8080), state=ConnectionState.OPEN)
    made = Context(client, _options())
    if upstream:
        made.server = Server(address=("api.test", 443))
        made.server.state = ConnectionState.OPEN
    return made


class NoSigner:
    """A keeper that certifies nothing."""

    async def sign_leaf(
        self, session: SessionId, name: HostName, public_key_der: bytes, *, denied: bool
    ) -> tuple[bytes, ...] | Reason:
        del session, name, public_key_der, denied
        return Reason.KEEPER_UNAVAILABLE


@functools.cache
def make_contexts(ca_file: str = "system") -> Contexts:
    """The TLS of a worker whose keeper certifies nothing."""
    return Contexts(NoSigner(), UpstreamSettings(ca_file=ca_file))


Line = tuple[object, ...]


class Leg:
    """One leg; what it answers comes back as lines."""

    def __init__(self, leg: layer.Layer, conn: Connection) -> None:
        self.leg = leg
        self.conn = conn
        self.handle(events.Start())

    def feed(self, data: bytes) -> list[Line]:
        return self.handle(events.DataReceived(self.conn, data))

    def close(self) -> list[Line]:
        self.conn.state &= ~ConnectionState.CAN_READ
        return self.handle(events.ConnectionClosed(self.conn))

    def handle(self, event: events.Event) -> list[Line]:
        return _merge([self._line(command) for command in self.leg.handle_event(event)])

    def _line(self, command: commands.Command) -> Line:
        if isinstance(command, ReceiveHttp):
            return _told(command.event)
        if isinstance(command, commands.SendData):
            return ("send", command.data)
        if isinstance(command, commands.CloseConnection):
            if getattr(command, "half_close", False):
                return ("half",)
            command.connection.state = ConnectionState.CLOSED
            return ("close",)
        if isinstance(command, commands.RequestWakeup):
            return ("wait", command.delay)
        raise TypeError(type(command).__name__)


def _told(event: HttpEvent) -> Line:
    if isinstance(event, ReceivedRequest):
        return ("request", event.head.method.encode(), event.head.target)
    if isinstance(event, ReceivedResponse):
        return ("response", event.head.status)
    if isinstance(event, RequestData | ResponseData):
        return ("data", event.data)
    if isinstance(event, RequestEndOfMessage | ResponseEndOfMessage):
        return ("end",)
    if isinstance(event, RequestProtocolError | ResponseProtocolError):
        return ("error", event.message)
    raise TypeError(type(event).__name__)


def _merge(lines: list[Line]) -> list[Line]:
    """Join neighbouring pieces: how bytes are cut is nobody's business."""
    out: list[Line] = []
    for line in lines:
        if out and line[0] in ("data", "send") and out[-1][0] == line[0]:
            out[-1] = (line[0], bytes(out[-1][1]) + bytes(line[1]))  # type: ignore[call-overload]
        else:
            out.append(line)
    return out


_REQUEST_LINE = re.compile(rb"(?:^|\r\n\r\n)[A-Z]+ /\S* HTTP/1\.1\r\nHost: ")


class Play:
    """A client connection from its first byte. `reply` answers each upstream that is opened."""

    def __init__(self, stage: Stage, *, contexts: Contexts | None = None, hooks: dict[str, Hook] | None = None) -> None:
        self.stage = stage
        self.context = context()
        self.channel: Channel = stage.channel()
        self.contexts = contexts or make_contexts()
        channels = Channels()
        channels.add(self.context.client, self.channel)
        addons = [Admission(channels), Verdict(), Scrub(), Record()]
        self.hooks: dict[str, Hook] = {
            name: getattr(addon, name) for name in _HOOKS for addon in addons if hasattr(addon, name)
        }
        self.hooks["tls_start_client"] = lambda _: certify_hook(self.contexts, self.channel)
        self.hooks["pay"] = pay
        self.hooks.update(hooks or {})
        self.sent: dict[Connection, bytes] = {}
        self.opened: list[Server] = []
        self.left = 0
        self.refuse: str | None = None
        self.log: list[str] = []
        self._queue: deque[events.Event] = deque()
        self._waiting: list[tuple[commands.StartHook, Awaitable[None]]] = []
        self.layer = EntryLayer(self.context, self.channel, self.contexts)

    @property
    def told(self) -> bytes:
        """Every byte that went to the client."""
        return self.sent.get(self.context.client, b"")

    @property
    def upstream(self) -> bytes:
        """Every byte that went to any upstream."""
        return b"".join(data for conn, data in self.sent.items() if isinstance(conn, Server))

    @property
    def closed(self) -> bool:
        return self.context.client.state is ConnectionState.CLOSED

    async def client(self, data: bytes) -> bytes:
        """Let the client say `data`; return what it is told in this turn."""
        before = len(self.told)
        if not self.closed:
            await self.turn(events.DataReceived(self.context.client, data))
        return self.told[before:]

    async def leave(self) -> None:
        """Let the client close."""
        if self.context.client.state & ConnectionState.CAN_READ:
            self.context.client.state &= ~ConnectionState.CAN_READ
            await self.turn(events.ConnectionClosed(self.context.client))

    async def server(self, data: bytes) -> bytes:
        """Let the upstream opened last say `data`; return what the client is told in this turn."""
        before = len(self.told)
        if self.opened and self.opened[-1].state & ConnectionState.CAN_READ:
            await self.turn(events.DataReceived(self.opened[-1], data))
        return self.told[before:]

    async def server_leaves(self) -> None:
        """Let the upstream opened last close."""
        if not self.opened or not self.opened[-1].state & ConnectionState.CAN_READ:
            return
        conn = self.opened[-1]
        self.left += 1
        conn.state &= ~ConnectionState.CAN_READ
        await self.turn(events.ConnectionClosed(conn))

    async def turn(self, event: events.Event) -> None:
        self._queue.append(event)
        while self._queue or self._waiting:
            while self._queue:
                for command in self.layer.handle_event(self._queue.popleft()):
                    self._carry_out(command)
            waiting, self._waiting = self._waiting, []
            for hook, awaitable in waiting:
                await awaitable
                self._queue.append(events.HookCompleted(hook))
        self.check()

    def _carry_out(self, command: commands.Command) -> None:
        if isinstance(command, commands.SendData):
            self.sent[command.connection] = self.sent.get(command.connection, b"") + command.data
        elif isinstance(command, commands.StartHook):
            self._hook(command)
        elif isinstance(command, commands.OpenConnection):
            self._open(command)
        elif isinstance(command, commands.CloseConnection):
            half = getattr(command, "half_close", False)
            command.connection.state = (
                command.connection.state & ~ConnectionState.CAN_WRITE if half else ConnectionState.CLOSED
            )
        elif not isinstance(command, commands.Log | commands.RequestWakeup):
            raise TypeError(type(command).__name__)

    def _hook(self, hook: commands.StartHook) -> None:
        if isinstance(hook, layer.NextLayerHook):
            choose_inside(hook.data, self.channel, self.contexts)
        else:
            self.log.append(hook.name)
            call = self.hooks.get(hook.name)
            waiting = call(*hook.args()) if call is not None else None
            if waiting is not None:
                self._waiting.append((hook, waiting))
                return
        if hook.blocking:
            self._queue.append(events.HookCompleted(hook))

    def _open(self, command: commands.OpenConnection) -> None:
        conn = command.connection
        assert conn.address is not None
        pin = self.channel.upstreams.pin(conn.address[0], conn.address[1])
        assert pin is not None, "dialled what is not pinned"
        if self.refuse is None:
            conn.state = ConnectionState.OPEN
            conn.peername = (str(pin.addresses[0]), conn.address[1])
            self.opened.append(conn)
            self.channel.upstreams.opened(conn.address[0], conn.address[1], conn.peername[0])
        self._queue.append(events.OpenConnectionCompleted(command, self.refuse))

    def check(self) -> None:
        """No byte upstream without an allow on record before it, request for request (invariants 1 and 6).

        An upstream that left may have had its request tried once more.
        """
        if not self.upstream:
            return
        allowed = [line for line in self.stage.phases() if line[1:3] == ("decision", "allow")]
        requests = sum(line[0] == "http" for line in allowed)
        heads = sum(len(_REQUEST_LINE.findall(data)) for conn, data in self.sent.items() if isinstance(conn, Server))
        assert allowed
        assert self.channel.opaque or heads <= requests + self.left, (
            f"{heads} requests went up, {requests} were allowed"
        )
