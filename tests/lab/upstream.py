"""Real servers on loopback: HTTP/1.1 to the byte, HTTP/2, WebSocket, with and without TLS.

    with Authority() as ca, upstream(ca=ca, names=("api.allowed.test",)) as server:
        server.route("/odd", b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nab")  # exact bytes, then close
        server.route("/slow", my_coroutine)  # async def (Connection, Request) -> Reply | None
        ...
        assert server.connections == 0 and server.bytes_in == 0

Paths without a route of their own are those of `http.standard_reply`; `/ws` echoes WebSocket messages.
A server says what came to it: `requests`, `connections` (TCP), `handshakes` (TLS), `bytes_in`.
"""

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import wsproto
import wsproto.events

from tests.lab.certs import Authority
from tests.lab.http import Reply, Request, standard_reply
from tests.lab.loop import LoopThread, loop_thread
from tests.lab.sockets import Bind, bind_loopback

__all__ = ["Connection", "Handler", "Upstream", "drip", "hang", "reset", "says", "upstream"]


class Upstream:
    """A running server; see the module's text."""

    def __init__(self, address: str, port: int, names: tuple[str, ...], thread: LoopThread) -> None:
        self.host = address
        self.port = port
        self.names = names
        self.requests: list[Request] = []
        self.connections = 0
        self.handshakes = 0
        self.bytes_in = 0
        self.messages: list[str | bytes] = []
        """WebSocket messages received."""
        self.interim: dict[str, bytes] = {}
        self._routes: dict[str, Handler | bytes] = {}
        self._thread = thread
        self._events_may_go = threading.Event()
        self._events_may_go.set()
        self._permits = asyncio.Semaphore(0)
        self._gated = False
        self._changed = threading.Condition()

    @property
    def authority(self) -> str:
        """`name:port` of the first name."""
        return f"{self.names[0]}:{self.port}"

    def route(self, path: str, handler: "Handler | bytes") -> None:
        """Serve `path` by a handler, or by exact bytes after which the connection is closed; `/x/**` is all below."""
        self._routes[path] = handler

    def gate_events(self) -> None:
        """From now on `/sse/N` sends one event for each `release_event`."""
        self._gated = True

    def release_event(self) -> None:
        """Let one server-sent event go."""
        self._thread.loop.call_soon_threadsafe(self._permits.release)

    def reset(self) -> None:
        """Forget what came."""
        self.requests.clear()
        self.messages.clear()
        self.connections = self.handshakes = self.bytes_in = 0

    def wait(self, condition: Callable[["Upstream"], bool], *, timeout: float = 10) -> bool:
        """Wait until `condition(self)` holds; each request, byte and connection wakes it."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout)

    def handler(self, path: str) -> "Handler | bytes | None":
        """Return the route of `path`."""
        if path in self._routes:
            return self._routes[path]
        below = (route for key, route in self._routes.items() if key.endswith("/**") and path.startswith(key[:-2]))
        return next(below, None)

    def saw(self, *, connections: int = 0, handshakes: int = 0, bytes_in: int = 0) -> None:
        """Count."""
        with self._changed:
            self.connections += connections
            self.handshakes += handshakes
            self.bytes_in += bytes_in
            self._changed.notify_all()

    def keep(self, request: Request) -> None:
        """Keep a request."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    async def pause(self) -> AsyncIterator[None]:
        """Yield whenever one more event may go."""
        while True:
            if self._gated:
                await self._permits.acquire()
            yield


