"""TLS on both legs, without a CA key in the process.

Client's leg: one key pair of the worker, certified by the keeper a name at a time, one context per
(session, name). Upstream's leg: one context per trust store; every connection is verified against the
one name of the exchange, and there is no switch to turn that off. Sessions are resumed upstream only
within one (session, name, address), since a ticket links what it is shared between.

Longer than a module should be, since both legs share the contexts, which one reload changes for both.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol, override

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mitmproxy import tls as mtls
from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, tunnel
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import tls
from OpenSSL import SSL

from tidegate.ca.trust import trust_files
from tidegate.config.model import UpstreamSettings
from tidegate.errors import ConfigError
from tidegate.exchange.channel import Channel
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.runtime import tls_io
from tidegate.runtime.hello import BadHello, HelloReader
from tidegate.session.identity import SessionId

__all__ = ["ClientTls", "Contexts", "LeafSigner", "UpstreamTls", "certify_hook", "upstream_context"]

_MOST_LEAVES = 2048
_MOST_TICKETS = 2048
_LEAF_SECONDS = 6 * 3600.0
_NO_PARTIAL_WILDCARDS = 0x4
_NEVER_SUBJECT = 0x20

Commands = layer.CommandGenerator[None]


class LeafSigner(Protocol):
    """What the keeper does for a name."""

    async def sign_leaf(  # noqa: D102 - as KeeperClient
        self, session: SessionId, name: HostName, public_key_der: bytes, *, denied: bool
    ) -> tuple[bytes, ...] | Reason: ...


class _Leaf:
    __slots__ = ("context", "until")

    def __init__(self, context: SSL.Context, until: float) -> None:
        self.context = context
        self.until = until


class Contexts:
    """The SSL contexts of one worker."""

    def __init__(self, signer: LeafSigner, settings: UpstreamSettings) -> None:
        self._signer = signer
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._leaves: OrderedDict[tuple[str, str], _Leaf] = OrderedDict()
        self._signing: dict[tuple[str, str], asyncio.Future[SSL.Context | Reason | None]] = {}
        self._tickets: OrderedDict[tuple[str, str, str], SSL.Session] = OrderedDict()
        self._alpn: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._upstream = upstream_context(settings)
        self._settings = settings

    def prepare(self, settings: UpstreamSettings) -> SSL.Context:
        """Load another trust store without using it yet. Raises `ConfigError`."""
        return self._upstream if settings == self._settings else upstream_context(settings)

    def adopt(self, settings: UpstreamSettings, context: SSL.Context) -> None:
        """Use another trust store; nothing proved under the old one is resumed."""
        if context is not self._upstream:
            self._tickets.clear()
        self._upstream, self._settings = context, settings

    # -- client's leg -----------------------------------------------------------------------------

    def leaf(self, session: str, name: str) -> SSL.Context | None:
        """Return the context for a name, if it was certified for this session before."""
        found = self._leaves.get((session, name))
        if found is None or found.until < asyncio.get_running_loop().time():
            return None
        return found.context

    async def certify(self, session: SessionId, name: str, *, denied: bool) -> SSL.Context | Reason:
        """Have the name certified by the keeper; one ask at a time for each."""
        key = (session, name)
        while (waiting := self._signing.get(key)) is not None:
            found = await asyncio.shield(waiting)
            if found is not None:
                return found
        # Nobody asks, or who asked has left or failed: that is not to be the others' loss.
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._signing[key] = future
        outcome: SSL.Context | Reason | None = None
        try:
            chain = await self._signer.sign_leaf(session, HostName(name), self._public, denied=denied)
            if isinstance(chain, Reason):
                outcome = chain
            else:
                outcome = self._server_context(chain)
                self._leaves[key] = _Leaf(outcome, loop.time() + _LEAF_SECONDS)
                if len(self._leaves) > _MOST_LEAVES:
                    self._leaves.popitem(last=False)
        finally:
            del self._signing[key]
            future.set_result(outcome)
        return outcome

    def _server_context(self, chain: tuple[bytes, ...]) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE)
        context.use_certificate(x509.load_der_x509_certificate(chain[0]))
        for der in chain[1:]:
            context.add_extra_chain_cert(x509.load_der_x509_certificate(der))
        context.use_privatekey(self._key)
        context.set_session_id(b"tidegate")
        context.set_alpn_select_callback(_select_alpn)
        return context

    def client_connection(self, context: SSL.Context, channel: Channel, offers: tuple[bytes, ...]) -> SSL.Connection:
        """Return the server end of the client's TLS."""
        connection = SSL.Connection(context)
        connection.set_app_data(self._answer_alpn(channel, offers))
        connection.set_accept_state()
        return connection

    def _answer_alpn(self, channel: Channel, offers: tuple[bytes, ...]) -> bytes:
        """HTTP/2 only where the upstream is known to speak it: else each stream would cost a connection there."""
        if b"h2" in offers:
            known = self.known_alpn(channel, str(channel.host), channel.port)
            if b"http/1.1" not in offers or (known == b"h2" and channel.denied is None):
                return b"h2"
        return b"http/1.1" if b"http/1.1" in offers else b""

    def known_alpn(self, channel: Channel, host: str, port: int) -> bytes | None:
        """Return the protocol that the upstream chose last time."""
        session = channel.session
        return None if session is None else self._alpn.get((session.id, host, port))

    # -- upstream's leg ---------------------------------------------------------------------------

    def upstream_layer(self, context: Context, channel: Channel) -> "UpstreamTls":
        """Return the layer that verifies the upstream."""
        return UpstreamTls(context, channel, self)

    def upstream_connection(self, channel: Channel, server: Server) -> SSL.Connection:
        """Return the client end of the upstream's TLS, bound to the one name and to no other."""
        host = _address(server)[0]
        connection = SSL.Connection(self._upstream)
        param = SSL._lib.SSL_get0_param(connection._ssl)  # type: ignore[attr-defined]
        SSL._lib.X509_VERIFY_PARAM_set_hostflags(param, _NO_PARTIAL_WILDCARDS | _NEVER_SUBJECT)  # type: ignore[attr-defined]
        try:
            packed = ip_address(host).packed
        except ValueError:
            name = host.encode("ascii")
            connection.set_tlsext_host_name(name)
            done = SSL._lib.X509_VERIFY_PARAM_set1_host(param, name, len(name))  # type: ignore[attr-defined]
        else:
            done = SSL._lib.X509_VERIFY_PARAM_set1_ip(param, packed, len(packed))  # type: ignore[attr-defined]
        if done != 1:
            raise RuntimeError("the upstream's name could not be bound to its TLS")
        connection.set_alpn_protos(_alpn_offers(channel, server))
        ticket = self._tickets.get(self._ticket_key(channel, server))
        if ticket is not None:
            connection.set_session(ticket)
        connection.set_connect_state()
        return connection

    def established(self, channel: Channel, server: Server, connection: SSL.Connection) -> None:
        """Take note of what the upstream speaks."""
        session = channel.session
        if session is not None and b"h2" in _alpn_offers(channel, server):
            host, port = _address(server)
            self._alpn[session.id, host, port] = connection.get_alpn_proto_negotiated() or b"http/1.1"
            if len(self._alpn) > _MOST_TICKETS:
                self._alpn.popitem(last=False)

    def keep_ticket(self, channel: Channel, server: Server, connection: SSL.Connection) -> None:
        """Keep the session for the next connection of the same sandbox to the same name and address."""
        if channel.session is None:
            return
        ticket = connection.get_session()
        if ticket is not None:
            self._tickets[self._ticket_key(channel, server)] = ticket
            if len(self._tickets) > _MOST_TICKETS:
                self._tickets.popitem(last=False)

    def _ticket_key(self, channel: Channel, server: Server) -> tuple[str, str, str]:
        session = "" if channel.session is None else channel.session.id
        peer = server.peername[0] if server.peername else ""
        host, port = _address(server)
        return session, f"{host}:{port}", peer

    def forget(self, session: str) -> None:
        """Drop everything that was kept for a session that has ended."""
        stores: tuple[OrderedDict[Any, Any], ...] = (self._leaves, self._tickets, self._alpn)
        for store in stores:
            for key in [key for key in store if key[0] == session]:
                del store[key]


