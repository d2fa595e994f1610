"""Clients that send exactly what they are told, through CONNECT.

with tunnel(gate, "api.allowed.test", 443, token=session.token, ca=gate.state / "ca.pem") as raw:
    raw.send(b"GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n")
    reply = raw.reply()
assert reply.status == 421 and reply.reason == "authority_mismatch"
"""

import base64
import contextlib
import dataclasses
import json
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import h2.config
import h2.connection
import h2.events

__all__ = ["Endpoint", "H2Client", "RawClient", "RawReply", "Refused", "connect", "fetch", "proxy_header", "tunnel"]


class Endpoint(Protocol):
    """Where a gate listens."""

    host: str
    port: int


@dataclasses.dataclass
class RawReply:
    """A reply, with its bytes."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    raw_head: bytes = b""
    trailers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    early: list[int] = dataclasses.field(default_factory=list)
    """Statuses of 1xx replies before."""
    complete: bool = True
    """False if the connection ended before the body did."""

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def header_all(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)

    @property
    def reason(self) -> str | None:
        """The `reason` of a denial's problem document, or None."""
        if "problem+json" not in (self.header("content-type") or ""):
            return None
        return str(self.json()["reason"])


class Refused(Exception):
    """A CONNECT that was not answered with 200; `reply` is the answer, None for a closed connection."""

    def __init__(self, reply: RawReply | None) -> None:
        super().__init__(f"CONNECT refused: {reply}")
        self.reply = reply


def proxy_header(token: str | None, *, user: str = "s") -> bytes:
    """Return the Proxy-Authorization line of a session's token, or nothing."""
    if token is None:
        return b""
    return b"Proxy-Authorization: Basic " + base64.b64encode(f"{user}:{token}".encode()) + b"\r\n"


class RawClient:
    """A socket with a buffer, and just enough HTTP/1.1 to read a reply."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.since = 0
        """How much the log had when it was opened: a port may have been another client's before."""
        self._buffer = b""

    def close(self) -> None:
        """Close."""
        self.sock.close()

    def start_tls(
        self, server_name: str | None, *, ca: Path | None, alpn: Sequence[str] = ("http/1.1",), **options: Any
    ) -> ssl.SSLSocket:
        """Start TLS as a client; without `ca` nothing is verified."""
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        if ca is None or server_name is None:
            context.check_hostname = False
        if ca is None:
            context.verify_mode = ssl.CERT_NONE
        if alpn:
            context.set_alpn_protocols(list(alpn))
        for name, value in options.items():
            setattr(context, name, value)
        self.sock = context.wrap_socket(self.sock, server_hostname=server_name)
        return self.sock

    def send(self, data: bytes) -> None:
        """Send exact bytes."""
        self.sock.sendall(data)

    def send_slowly(self, pieces: Iterable[bytes]) -> None:
        """Send each piece as a packet of its own."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            self.sock.sendall(piece)

    def read(self, size: int = 65536) -> bytes:
        """Return what is there; b"" at the end, or when the peer broke the connection."""
        if self._buffer:
            data, self._buffer = self._buffer[:size], self._buffer[size:]
            return data
        try:
            return self.sock.recv(size)
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def read_all(self) -> bytes:
        """Return everything until the peer closes."""
        parts = []
        while data := self.read():
            parts.append(data)
        return b"".join(parts)

    def closed(self) -> bool:
        """Return True if the peer has nothing more to say (waits for it, up to the time-out)."""
        return self.read(1) == b""

    def request(
        self, method: str, target: str, *, host: str, headers: Sequence[tuple[str, str]] = (), body: bytes | None = None
    ) -> RawReply:
        """Send a well-formed request and read its reply."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return self.reply(method=method)

    def reply(self, *, method: str = "GET") -> RawReply:
        """Read one reply; raise EOFError if the connection ends before its head does."""
        early: list[int] = []
        while True:
            head = self.until(b"\r\n\r\n")
            status, headers = _parse_head(head)
            if status >= 200 or status == 101:
                break
            early.append(status)
        reply = RawReply(status, headers, b"", head, early=early)
        if method == "HEAD" or status in (101, 204, 304) or (method == "CONNECT" and status == 200):
            return reply
        coding, length = reply.header("transfer-encoding"), reply.header("content-length")
        if coding and coding.lower() == "chunked":
            self._read_chunked(reply)
        elif length is not None:
            reply.body = self._exactly(int(length))
            reply.complete = len(reply.body) == int(length)
        else:
            reply.body = self.read_all()
        return reply

    def head(self) -> RawReply:
        """Read only the head of a reply; the body stays to be `read`."""
        head = self.until(b"\r\n\r\n")
        status, headers = _parse_head(head)
        return RawReply(status, headers, b"", head)

    def _read_chunked(self, reply: RawReply) -> None:
        parts = []
        try:
            while size := int(self.until(b"\r\n").split(b";")[0], 16):
                data = self._exactly(size)
                parts.append(data)
                if len(data) < size:
                    raise EOFError
                self.until(b"\r\n")
            while (line := self.until(b"\r\n")) != b"\r\n":
                name, _, value = line.decode("latin-1").partition(":")
                reply.trailers.append((name, value.strip()))
        except EOFError:
            reply.complete = False
        reply.body = b"".join(parts)

    def until(self, mark: bytes) -> bytes:
        """Read up to and with `mark`; raise EOFError if the peer ends before."""
        parts = b""
        while mark not in parts:
            data = self.read()
            if not data:
                raise EOFError(parts)
            parts += data
        found, _, self._buffer = parts.partition(mark)[0], mark, parts.partition(mark)[2] + self._buffer
        return found + mark

    def _exactly(self, size: int) -> bytes:
        parts, left = [], size
        while left and (data := self.read(min(left, 256 * 1024))):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)