@dataclasses.dataclass
class Connection:
    """One HTTP/1 connection, as a handler sees it."""

    server: Upstream
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    sni: str | None = None
    keep: bool = True

    async def send(self, data: bytes) -> None:
        """Send exact bytes."""
        self.writer.write(data)
        await asyncio.sleep(0)  # or a sender without end would never learn that its peer has left
        if self.writer.is_closing():
            raise ConnectionResetError
        await self.writer.drain()

    async def read(self, size: int = 65536) -> bytes:
        """Read what is there, counting it."""
        data = await self.reader.read(size)
        self.server.saw(bytes_in=len(data))
        return data

    async def read_exactly(self, size: int) -> bytes:
        """Read `size` bytes, counting them."""
        left = size
        parts: list[bytes] = []
        while left:
            data = await self.read(min(left, 256 * 1024))
            if not data:
                raise asyncio.IncompleteReadError(b"".join(parts), size)
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    async def read_line(self) -> bytes:
        """Read one line, counting it."""
        line = await self.reader.readuntil(b"\n")
        self.server.saw(bytes_in=len(line))
        return line

    def abort(self) -> None:
        """Send RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.writer.transport.abort()
        self.keep = False


type Handler = Callable[[Connection, Request], Awaitable[Reply | None]]


async def hang(connection: Connection, request: Request) -> None:
    """Say nothing for ever."""
    await asyncio.Event().wait()


async def reset(connection: Connection, request: Request) -> None:
    """Break the connection with RST."""
    connection.abort()


def says(body: bytes) -> Handler:
    """Answer 200 with this body."""

    async def handler(connection: Connection, request: Request) -> Reply:
        return Reply(200, [], body)

    return handler


def drip(data: bytes, *, seconds: float) -> Handler:
    """Send exact bytes one at a time, `seconds` apart, then close."""

    async def handler(connection: Connection, request: Request) -> None:
        for byte in data:
            await connection.send(bytes([byte]))
            await asyncio.sleep(seconds)
        connection.keep = False

    return handler


async def _read_request(connection: Connection) -> Request | None:
    head = b""
    while not head.endswith((b"\r\n\r\n", b"\n\n")):
        try:
            head += await connection.read_line()
        except asyncio.IncompleteReadError as error:
            connection.server.saw(bytes_in=len(error.partial))
            return None
    lines = head.replace(b"\r\n", b"\n").split(b"\n")
    method, _, rest = lines[0].decode("latin-1").partition(" ")
    target, _, version = rest.rpartition(" ")
    headers = []
    for line in lines[1:]:
        if line:
            name, _, value = line.partition(b":")
            headers.append((name, value.strip()))
    return Request(
        method, target, headers, version=version, raw_head=head, connection=connection.number, sni=connection.sni
    )


async def _read_body(connection: Connection, request: Request) -> None:
    if (request.header("transfer-encoding") or "").lower() == "chunked":
        parts = []
        while True:
            size = int((await connection.read_line()).split(b";")[0], 16)
            if size == 0:
                break
            parts.append(await connection.read_exactly(size))
            await connection.read_line()
        while (line := (await connection.read_line()).strip()) != b"":
            name, _, value = line.partition(b":")
            request.trailers.append((name, value.strip()))
        request.body = b"".join(parts)
    else:
        request.body = await connection.read_exactly(int(request.header("content-length") or "0"))


def _head(status: int, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} Lab", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _pieces(reply: Reply) -> AsyncIterator[bytes]:
    if not isinstance(reply.chunks, bytes):
        async for chunk in reply.chunks:
            yield chunk
        return
    for start in range(0, len(reply.chunks), 256 * 1024):
        yield reply.chunks[start : start + 256 * 1024]


async def _send_reply(connection: Connection, request: Request, reply: Reply) -> None:
    for status, headers in reply.early:
        await connection.send(_head(status, headers))
    bare = request.method == "HEAD" or reply.status in (204, 304)
    headers = list(reply.headers)
    if reply.framing == "chunked":
        headers.append(("transfer-encoding", "chunked"))
        if reply.trailers:
            headers.append(("trailer", ", ".join(name for name, _ in reply.trailers)))
    elif reply.framing == "close":
        headers.append(("connection", "close"))
        connection.keep = False
    elif isinstance(reply.chunks, bytes) and reply.status not in (204, 304):
        headers.append(("content-length", str(len(reply.chunks))))
    await connection.send(_head(reply.status, headers))
    if bare:
        return
    async for chunk in _pieces(reply):
        await connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk) if reply.framing == "chunked" else chunk)
    if reply.framing == "chunked":
        end = "".join(f"{name}: {value}\r\n" for name, value in reply.trailers)
        await connection.send(b"0\r\n" + end.encode("latin-1") + b"\r\n")


async def _web_socket(connection: Connection, request: Request) -> None:
    ws = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    ws.receive_data(request.raw_head)
    while connection.keep:
        for event in ws.events():
            match event:
                case wsproto.events.Request():
                    chosen = event.subprotocols[0] if event.subprotocols else None
                    await connection.send(ws.send(wsproto.events.AcceptConnection(subprotocol=chosen)))
                case wsproto.events.TextMessage() | wsproto.events.BytesMessage():
                    data = event.data if isinstance(event.data, str) else bytes(event.data)
                    connection.server.messages.append(data)
                    await connection.send(ws.send(_message(data)))
                case wsproto.events.Ping():
                    await connection.send(ws.send(event.response()))
                case wsproto.events.CloseConnection():
                    await connection.send(ws.send(event.response()))
                    connection.keep = False
        if connection.keep:
            received = await connection.read()
            if not received:
                break
            ws.receive_data(received)
    connection.keep = False


def _message(data: str | bytes) -> wsproto.events.Event:
    if isinstance(data, str):
        return wsproto.events.TextMessage(data)
    return wsproto.events.BytesMessage(bytearray(data))


async def serve_http1(connection: Connection) -> None:
    """Serve one HTTP/1 connection until either side ends it."""
    server = connection.server
    while connection.keep:
        request = await _read_request(connection)
        if request is None:
            return
        route = server.handler(request.path)
        if request.path == "/ws" and (request.header("upgrade") or "").lower() == "websocket":
            server.keep(request)
            await _web_socket(connection, request)
            return
        if (request.header("expect") or "").lower() == "100-continue":
            await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (callable(route) and getattr(route, "reads_body", False)):
            await _read_body(connection, request)
        server.keep(request)
        if isinstance(route, bytes):
            await connection.send(route)
            return
        reply = await route(connection, request) if route else standard_reply(request, server.pause)
        if reply is not None:
            await _send_reply(connection, request, reply)
        if (request.header("connection") or "").lower() == "close" or request.version == "HTTP/1.0":
            return


async def _accept(
    server: Upstream, context: ssl.SSLContext | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    server.saw(connections=1)
    connection = Connection(server, reader, writer, server.connections)
    try:
        if context is not None:
            await writer.start_tls(context)
            connection.sni = getattr(writer.get_extra_info("ssl_object"), "lab_sni", None)
            server.saw(handshakes=1)
            if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                from tests.lab.upstream_h2 import serve_http2

                await serve_http2(connection)
                return
        await serve_http1(connection)
    except (OSError, asyncio.IncompleteReadError, ssl.SSLError, ValueError):
        pass  # the peer's doing: what came is in the counters
    finally:
        writer.close()


def _remember_sni(obj: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
    obj.lab_sni = name  # type: ignore[attr-defined]


@contextlib.contextmanager
def upstream(
    *,
    ca: Authority | None = None,
    names: tuple[str, ...] = ("api.allowed.test",),
    address: str = "127.0.0.1",
    port: int = 0,
    alpn: tuple[str, ...] = ("http/1.1",),
    context: ssl.SSLContext | None = None,
    routes: Mapping[str, "Handler | bytes"] | None = None,
    bind: Bind = bind_loopback,
) -> Iterator[Upstream]:
    """Run a server until the block ends: TLS with a certificate of `ca` for `names`, plain HTTP without `ca`.

    `alpn=("h2",)` or `("h2", "http/1.1")` speaks HTTP/2; `context` replaces the TLS settings (expired, wrong name …).
    """
    if context is None and ca is not None:
        context = ca.server_context(names, alpn=alpn)
    if context is not None:
        context.sni_callback = _remember_sni
    listener = bind(address, port, socket.SOCK_STREAM)
    bound = int(listener.getsockname()[1])
    with loop_thread(f"upstream-{bound}") as thread:
        server = Upstream(address, bound, names, thread)
        for path, handler in (routes or {}).items():
            server.route(path, handler)

        async def start() -> asyncio.Server:
            return await asyncio.start_server(
                lambda reader, writer: _accept(server, context, reader, writer), sock=listener, limit=1024 * 1024
            )

        async def stop(running: asyncio.Server) -> None:
            running.close()
            running.abort_clients()

        running = thread.run(start())
        try:
            yield server
        finally:
            thread.run(stop(running))