def _alpn_offers(channel: Channel, server: Server) -> list[bytes]:
    """Return what the upstream may choose from; a connection that was made for an upgrade says so itself."""
    return list(server.alpn_offers) or ([b"h2", b"http/1.1"] if channel.offers_h2 else [b"http/1.1"])


def _address(server: Server) -> tuple[str, int]:
    if server.address is None:
        raise RuntimeError("an upstream connection has no address")
    return server.address[0], server.address[1]


def _select_alpn(connection: SSL.Connection, offers: list[bytes]) -> Any:
    answer = connection.get_app_data()
    return answer if answer and answer in offers else SSL.NO_OVERLAPPING_PROTOCOLS


def upstream_context(settings: UpstreamSettings) -> SSL.Context:
    """Make the verifying context for a trust store. Raises `ConfigError` when it cannot be read."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION)
    context.set_verify(SSL.VERIFY_PEER, None)
    for file in trust_files(settings, os.environ):
        try:
            context.load_verify_locations(file)
        except SSL.Error as error:
            what, hint = _why_unread(file)
            raise ConfigError(what, where=file, hint=hint) from error
    return context


def _why_unread(file: str) -> tuple[str, str]:
    try:
        Path(file).read_bytes()
    except FileNotFoundError:
        return "there is no such file", "give a PEM file of CA certificates, as this process sees it"
    except OSError:
        # A worker that runs reads only what was there to be read at its start.
        return "a running worker cannot read this file", "restart the gate; its user must be able to read it"
    return "the file holds no certificate that can be read", "give a PEM file of CA certificates"


class _Records(tls.TLSLayer):
    """What both legs share: records in and out, read by return code (`tls_io`)."""

    def on_established(self) -> None:
        """Take note that the handshake is done, before anything that came with its end is read."""

    @override
    def receive_data(self, data: bytes) -> Commands:
        plain, ended = tls_io.read(self.tls, data)
        out = tls_io.drain(self.tls)
        if out:
            yield commands.SendData(self.conn, out)
        if plain:
            yield from self.event_to_child(events.DataReceived(self.conn, plain))
        if ended and self.conn.state & ConnectionState.CAN_READ:
            self.conn.state &= ~ConnectionState.CAN_READ
            yield from self.event_to_child(events.ConnectionClosed(self.conn))

    @override
    def send_data(self, data: bytes) -> Commands:
        tls_io.write(self.tls, data)
        out = tls_io.drain(self.tls)
        if out:
            yield commands.SendData(self.conn, out)

    @override
    def tls_interact(self) -> Commands:
        out = tls_io.drain(self.tls)
        if out:
            yield commands.SendData(self.conn, out)


class ClientTls(_Records, tls.ClientTLSLayer):
    """The client's leg: our parse of the hello, a certificate for its name, no passthrough on failure."""

    def __init__(self, context: Context, channel: Channel, contexts: Contexts) -> None:
        super().__init__(context)
        self.channel = channel
        self.contexts = contexts
        self.hello = HelloReader()
        self.chosen: SSL.Context | None = None

    @override
    def receive_handshake_data(self, data: bytes) -> layer.CommandGenerator[tuple[bool, str | None]]:
        if self.client_hello_parsed:
            return (yield from _handshake(self, data))
        self.recv_buffer.extend(data)
        try:
            hello = self.hello.read(self.recv_buffer)
        except BadHello:
            return False, Reason.CLIENT_TLS.code
        if hello is None:
            self.channel.head_began()
            return False, None
        self.client_hello_parsed = True
        self.conn.sni = hello.sni
        self.conn.alpn_offers = list(hello.alpn)
        self.channel.offers_h2 = b"h2" in hello.alpn
        yield tls.TlsClienthelloHook(mtls.ClientHelloData(self.context, hello))  # type: ignore[arg-type]
        if self.channel.leaf_name is None:
            return False, Reason.INTERNAL_FAULT.code
        yield tls.TlsStartClientHook(mtls.TlsData(self.conn, self.context))
        context = self.contexts.leaf(self.channel.session.id, self.channel.leaf_name) if self.channel.session else None
        if context is None:
            return False, Reason.KEEPER_UNAVAILABLE.code
        self.tls = self.contexts.client_connection(context, self.channel, hello.alpn)
        result = yield from _handshake(self, bytes(self.recv_buffer))
        self.recv_buffer.clear()
        return result

    @override
    def on_established(self) -> None:
        # One clock since CONNECT. An HTTP/2 client speaks at once; an HTTP/1 one may keep a connection in reserve.
        self.channel.head_ended()
        if self.conn.alpn == b"h2":
            self.channel.head_began()

    @override
    def on_handshake_error(self, err: str) -> Commands:
        self.channel.end_reason = self.channel.end_reason or Reason.CLIENT_TLS.code
        self.conn.error = err
        self.channel.tls_failed()
        yield commands.CloseConnection(self.conn)
        self.event_to_child = self.errored  # type: ignore[method-assign]


