"""V-06: frames and chunks that carry nothing end their own connection; another session is served meanwhile."""

import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawClient
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor

API = "api.allowed.test"
CONNECTIONS = 8
SECONDS = 3.0


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4)
FLOODS = {
    "priority": frame(2, b"\0\0\0\0\1", stream=9),
    "settings": frame(4),
    "ping-ack": frame(6, b"12345678", flags=1),
    "window-update": frame(8, b"\0\0\0\1"),
    "unknown": frame(0xEE),
    "chunks": b"1\r\na\r\n",
}


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Gate, Upstream]]:
    with (
        Authority() as ca,
        dns_server({API: addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(API,)) as server,
        gate(configuration(allow=[rule(API, port=server.port)], dns=dns, ca=ca)) as running,
    ):
        yield running, server


def flood(visitor: Visitor, server: Upstream, kind: str, stop: threading.Event) -> int:
    """Open connection after connection and send the one thing without end; return how many the gate ended."""
    ended = 0
    while not stop.is_set():
        with (
            contextlib.suppress(OSError, AssertionError),
            visitor.tunnel(server, alpn=("http/1.1" if kind == "chunks" else "h2",)) as raw,
        ):
            ended += _send(raw, visitor.authority(server), kind, stop)
    return ended


def _send(raw: RawClient, authority: str, kind: str, stop: threading.Event) -> int:
    post = f"POST /echo HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw.send(post.encode() if kind == "chunks" else PREFACE)
    many = FLOODS[kind] * 3000
    raw.sock.settimeout(1.0)
    try:
        while not stop.is_set():
            raw.sock.sendall(many)
    except OSError:
        return 1
    return 0


@pytest.mark.parametrize("kind", FLOODS)
def test_V_06_a_flood_of_framing_costs_its_own_session(world: tuple[Gate, Upstream], kind: str) -> None:
    running, server = world
    flooder, other = Visitor(running, running.session()), Visitor(running, running.session())
    stop = threading.Event()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        floods = [pool.submit(flood, flooder, server, kind, stop) for _ in range(CONNECTIONS)]
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                begun = time.monotonic()
                assert other.get(server, "/bytes/10").status == 200
                assert time.monotonic() - begun < 2.0
        finally:
            stop.set()
        assert all(one.result(timeout=30) for one in floods), "each connection was ended by the gate"
    assert any(line["reason"] == "ambiguous" for line in flooder.log()), "and the log says of whom"
