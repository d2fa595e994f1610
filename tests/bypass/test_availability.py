"""Group V: what stands still, floods or breaks ends at a bound, costs its own session alone, and is in the log.

Longer than a module should be, since the whole group floods one gate and asks after each whether it is well.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.certs import Authority
from tests.lab.client import H2Client, RawClient, RawReply, connect, fetch, proxy_header
from tests.lab.dns import DnsServer, addresses, delayed, dns_server, silent
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream, hang, upstream
from tests.lab.visitor import Visitor, bearer, place

API, SLOW, GLOB, LATE = "api.allowed.test", "slow.allowed.test", "glob.allowed.test", "late.allowed.test"
MUTE, CAPPED, KEYLESS = "mute.allowed.test", "capped.allowed.test", "keyless.allowed.test"
SECRET = "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"
HEADER, STALL, IDLE, LIFE, CONNECT, MOST = 0.8, 1.0, 1.5, 3.0, 1.0, 12
RESPONSE = 24 << 20
SLACK = 2.5  # a tick of the watch, and a busy machine


@dataclass
class World:
    gate: Gate
    server: Upstream
    two: Upstream
    mute_port: int
    dns: DnsServer

    def visitor(self, **more: object) -> Visitor:
        return Visitor(self.gate, self.gate.session(credentials=["key", "slow"], **more))  # type: ignore[arg-type]

    def is_well(self) -> None:
        """Another session is served at once."""
        begun = time.monotonic()
        assert self.visitor().get(self.server, "/bytes/10").status == 200
        assert time.monotonic() - begun < 1.5


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    hosts = (API, SLOW, GLOB, MUTE, CAPPED, KEYLESS, LATE)
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1") for name in hosts}) as dns,
        upstream(ca=ca, names=hosts) as server,
        upstream(ca=ca, names=hosts, alpn=("h2",)) as two,
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):
        dns.set(LATE, delayed(1.0, addresses("127.0.0.1", ttl=0)))
        port = mute.getsockname()[1]
        allow = [
            rule(API, ports=[server.port, two.port], credential="key"),
            rule(SLOW, port=server.port, credential="slow"),
            rule(GLOB, port=server.port, paths=["/*a*a*a*a*a*a*b", "/**/a/**/b/**/c/**/d/e"]),
            rule(MUTE, port=port),
            rule(CAPPED, port=server.port, limits={"request_body_bytes": 100_000}),
            rule(KEYLESS, port=server.port, limits={"upload_bytes_per_hour": 300_000}),
            rule(LATE, port=server.port),
        ]
        common = {"for": [{"host": API}], "place": place(), "placeholder": {"shape": "generic", "env": "KEY"}}
        sleepy = {"command": {"argv": ["/bin/sleep", "1.5"], "timeout_seconds": 5}}
        credentials = {
            "key": {"source": {"env": "KEY"}, **common},
            "slow": {
                **common,
                "source": sleepy,
                "for": [{"host": SLOW}],
                "placeholder": {"shape": "hex", "env": "SLOW"},
            },
        }
        limits = {
            "header_timeout_seconds": HEADER, "stall_timeout_seconds": STALL, "idle_timeout_seconds": IDLE,
            "exchange_seconds": LIFE, "response_bytes": RESPONSE, "connections_per_session": MOST,
        }  # fmt: skip
        config = configuration(allow=allow, dns=dns, ca=ca, credentials=credentials, limits=limits)
        config["upstream"]["connect_timeout_seconds"] = CONNECT
        with gate(config, env={"KEY": SECRET}) as running:
            yield World(running, server, two, port, dns)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds + SLACK


def drip_until_closed(raw: RawClient, data: Callable[[int], bytes], *, pause: float = 0.1) -> bytes:
    """Send a piece now and then until the peer ends; return what it said."""
    said, number = b"", 0
    raw.sock.settimeout(pause)
    while True:
        with contextlib.suppress(BrokenPipeError, ConnectionError, ssl.SSLError):
            raw.sock.sendall(data(number))
        number += 1
        try:
            got = raw.sock.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            continue
        except (OSError, ssl.SSLError):
            return said
        if not got:
            return said
        said += got


# -- V-01, V-02: slow -----------------------------------------------------------------------------


HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def crawl(world: World, where: str) -> bytes:
    """Send the beginning of something, then a byte now and then; return what was said until the end."""
    visitor = world.visitor()
    head = f"GET / HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\nX-Slow: ".encode()
    first = {
        "connect": b"CONNECT api.allowed.test:443 HTTP/1.1\r\nX: ",
        "plain": b"GET http://x.test/ HTTP/1.1\r\nX: ",
        "hello": HELLO,
        "tunnel": head,
        "nothing": b"",
    }[where]
    inside = where in ("hello", "tunnel")
    way = visitor.tunnel(world.server, tls=where == "tunnel") if inside else connect(world.gate)
    with way as raw:
        return drip_until_closed(raw, lambda n: first if n == 0 or where == "nothing" else b"a")


def test_V_01_slow_headers_end_at_one_absolute_deadline(world: World) -> None:
    places = ("connect", "plain", "hello", "tunnel", "nothing")
    with ThreadPoolExecutor(len(places)) as pool, within(HEADER):
        said = dict(zip(places, pool.map(lambda where: crawl(world, where), places), strict=True))
    for where in ("connect", "plain", "nothing"):
        assert said[where].startswith(b"HTTP/1.1 408 "), where


def test_V_02_a_slow_body_has_a_least_rate_and_a_word(world: World) -> None:
    visitor = world.visitor()
    with within(STALL), visitor.tunnel(world.server) as raw:
        head = f"POST /echo HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\nContent-Length: 100000\r\n\r\n"
        said = drip_until_closed(raw, lambda n: head.encode() if n == 0 else b"a")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert visitor.wait_log(type="http", phase="end", reason="client_timeout")


def test_V_02_a_reader_that_does_not_read_is_cut_and_holds_up_no_one(world: World) -> None:
    visitor = world.visitor()
    with within(STALL + 1), visitor.tunnel(world.server) as raw:
        raw.send(f"GET /download HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\n\r\n".encode())
        world.is_well()
        assert visitor.wait_log(type="http", phase="end")[0]["verdict"] == "error"
    ended = visitor.wait_log(type="conn", phase="end")
    assert ended[0]["conn"]["end"] == "client_timeout"


def test_V_02_shut_windows_hold_a_bounded_amount_and_end(world: World) -> None:
    visitor = world.visitor()
    with within(STALL), visitor.tunnel(world.two, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        # Nothing is ever acknowledged: the window stays shut after its first 64 KiB.
        h2.begin("GET", "/download", authority=visitor.authority(world.two))
        world.is_well()
        ended = visitor.wait_log(type="http", phase="end", timeout=STALL + SLACK)
    assert ended[0]["verdict"] == "error"
    assert ended[0]["http"]["bytes_down"] < 3 << 20


@pytest.mark.parametrize("way", ["down", "up"])
def test_V_02_windows_that_move_slowly_lose_nothing(world: World, way: str) -> None:
    """Windows of 64 KiB on both legs: without a brake the gate would hold, or drop, what comes faster."""
    size = 4 << 20  # fits into LIFE on a busy machine too
    visitor = world.visitor()
    with visitor.tunnel(world.two, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        authority = visitor.authority(world.two)
        if way == "down":
            reply = h2.request("GET", f"/bytes/{size}", authority=authority)
            assert (len(reply.body), reply.complete) == (size, True)
        else:
            reply = h2.request("POST", "/echo", authority=authority, body=bytes(size))
            assert reply.json()["length"] == size


# -- V-03: many -----------------------------------------------------------------------------------


def test_V_03_connections_of_one_session_are_capped_with_a_word(world: World) -> None:
    visitor = world.visitor()
    with contextlib.ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(visitor.tunnel(world.server, tls=False))
        over = visitor.get(world.server)
        assert (over.status, over.reason) == (429, "budget")
        world.is_well()
    deadline = time.monotonic() + 3
    while visitor.get(world.server, "/bytes/1").status != 200:
        assert time.monotonic() < deadline, "closed connections still count"


def test_V_03_connections_that_never_show_a_session_are_capped_by_their_source(world: World) -> None:
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(4 * MOST + 10):
            one = stack.enter_context(
                contextlib.closing(socket.create_connection((world.gate.host, world.gate.port), 5, ("127.0.0.9", 0)))
            )
            crowd.append(one)
        # The oldest goes: a newcomer with a session is a stranger for a moment only, and is not kept out.
        first = RawClient(crowd[0]).reply()
        assert (first.status, first.reason) == (429, "budget")
        world.is_well()
        # And those that are in do not stay without a word.
        with within(HEADER):
            for one in crowd:
                one.settimeout(HEADER + SLACK)
                while one.recv(4096):
                    pass


# -- V-04: large ----------------------------------------------------------------------------------


LARGE = {
    "block": ("/echo", [("X-Large", "a" * 1_000_000)]),
    "fields": ("/echo", [(f"X-{n}", "1") for n in range(10_000)]),
    "url": ("/" + "a" * 1_000_000, []),
}


@pytest.mark.parametrize("what", list(LARGE))
@pytest.mark.parametrize("where", ["connect", "plain", "tunnel"])
def test_V_04_what_is_too_large_is_told_and_logged_short(world: World, what: str, where: str) -> None:
    visitor = world.visitor()
    target, headers = LARGE[what]
    world.server.reset()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    token = proxy_header(visitor.session.token).decode()
    authority = visitor.authority(world.server)
    reply: RawReply | None = None
    if where == "tunnel":
        with visitor.tunnel(world.server) as raw, contextlib.suppress(ConnectionError, ssl.SSLError):
            send_what_is_taken(raw, f"GET {target} HTTP/1.1\r\nHost: {authority}\r\n{lines}\r\n".encode())
            reply = raw.reply()
    else:
        line = {"connect": f"CONNECT {authority}", "plain": f"GET http://{authority}{target}"}[where]
        if where == "connect" and what == "url":
            line = f"CONNECT {'a' * 1_000_000}.test:443"
        with connect(world.gate) as raw, contextlib.suppress(ConnectionError):
            send_what_is_taken(raw, f"{line} HTTP/1.1\r\nHost: {authority}\r\n{token}{lines}\r\n".encode())
            reply = raw.reply()
    # A client that does not stop sending may lose the answer to a reset: then the record tells.
    wanted = ("url_too_long", "headers_too_large") if what == "url" else ("headers_too_large",)
    assert reply is None or reply.reason in wanted
    world.gate.wait_audit(lambda lines: any(line["reason"] in wanted for line in lines))
    assert not world.server.requests
    assert all(len(json.dumps(line)) < 16_384 for line in world.gate.audit())


def send_what_is_taken(raw: RawClient, data: bytes) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        raw.send(data)


# -- V-07: what has no end --------------------------------------------------------


async def endless(connection: Connection, request: Request) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        await connection.send(b"x" * 65536)


async def trickle(connection: Connection, request: Request) -> None:

    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        await connection.send(b"x")
        await asyncio.sleep(0.2)


def test_V_07_an_endless_answer_is_cut_at_its_bytes(world: World) -> None:
    visitor = world.visitor()
    world.server.route("/endless", endless)
    with visitor.tunnel(world.server) as raw:
        raw.send(f"GET /endless HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\n\r\n".encode())
        size = 0
        while data := raw.read(1 << 20):
            size += len(data)
    assert size < RESPONSE + (2 << 20)
    assert visitor.wait_log(type="http", phase="end", reason="body_too_large")


def test_V_07_an_answer_that_trickles_for_ever_is_cut_at_its_time(world: World) -> None:
    visitor = world.visitor()
    world.server.route("/trickle", trickle)
    with within(LIFE), visitor.tunnel(world.server) as raw:
        raw.send(f"GET /trickle HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\n\r\n".encode())
        raw.sock.settimeout(LIFE + SLACK)
        while raw.read():
            pass
    assert visitor.wait_log(type="http", phase="end", reason="upstream_timeout")


@pytest.mark.parametrize(
    ("host", "reason", "most"), [(CAPPED, "body_too_large", 100_000), (KEYLESS, "budget", 300_000)]
)
def test_V_07_an_endless_upload_is_cut_at_its_budget(world: World, host: str, reason: str, most: int) -> None:
    visitor = world.visitor()
    world.server.reset()
    with visitor.tunnel(world.server, host) as raw:
        named = f"Host: {visitor.authority(world.server, host)}\r\n"
        head = f"POST /echo HTTP/1.1\r\n{named}Transfer-Encoding: chunked\r\n\r\n"
        piece = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        said = drip_until_closed(raw, lambda n: head.encode() if n == 0 else piece, pause=0.01)
    assert json.loads(said.partition(b"\r\n\r\n")[2])["reason"] == reason
    assert not world.server.requests
    assert world.server.bytes_in < most + 200_000
    assert visitor.wait_log(type="http", phase="end", reason=reason)


# -- V-11, V-17: what lands in files --------------------------------------------------------------


HOSTILE = {
    "crlf": "%0d%0a%7b%22forged%22%3a1%7d",
    "escape": "\x1b[31m",
    "quotes": '","verdict":"allow","x":"',
    "bad-utf-8": "\xff\xfe",
    "long": "a" * 9000,
    "nul": "%00",
    "separator": "\u2028".encode().decode("latin-1"),
}


@pytest.mark.parametrize("text", list(HOSTILE.values()), ids=list(HOSTILE))
def test_V_11_one_escaped_object_a_line_whatever_the_client_says(world: World, text: str) -> None:
    visitor = world.visitor()
    for target, headers in (
        (f"/echo/{text}", []),
        (f"/echo?q={text}", []),
        ("/echo", [("User-Agent", text), ("X-A", text)]),
    ):
        with contextlib.suppress(EOFError, ConnectionError):
            visitor.get(world.server, target, headers=headers)
        with contextlib.suppress(EOFError, ConnectionError):
            visitor.plain(f"http://{text}.test{target}", host="x.test")
    with contextlib.suppress(EOFError, ConnectionError, ssl.SSLError, UnicodeError):
        visitor.connect_to(f"{text}:443")
    visitor.wait_log(type="conn", phase="end")
    for path in (world.gate.state / "audit").glob("*/*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            assert len(line) < 16_384
            assert line.decode().isprintable()
            assert "forged" not in json.loads(line)
    assert "\x1b" not in world.gate.stderr


def test_V_17_a_storm_of_malformed_messages_leaves_few_lines(world: World) -> None:
    visitor = world.visitor()
    before = len(world.gate.stderr.splitlines())
    lines = len(world.gate.audit())
    world.server.route("/bad", b"HTTP/1.1 200 OK\r\nbro ken: 1\r\n\r\n")

    def storm(number: int) -> None:
        kinds = (
            b"\x00\x01\x02",
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
        with connect(world.gate) as raw, contextlib.suppress(OSError):
            raw.send(kinds[number % len(kinds)])
            raw.read_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(storm, range(300)))
    for _ in range(10):
        assert visitor.get(world.server, "/bad").status == 502
    assert "Traceback" not in world.gate.stderr
    assert len(world.gate.stderr.splitlines()) - before < 20
    assert len(world.gate.audit()) - lines < 4 * 310
    world.is_well()


# -- V-14 to V-19: what breaks around it ----------------------------------------------------------


def test_V_15_a_resolver_that_is_away_is_an_error_in_time(world: World) -> None:
    world.dns.set(LATE, silent)
    try:
        with within(2):
            reply = world.visitor().get(world.server, host=LATE)
        assert (reply.status, reply.reason) == (502, "destination_unavailable")
    finally:
        world.dns.set(LATE, delayed(1.0, addresses("127.0.0.1", ttl=0)))


async def stall(connection: Connection, request: Request) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf")
    await hang(connection, request)


@pytest.mark.parametrize("client", ["h1", "h2"])
def test_V_16_an_upstream_that_never_answers_is_a_504(world: World, client: str) -> None:
    visitor = world.visitor()
    server = world.two if client == "h2" else world.server
    server.route("/hang", hang)
    with within(STALL), visitor.tunnel(server, alpn=("h2",) if client == "h2" else ("http/1.1",)) as raw:
        if client == "h1":
            reply = raw.request("GET", "/hang", host=visitor.authority(server))
        else:
            h2 = H2Client(raw)
            authority = visitor.authority(server)
            stream = h2.begin("GET", "/hang", authority=authority)
            reply = h2.reply(stream)
            # The other streams of the connection go on.
            assert h2.request("GET", "/bytes/3", authority=authority).status == 200
    assert (reply.status, reply.reason) == (504, "upstream_timeout")
    assert visitor.wait_log(type="http", phase="end", reason="upstream_timeout")


def test_V_16_an_upstream_that_never_finishes_its_handshake_is_a_504(world: World) -> None:
    visitor = world.visitor()
    with within(CONNECT), visitor.tunnel(world.server, tls=False):
        pass
    with within(CONNECT):
        reply = fetch(world.gate, MUTE, world.mute_port, token=visitor.session.token, ca=visitor.ca)
    assert (reply.status, reply.reason) == (504, "upstream_timeout")


def test_V_16_a_stall_in_the_middle_is_cut(world: World) -> None:
    visitor = world.visitor()
    world.server.route("/stall", stall)
    with within(IDLE):
        reply = visitor.get(world.server, "/stall")
    assert not reply.complete or reply.status == 504
    assert visitor.wait_log(type="http", phase="end", reason="upstream_timeout")


@pytest.mark.parametrize(
    "raw",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"],
    ids=["nothing", "half-a-head", "half-a-body"],
)
def test_V_16_an_upstream_that_leaves_too_early(world: World, raw: bytes) -> None:
    visitor = world.visitor()
    world.server.route("/leave", raw)
    reply = visitor.get(world.server, "/leave")
    assert reply.status == 502 or not reply.complete
    assert visitor.wait_log(type="http", phase="end", reason="bad_upstream")


def test_V_16_no_slot_leaks(world: World) -> None:
    visitor = world.visitor()
    world.server.route("/leave", b"")
    for _ in range(3 * MOST):
        assert visitor.get(world.server, "/leave").status == 502
    assert visitor.get(world.server, "/bytes/1").status == 200


def test_V_18_paths_and_redaction_are_linear(world: World) -> None:
    visitor = world.visitor()
    begun = time.monotonic()
    long = "a" * 16_000
    for target in (f"/{long}", "/" + "a/" * 7000 + "x", "/" + "a/b/c/d/" * 1900):
        assert visitor.get(world.server, target, host=GLOB).status == 403
    body = (SECRET[:-1].encode() + b"?") * 20_000 + SECRET[:20].encode() * 20_000

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(chunks=body)

    world.server.route("/prefixes", give)
    reply = visitor.get(world.server, "/prefixes", headers=[bearer(visitor.session.placeholder("KEY"))])
    assert reply.body == body
    assert time.monotonic() - begun < 4


def test_V_19_a_slow_resolver_and_a_slow_secret_hold_up_no_one(world: World) -> None:
    visitor = world.visitor()
    with ThreadPoolExecutor(2) as pool:
        slow = [
            pool.submit(visitor.get, world.server, host=LATE),
            pool.submit(visitor.get, world.server, host=SLOW, headers=[bearer(visitor.session.placeholder("SLOW"))]),
        ]
        assert visitor.wait_log(lambda lines: len(lines) >= 2, type="conn")
        begun = time.monotonic()
        for _ in range(5):
            world.is_well()
        assert time.monotonic() - begun < 2
        assert slow[0].result().status == 200
        assert slow[1].result().reason == "credential_unavailable"  # it printed nothing


def test_every_exchange_has_one_end_and_nothing_faulted(world: World) -> None:
    decisions = {line["flow"] for line in world.gate.audit(type="http", phase="decision") if line["flow"]}
    ends = world.gate.wait_audit(lambda lines: decisions <= {line["flow"] for line in lines}, type="http", phase="end")
    flows = [line["flow"] for line in ends if line["flow"]]
    assert len(flows) == len(set(flows))
    assert not world.gate.audit(type="fault")


# -- V-09, V-10, V-14: gates of their own ---------------------------------------------------------


@pytest.mark.parametrize("change", ["line-gone", "line-edited", "segment-cut", "beginning-gone", "chain-gone"])
def test_V_10_a_log_that_was_cut_or_changed_does_not_verify(tmp_path: Path, world: World, change: str) -> None:

    copy = tmp_path / "audit"
    shutil.copytree(world.gate.state / "audit", copy)
    key = str(world.gate.state / "audit.pub")
    chain = max(copy.glob("gate-*"), key=lambda path: sum(one.stat().st_size for one in path.iterdir()))
    segment = sorted(chain.glob("*.jsonl"))[0]
    lines = segment.read_bytes().splitlines(keepends=True)
    match change:
        case "line-gone":
            del lines[len(lines) // 2]
        case "line-edited":
            lines[5] = lines[5].replace(b'"allow"', b'"deny"').replace(b'"v":1', b'"v":1 ')
        case "segment-cut":
            lines = lines[: len(lines) // 3]
        case "beginning-gone":
            lines = lines[3:]
    if change == "chain-gone":
        shutil.rmtree(chain)
    else:
        segment.write_bytes(b"".join(lines))
    done = world.gate.cli("audit", "verify", str(copy), "--key", key, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