class UpstreamTls(_Records, tls.ServerTLSLayer):
    """The upstream's leg: verified against the name, failure is `upstream_tls`."""

    def __init__(self, context: Context, channel: Channel, contexts: Contexts) -> None:
        super().__init__(context)
        self.channel = channel
        self.contexts = contexts
        self.kept = False
        self._began = time.monotonic()
        self._deadline: commands.RequestWakeup | None = None

    @override
    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Wakeup) and event.command is self._deadline:
            if self.tunnel_state is tunnel.TunnelState.ESTABLISHING:
                yield from self.on_handshake_error(Reason.UPSTREAM_TIMEOUT.code)
                yield from self._handshake_finished(Reason.UPSTREAM_TIMEOUT.code)
            return
        yield from super()._handle_event(event)

    @override
    def start_tls(self) -> Commands:
        self.tls = self.contexts.upstream_connection(self.channel, self.context.server)
        yield from ()

    @override
    def start_handshake(self) -> Commands:
        # Of the time for one connection, what the dialling has left (V-16).
        left = self.channel.gate.connect_timeout - (time.monotonic() - self._began)
        self._deadline = commands.RequestWakeup(max(left, 0.1))
        yield self._deadline
        yield from self.start_tls()
        yield from self.receive_handshake_data(b"")

    @override
    def receive_handshake_data(self, data: bytes) -> layer.CommandGenerator[tuple[bool, str | None]]:
        done, error = yield from _handshake(self, data)
        if done:
            self.contexts.established(self.channel, self.context.server, self.tls)
        return done, Reason.UPSTREAM_TLS.code if error else None

    @override
    def receive_data(self, data: bytes) -> Commands:
        yield from super().receive_data(data)
        if not self.kept and self.tls is not None:
            # TLS 1.3 tickets come after the handshake, at the latest with the first answer.
            self.kept = True
            self.contexts.keep_ticket(self.channel, self.context.server, self.tls)

    @override
    def on_handshake_error(self, err: str) -> Commands:
        self.conn.error = Reason.UPSTREAM_TLS.code
        yield commands.CloseConnection(self.tunnel_connection)


def _handshake(layer_: _Records, data: bytes) -> layer.CommandGenerator[tuple[bool, str | None]]:
    """Go on with a handshake; (done, error)."""
    if data:
        layer_.tls.bio_write(data)
    try:
        layer_.tls.do_handshake()
    except SSL.WantReadError:
        yield from layer_.tls_interact()
        return False, None
    except SSL.Error:
        yield from layer_.tls_interact()
        return False, "tls"
    conn: Connection = layer_.conn
    conn.alpn = layer_.tls.get_alpn_proto_negotiated()
    conn.timestamp_tls_setup = 1.0
    layer_.on_established()
    yield from layer_.receive_data(b"")
    return True, None


def certify_hook(contexts: Contexts, channel: Channel) -> Awaitable[None] | None:
    """Have the channel's leaf made; None when it is there already."""
    session, name = channel.session, channel.leaf_name
    if session is None or name is None or contexts.leaf(session.id, name) is not None:
        return None

    async def certify() -> None:
        await contexts.certify(session.id, name, denied=channel.denied is not None)

    return certify()