def _parse_head(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    fields = [line.partition(":") for line in lines[1:] if line]
    return status, [(name, value.strip()) for name, _, value in fields]


@contextlib.contextmanager
def connect(endpoint: Endpoint, *, timeout: float = 10, source: str | None = None) -> Iterator[RawClient]:
    """Open a TCP connection to a gate (or to anything else with `host` and `port`), from the address `source`.

    An endpoint may have a `dial` of its own.
    """
    own = None if source is None else (source, 0)
    dial = getattr(endpoint, "dial", None)
    if dial is not None:
        sock = dial(timeout)
    else:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout, own)
    client = RawClient(sock)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def tunnel(
    gate: Endpoint,
    host: str,
    port: int = 443,
    *,
    token: str | None,
    ca: Path | None = None,
    sni: str | None = "",
    alpn: Sequence[str] = ("http/1.1",),
    headers: bytes = b"",
    tls: bool = True,
    timeout: float = 10,
    source: str | None = None,
) -> Iterator[RawClient]:
    """CONNECT to `host:port`, then TLS unless `tls=False`; raise `Refused` if the gate says no at CONNECT.

    `sni` is `host` unless given; None sends none. `ca` is the gate's `ca.pem`.
    """
    with connect(gate, timeout=timeout, source=source) as client:
        authority = f"{host}:{port}".encode("latin-1")
        client.send(
            b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (authority, authority, proxy_header(token), headers)
        )
        try:
            reply = client.reply(method="CONNECT")
        except EOFError:
            raise Refused(None) from None
        if reply.status != 200:
            raise Refused(reply)
        if tls:
            client.start_tls(host if sni == "" else sni, ca=ca, alpn=alpn)
        yield client


def fetch(
    gate: Endpoint,
    url_host: str,
    port: int,
    target: str = "/",
    *,
    token: str | None,
    ca: Path | None = None,
    method: str = "GET",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
    timeout: float = 10,
) -> RawReply:
    """Make one request through a tunnel of its own; a refusal at CONNECT is returned like any reply."""
    try:
        with tunnel(gate, url_host, port, token=token, ca=ca, timeout=timeout) as client:
            host = url_host if port == 443 else f"{url_host}:{port}"
            return client.request(method, target, host=host, headers=headers, body=body)
    except Refused as refused:
        if refused.reply is None:
            raise
        return refused.reply


class H2Client:
    """HTTP/2 over a tunnel whose TLS chose h2."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="latin-1"))
        self.h2.initiate_connection()
        self.flush()
        self._replies: dict[int, RawReply] = {}
        self._done: set[int] = set()
        self.reset: dict[int, int] = {}
        """Streams that the peer reset, with the error code."""
        self.closed = False

    def flush(self) -> None:
        """Send what h2 has to say."""
        self._client.send(self.h2.data_to_send())

    def begin(
        self,
        method: str,
        target: str,
        *,
        authority: str,
        headers: Sequence[tuple[str, str]] = (),
        scheme: str = "https",
        body: bytes | None = None,
        end: bool = True,
    ) -> int:
        """Send a request and return its stream; with `end=False` the stream stays open for `data`."""
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", target)]
        self.h2.send_headers(stream, [*pseudo, *headers], end_stream=end and body is None)
        self.flush()
        if body is not None:
            self.data(stream, body, end=end)
        return stream

    def data(self, stream: int, body: bytes, *, end: bool = True) -> None:
        """Send body bytes within the peer's window."""
        while body:
            while not self.h2.local_flow_control_window(stream):
                if not self._pump():
                    return
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            self.h2.send_data(stream, body[:size])
            body = body[size:]
            self.flush()
        if end:
            self.h2.end_stream(stream)
            self.flush()

    def reply(self, stream: int) -> RawReply:
        """Read until `stream` has ended; raise EOFError if the connection or the stream breaks before its head."""
        while stream not in self._done and stream not in self.reset:
            if not self._pump():
                break
        if stream not in self._replies:
            raise EOFError(f"stream {stream}: {self.reset.get(stream, 'connection closed')}")
        reply = self._replies[stream]
        reply.complete = stream in self._done
        return reply

    def request(self, method: str, target: str, *, authority: str, **more: Any) -> RawReply:
        """Send a request and read its reply."""
        return self.reply(self.begin(method, target, authority=authority, **more))

    def _pump(self) -> bool:
        data = self._client.read()
        if not data:
            self.closed = True
            return False
        for event in self.h2.receive_data(data):
            self._take(event)
        with contextlib.suppress(OSError):  # the peer may have left behind its last word
            self.flush()
        return True

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                fields = [(str(name), str(value)) for name, value in event.headers]
                status = int(dict(fields)[":status"])
                self._replies[event.stream_id] = RawReply(status, [f for f in fields if not f[0].startswith(":")], b"")
            case h2.events.TrailersReceived():
                self._replies[event.stream_id].trailers = [(str(name), str(value)) for name, value in event.headers]
            case h2.events.DataReceived():
                self._replies[event.stream_id].body += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self._done.add(event.stream_id)
            case h2.events.StreamReset():
                self.reset[event.stream_id] = int(event.error_code)
            case h2.events.ConnectionTerminated():
                self.closed = True
            case _:
                pass
