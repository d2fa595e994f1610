"""What the fuzz targets of the data plane share: seeds, and one whole connection played from any bytes."""

import asyncio
import tempfile
from pathlib import Path

from tests.unit.exchange.stage import authorization, stage
from tests.unit.runtime.play import Play
from tidegate.exchange.head import BadReply, HeadLimits, RequestHead, parse_request_head, parse_response_head
from tidegate.policy.reasons import Reason
from tidegate.runtime.hello import BadHello, Hello, parse_hello

TOKEN = b"Proxy-Authorization: " + authorization().encode() + b"\r\n"
GET = b"GET http://plain.test/a HTTP/1.1\r\nHost: plain.test\r\n" + TOKEN + b"\r\n"
POST = b"POST http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\nTransfer-Encoding: chunked\r\n" + TOKEN + b"\r\n"
CHUNKS = b"5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n"
COUNTED = b"POST http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\nContent-Length: 5\r\n" + TOKEN + b"\r\nhello"
EVIL = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n" + TOKEN + b"\r\n"
INSIDE = b"GET /a HTTP/1.1\r\nHost: plain.test\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED_OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
HELLO = (
    b"\x16\x03\x01\x00\x4c\x01\x00\x00\x48\x03\x03" + b"r" * 32 + b"\x00\x00\x02\x13\x01\x01\x00\x00\x1d"
    b"\x00\x00\x00\x10\x00\x0e\x00\x00\x0bsealed.test\x00\x10\x00\x05\x00\x03\x02h2"
)


def connect(authority: bytes) -> bytes:
    return b"CONNECT " + authority + b" HTTP/1.1\r\nHost: " + authority + b"\r\n" + TOKEN + b"\r\n"


CLIENT_SEEDS = (
    GET, POST + CHUNKS, COUNTED, EVIL, GET + EVIL + GET, connect(b"plain.test:80") + INSIDE,
    connect(b"sealed.test:443") + HELLO, connect(b"raw.test:9000") + b"raw", connect(b"api.test:443") + HELLO,
    connect(b"10.0.0.1:443") + connect(b"evil.test:443") + INSIDE, b"\r\n" + GET, b"SSH-2.0-x\r\n",
)  # fmt: skip
SERVER_SEEDS = (
    OK, CHUNKED_OK, b"HTTP/1.1 100 Go\r\n\r\n" + OK, b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nrest",
    b"HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\n\r\n", b"junk\r\n\r\n", OK + OK,
    b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\n\r\nframe",
)  # fmt: skip

LIMITS = HeadLimits()


def read_request(raw: bytes) -> None:
    """A head that is accepted has one reading: no bare CR or LF, one Host, one length."""
    head = parse_request_head(raw, LIMITS)
    if isinstance(head, Reason):
        return
    if not isinstance(head, RequestHead):
        raise TypeError("neither head nor reason")
    names = [name.lower() for name, _ in head.headers]
    if names.count(b"host") > 1 or names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
        raise ValueError(f"two readings: {raw!r}")
    if any(byte in part for field in head.headers for part in field for byte in (b"\r", b"\n", b"\0")):
        raise ValueError(f"a control character in a field: {raw!r}")
    if b" " in head.target or not head.target.isascii() or head.method != head.method.upper():
        raise ValueError(f"not a request line: {raw!r}")


def read_response(raw: bytes, method: str = "GET") -> None:
    """A reply that is accepted has one length and fields of one line."""
    try:
        head = parse_response_head(raw, method=method, limits=LIMITS)
    except BadReply:
        return
    names = [name.lower() for name, _ in head.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise ValueError(f"two readings: {raw!r}")
    if not 100 <= head.status <= 999 or b"\n" in head.reason:
        raise ValueError(f"not a status line: {raw!r}")


def read_hello(raw: bytes) -> None:
    """A hello is whole, not yet whole, or bad; and it does not change with bytes that come behind it."""
    try:
        found = parse_hello(raw)
    except BadHello:
        return
    if isinstance(found, Hello) and parse_hello(raw + b"\x17\x03\x03") != found:
        raise ValueError(f"the hello depends on what follows it: {raw!r}")


async def _play(client: list[bytes], server: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play = Play(stage(Path(folder)))
        for turn in range(max(len(client), len(server))):
            if turn < len(client):
                await play.client(client[turn])
            if turn < len(server):
                await (play.server(server[turn]) if server[turn] else play.server_leaves())
        await play.leave()
        play.channel.close()
        if b"evil.test" in play.upstream and not play.channel.opaque:
            raise ValueError("a denied name went upstream")
        if play.stage.records("fault"):
            raise ValueError("the gate failed")
        decided = [line for line in play.stage.phases() if line[1] == "decision"]
        ended = [line for line in play.stage.phases() if line[1] == "end"]
        if len(decided) != len(ended):
            raise ValueError(f"{len(decided)} decisions, {len(ended)} ends: {play.stage.phases()}")


def play(client: list[bytes], server: list[bytes]) -> None:
    """Play a connection; an empty piece of the server's means that it closes. Raises for what must not be.

    `Play` itself checks, after each turn, that nothing was dialled without a pin and that no request
    went upstream without an allow on record.
    """
    asyncio.run(_play(client, server))
