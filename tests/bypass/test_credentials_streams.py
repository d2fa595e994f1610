"""A reply that began before its session had the secret must not bring it, on this worker or on another.

The sandbox holds streams open, then has the secret put on a request; the upstream gives what it saw to the streams.
Each case runs on one worker and on two; with two there are enough streams that both have some.
"""

import asyncio
import contextlib
import functools
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawClient
from tests.lab.dns import addresses, dns_server
from tests.lab.folder import open_folder
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream, upstream
from tests.lab.visitor import Visitor, bearer, place

HOST = "api.allowed.test"
SECRET = "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"
SECOND = "sk-Next-8hT4nW6bX1qJ3vC9mF5zK7dR2gL0pS"
STREAMS = 6
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def frames(data: bytes) -> bytes:
    """One text message in two frames with a ping between them."""
    half = len(data) // 2
    first, second = data[:half], data[half:]
    return bytes([0x01, len(first)]) + first + b"\x89\x01p" + bytes([0x80, len(second)]) + second


def zipped(data: bytes) -> bytes:
    return chunk(gzip.compress(data)) + b"0\r\n\r\n"


def polled(data: bytes) -> bytes:
    return data.ljust(200)


def polled_much(data: bytes) -> bytes:
    return data.ljust(100_000)


def event(data: bytes) -> bytes:
    return chunk(b"data: " + data + b"\n\n") + b"0\r\n\r\n"


def message(data: bytes) -> bytes:
    return bytes([0x81, len(data)]) + data


# kind -> (head, what is sent before the secret, how it is sent after)
KINDS: dict[str, tuple[bytes, bytes, Callable[[bytes], bytes]]] = {
    "events": (CHUNKED + b"\r\n", chunk(b"data: hello\n\n"), event),
    "events-gzip": (CHUNKED + b"Content-Encoding: gzip\r\n\r\n", b"", zipped),
    "long-poll": (b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n", b"", polled),
    "long-poll-large": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"", polled_much),
    "until-close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"hello", bytes),
    "web-socket": (SWITCH + b"\r\n", message(b"hello"), message),
    "web-socket-frames": (SWITCH + b"\r\n", message(b"hello"), frames),
}
GATHERED = ("long-poll",)  # told whole, with its true length


@dataclass
class World:
    gate: Gate
    server: Upstream
    secret: Path
    gone: threading.Event
    open: int = 0
    seen: str = ""

    def route(self) -> None:
        """Serve `/feed/KIND`, which waits for `gone`, and `/store`, which keeps what it is given."""

        async def store(connection: Connection, request: Request) -> Reply:
            self.seen = request.header("authorization") or ""
            return Reply(chunks=b"ok")

        async def feed(connection: Connection, request: Request) -> None:
            head, before, after = KINDS[request.path.rpartition("/")[2]]
            await connection.send(head + before)
            self.open += 1
            await asyncio.to_thread(self.gone.wait, 30)
            await connection.send(after(f"it was {self.seen}".encode()))
            connection.keep = False

        self.server.route("/store", store)
        self.server.route("/feed/**", feed)

    def stream(self, visitor: Visitor, kind: str, stack: contextlib.ExitStack) -> RawClient:
        raw = stack.enter_context(visitor.tunnel(self.server, HOST))
        fields = UPGRADE if kind.startswith("web-socket") else "Connection: close\r\n"
        raw.send(f"GET /feed/{kind} HTTP/1.1\r\nHost: {visitor.authority(self.server, HOST)}\r\n{fields}\r\n".encode())
        raw.sock.settimeout(10)
        return raw

    def store(self, visitor: Visitor) -> None:
        """Have the secret put on a request."""
        reply = visitor.get(
            self.server, "/store", host=HOST, headers=[bearer(visitor.session.placeholder("KEY"))], timeout=15
        )
        assert reply.status == 200, reply.body


@pytest.fixture(scope="module", params=[1, 2], ids=["one-worker", "two-workers"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with open_folder() as folder, made_world(folder, workers=request.param) as made:
        yield made


@contextlib.contextmanager
def made_world(folder: Path, *, workers: int) -> Iterator[World]:
    secret = folder / "secret"
    secret.write_text(SECRET)
    key = {
        "source": {"command": ["/bin/cat", str(secret)]},
        "for": [{"host": HOST, "methods": ["GET"], "paths": ["/store"]}],
        "place": place(),
        "placeholder": {"shape": "generic", "env": "KEY"},
        "ttl_seconds": 10,
    }
    with (
        Authority() as ca,
        dns_server({HOST: addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(HOST,)) as server,
        gate(
            configuration(
                allow=[rule(HOST, port=server.port, websocket=True, credential="key")],
                dns=dns,
                ca=ca,
                credentials={"key": key},
                workers=workers,
            )
        ) as running,
    ):
        made = World(running, server, secret, threading.Event())
        made.route()
        yield made


def _feeding(kind: str, server: Upstream) -> bool:
    return sum(request.path == f"/feed/{kind}" for request in server.requests) >= STREAMS


@contextlib.contextmanager
def streams(world: World, visitor: Visitor, *kinds: str) -> Iterator[list[RawClient]]:
    world.gone.clear()
    world.open = 0
    with contextlib.ExitStack() as stack:
        try:
            opened = []
            for kind in kinds:
                own = [world.stream(visitor, kind, stack) for _ in range(STREAMS)]
                assert world.server.wait(functools.partial(_feeding, kind))
                for raw in own if kind not in GATHERED else ():
                    raw.until(b"\r\n\r\n")  # the gate has judged the head, and searches by what it knew then
                opened += own
            yield opened
        finally:
            world.gone.set()


def received(raw: RawClient) -> bytes:
    said = b""
    with contextlib.suppress(OSError):
        while data := raw.read():
            said += data
    return said


def readable(data: bytes) -> bytes:
    """Return the bytes as they came and, where they are gzip, unpacked as far as they go."""
    at = data.find(b"\x1f\x8b")
    if at >= 0:
        with contextlib.suppress(EOFError, OSError):
            data += gzip.decompress(data[at:].partition(b"\r\n0\r\n")[0])
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_began_before_the_secret_does_not_bring_it(world: World, kind: str) -> None:
    world.secret.write_text(SECRET)
    world.server.reset()
    visitor = Visitor(world.gate, world.gate.session(credentials=["key"]))
    with streams(world, visitor, kind) as opened:
        world.store(visitor)
        assert world.seen == f"Bearer {SECRET}"
        world.gone.set()
        said = [received(raw) for raw in opened]
    placeholder = visitor.session.placeholder("KEY").encode()
    for data in said:
        assert SECRET.encode() not in readable(data)
        assert SECRET[:12].encode() not in readable(data)
    if kind in ("events", "until-close"):
        assert all(placeholder in data for data in said)
    if kind != "events-gzip":
        assert visitor.wait_log(type="http", phase="end", reason="reflected_secret")


def test_a_reply_that_began_before_a_rotation_does_not_bring_the_new_secret(world: World) -> None:
    world.secret.write_text(SECRET)
    world.server.reset()
    visitor = Visitor(world.gate, world.gate.session(credentials=["key"]))
    world.store(visitor)
    assert world.seen == f"Bearer {SECRET}"
    with streams(world, visitor, "events", "web-socket-frames") as opened:
        world.secret.write_text(SECOND)
        deadline = time.monotonic() + 14
        while world.seen != f"Bearer {SECOND}":
            assert time.monotonic() < deadline, "the lease outlived its ten seconds"
            time.sleep(0.2)  # its life is wall time: there is nothing to wait for
            world.store(visitor)
        world.gone.set()
        said = [received(raw) for raw in opened]
    for data in said:
        assert SECOND.encode() not in data
        assert SECOND[:12].encode() not in data
    reflected = visitor.wait_log(
        lambda lines: len(lines) >= len(said), type="http", phase="end", reason="reflected_secret"
    )
    assert {line["http"]["path"] for line in reflected} == {"/feed/events", "/feed/web-socket-frames"}
