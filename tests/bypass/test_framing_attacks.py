"""Framing, from one version of HTTP to the other and back: what an attacker found, each as a kind.

A length that says one thing to the gate and another to the server makes a request that nobody judged; a coding that
only one of both sees makes a text that nobody searched. Beside them, what HTTP/2 could hold or wait for without end.

Longer than a module should be, since each attack is tried on the same pairs of a client and an upstream.
"""

import contextlib
import gzip
import random
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h2.exceptions
import hpack
import pytest

from tests.bypass.arena import by_id
from tests.lab.certs import Authority
from tests.lab.client import H2Client, RawClient, RawReply, connect, proxy_header, tunnel
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream

OLD = "old.allowed.test"
"""Speaks HTTP/1.1 alone."""
NEW = "new.allowed.test"
"""Speaks HTTP/2 where it is offered."""
SECRET = "s3cr3t-Value-0123456789abcdefXYZ"
_HEAD_SECONDS = 2


@dataclass
class Stand:
    """One gate, a server of each version, a session."""

    gate: Gate
    session: Session
    old: Upstream
    new: Upstream

    @property
    def ca(self) -> Path:
        return self.gate.state / "ca.pem"

    def tunnel(
        self, server: Upstream, *, alpn: Sequence[str] = ("http/1.1",), tls: bool = True, timeout: float = 10
    ) -> contextlib.AbstractContextManager[RawClient]:
        token, ca = self.session.token, self.ca
        return tunnel(self.gate, server.names[0], server.port, token=token, ca=ca, alpn=alpn, tls=tls, timeout=timeout)

    @contextlib.contextmanager
    def h2(self, server: Upstream, *, timeout: float = 10) -> Iterator[H2Client]:
        with self.tunnel(server, alpn=("h2",), timeout=timeout) as raw:
            client = H2Client(raw)
            client.h2.config.validate_outbound_headers = False
            client.h2.config.normalize_outbound_headers = False
            yield client

    def ends(self, path: str) -> list[tuple[str, str | None]]:
        """Wait for the end of a request for `path`; return verdict and reason of each."""

        def has(lines: list[dict[str, object]]) -> bool:
            return any(_path(line) == path for line in lines)

        lines = self.gate.wait_audit(has, type="http", phase="end")
        return [(line["verdict"], line["reason"]) for line in lines if _path(line) == path]


def _path(line: dict[str, object]) -> object:
    block = line["http"]
    return block["path"] if isinstance(block, dict) else None


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    here = addresses("127.0.0.1")
    with (
        Authority() as ca,
        dns_server({OLD: here, NEW: here}) as dns,
        upstream(ca=ca, names=(OLD,)) as old,
        upstream(ca=ca, names=(NEW,), alpn=("h2", "http/1.1")) as new,
    ):
        key = {
            "source": {"env": "STAND_KEY"},
            "for": [{"host": OLD, "paths": ["/p/keyed"]}],
            "place": {"header": "Authorization", "format": "Bearer {secret}"},
            "placeholder": {"shape": "generic", "env": "KEY"},
        }
        allow = [
            rule(OLD, port=old.port, paths=["/p/keyed"], credential="key"),
            rule(
                OLD, port=old.port, paths=["/p/**", "/echo", "/ws"], websocket=True, strip=["content-length", "x-cut"]
            ),
            rule(NEW, port=new.port, paths=["/p/**", "/echo", "/ws"], methods=["GET", "PUT"], websocket=True),
        ]
        limits = {"header_timeout_seconds": _HEAD_SECONDS, "denials_per_connection": 10_000}
        whole = configuration(allow=allow, dns=dns, ca=ca, credentials={"key": key}, limits=limits)
        with gate(whole, env={"STAND_KEY": SECRET}) as running:
            yield Stand(running, running.session(credentials=["key"]), old, new)


def refused(reply: RawReply, reason: str, status: int = 400) -> None:
    assert (reply.status, reply.reason) == (status, reason)


# -- fields that Connection may not take away ------------------------------------------------------

END_TO_END = [
    "Content-Length", "content_length", "Transfer-Encoding", "Host", "Authorization", "Cookie", "Content-Type",
    "Content-Encoding", "Range", "Expect", "Accept", "If-Match", "User-Agent", "X-Api-Key",
]  # fmt: skip


@pytest.mark.parametrize("name", END_TO_END)
@pytest.mark.parametrize("before", ["", "close, ", "keep-alive , "])
def test_connection_lists_no_field_for_all_recipients(stand: Stand, name: str, before: str) -> None:
    stand.old.reset()
    evil = b"GET /evil HTTP/1.1\r\nHost: x\r\n\r\n"
    with stand.tunnel(stand.old) as raw:
        raw.send(
            b"POST /p/a HTTP/1.1\r\nHost: %b\r\nConnection: %b%b\r\nContent-Length: %d\r\n\r\n%b"
            % (stand.old.authority.encode(), before.encode(), name.encode(), len(evil), evil)
        )
        refused(raw.reply(), "ambiguous")
        assert raw.closed()
    assert stand.old.requests == []


def test_the_framing_is_ours_whatever_a_rule_strips(stand: Stand) -> None:
    stand.old.reset()
    with stand.tunnel(stand.old) as raw:
        for body in (b"GET /evil HTTP/1.1\r\n\r\n", b""):
            reply = raw.request("POST", "/echo", host=stand.old.authority, headers=[("X-Cut", "1")], body=body)
            assert reply.json()["body"] == body.decode()
    for request in stand.old.requests:
        assert request.header_all("content-length") == [str(len(request.body))]
        assert request.header("x-cut") is None


OVERRIDES = ["X_HTTP_Method_Override", "X_Forwarded_Host", "x_original-url", "X-Rewrite_URL", "Content_Length"]


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_underscore_is_a_dash_to_some_servers(stand: Stand, name: str) -> None:
    with stand.tunnel(stand.old) as raw:
        reply = raw.request("GET", "/echo", host=stand.old.authority, headers=[(name, "5"), ("X_A", "b")])
    names = [seen.lower().replace("_", "-") for seen, _ in reply.json()["headers"]]
    assert name.lower().replace("_", "-") not in names
    assert "x-a" in names


# -- HTTP/2 lengths --------------------------------------------------------------------------------


def test_a_request_that_ends_with_its_head_has_no_length(stand: Stand) -> None:
    stand.old.reset()
    with stand.h2(stand.old) as client:
        fields = [("content-length", "40")]
        refused(client.request("GET", "/p/a", authority=stand.old.authority, headers=fields), "ambiguous")
        smuggled = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"
        reply = client.request("POST", "/echo", authority=stand.old.authority, body=smuggled)
    assert reply.json()["body"] == smuggled.decode()
    assert [request.target for request in stand.old.requests] == ["/echo"]


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize(
    ("told", "sent", "trailers"),
    [(3, b"12345", False), (9, b"12345", False), (0, b"12345", False), (9, b"12345", True)],
    ids=["longer", "shorter", "none-told", "shorter-with-trailers"],
)
def test_data_is_as_long_as_the_head_says(
    stand: Stand, server: str, method: str, told: int, sent: bytes, trailers: bool
) -> None:
    target: Upstream = getattr(stand, server)
    target.reset()
    with stand.h2(target) as client, contextlib.suppress(EOFError):
        fields = [("content-length", str(told))]
        stream = client.begin(method, "/p/a", authority=target.authority, headers=fields, end=False)
        client.data(stream, sent, end=not trailers)
        if trailers:
            client.h2.send_headers(stream, [("x-sum", "1")], end_stream=True)
            client.flush()
        assert client.reply(stream).status >= 400
    # A head that says «no body» is a whole request by itself, and may have left before the data came.
    assert [(request.target, request.body) for request in target.requests] in ([], [("/p/a", b"")] if not told else [])
    with stand.tunnel(stand.old) as raw:
        assert raw.request("GET", "/echo", host=stand.old.authority).status == 200


# -- what an answer hides --------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", ["content-encoding", "Content-Length", "x-a, content_encoding", "location"])
def test_an_answer_that_hides_its_coding_is_no_answer(stand: Stand, hidden: str) -> None:
    body = gzip.compress(f"the key is {SECRET}".encode())
    head = b"HTTP/1.1 200 OK\r\nConnection: %b\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    stand.old.route("/p/keyed", head % (hidden.encode(), len(body)) + body)
    with stand.tunnel(stand.old) as raw:
        proof = [("Authorization", "Bearer " + stand.session.env["KEY"])]
        reply = raw.request("GET", "/p/keyed", host=stand.old.authority, headers=proof)
    refused(reply, "bad_upstream", 502)


def test_an_answer_may_list_its_transfer_coding(stand: Stand) -> None:
    """Some large servers do."""
    stand.old.route(
        "/p/listed",
        b"HTTP/1.1 200 OK\r\nConnection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    )
    with stand.tunnel(stand.old) as raw:
        assert raw.request("GET", "/p/listed", host=stand.old.authority).body == b"ok"


# -- the oracle: random framing, and a server that says what it was asked -----------------------------

_TOKENS = [
    "keep-alive", "close", "host", "expect", "te", "upgrade", "trailer", "transfer-encoding", "x-a", "cookie",
    "content-length",
]  # fmt: skip
_FRAMING = ("Connection", "Content-Length", "Transfer-Encoding")


def _random_fields(chance: random.Random, length: int) -> list[tuple[str, str]]:
    def options(most: int) -> str:
        return ", ".join(chance.sample(_TOKENS, chance.randint(1, most)))

    made = {
        "Connection": options(3),
        "Content-Length": str(length),
        "Transfer-Encoding": chance.choice(["chunked", "chunked", "Chunked", "identity", "chunked, identity"]),
        "Expect": "100-continue",
        "Upgrade": chance.choice(["websocket", "h2c"]),
        "X-A": "b",
        "TE": "trailers",
        "Content_Length": "5",
        "Cookie": "a=b",
        "Proxy-Connection": "keep-alive",
        "Trailer": "x",
        "Keep-Alive": "timeout=5",
        "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA",
    }
    names = [chance.choice([*_FRAMING, *made]) for _ in range(chance.randint(1, 4))]
    return [(name, made[name]) for name in names]


def _random_body(chance: random.Random, names: list[str], body: bytes, length: int) -> bytes:
    if "Transfer-Encoding" in names:
        cut = chance.randint(1, len(body) - 1)
        extension = chance.choice([b"", b";a=b", b" "])
        return b"%x%b\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (cut, extension, body[:cut], len(body) - cut, body[cut:])
    return body[:length] if "Content-Length" in names and chance.random() < 0.7 else body


_METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "QUERY", "PATCH"]


def _one_attack(stand: Stand, chance: random.Random, server: Upstream, case: int) -> None:
    body = f"GET /evil/{case} HTTP/1.1\r\nHost: {server.authority}\r\n\r\n".encode()
    length = chance.choice([len(body), len(body), 0, 5, len(body) + 3])
    fields, method = _random_fields(chance, length), chance.choice(_METHODS)
    if chance.random() < 0.6:
        minor = chance.choice("1110")
        lines = [f"{method} /p/{case} HTTP/1.{minor}", f"Host: {server.authority}", *(f"{n}: {v}" for n, v in fields)]
        raw_body = _random_body(chance, [name for name, _ in fields], body, length)
        with stand.tunnel(server, timeout=0.2) as raw:
            raw.send("\r\n".join([*lines, "", ""]).encode() + raw_body)
            raw.reply(method=method)
            raw.send(f"GET /p/{case}b HTTP/1.1\r\nHost: {server.authority}\r\n\r\n".encode())
            raw.reply()
        return
    with stand.h2(server, timeout=0.2) as client:
        hops = ("Connection", "Proxy-Connection", "Keep-Alive", "Upgrade", "Transfer-Encoding", "HTTP2-Settings")
        plain = [(name.lower(), value) for name, value in fields if name not in hops]
        sent = body if chance.random() < 0.6 else None
        client.reply(client.begin(method, f"/p/{case}", authority=server.authority, headers=plain, body=sent))
        told = [("content-length", str(len(body)))]
        client.request("POST", f"/p/{case}b", authority=server.authority, headers=told, body=body)


@pytest.mark.parametrize("seed", range(4))
def test_no_framing_makes_a_request_that_nobody_judged(stand: Stand, seed: int) -> None:
    chance = random.Random(seed)  # the same attacks each time
    stand.old.reset()
    stand.new.reset()
    for case in range(40):
        with contextlib.suppress(EOFError, OSError, ValueError, h2.exceptions.ProtocolError):
            _one_attack(stand, chance, chance.choice([stand.old, stand.old, stand.new]), case)
    served = [request.target for server in (stand.old, stand.new) for request in server.requests]
    assert len(served) > 20, "the attacks reach the servers"
    assert [target for target in served if not target.startswith("/p/")] == []
    assert stand.gate.audit(type="fault") == []


# -- HTTP/2 heads have the limits of HTTP/1 ones ---------------------------------------------------

LIMITS = {
    "url": ({"target": "/p/u?" + "a" * 17_000}, 414, "url_too_long"),
    "url_of_40000": ({"target": "/p/u?" + "a" * 40_000}, 414, "url_too_long"),
    "fields": ({"headers": [(f"x-{n}", "1") for n in range(250)]}, 431, "headers_too_large"),
    "bytes": ({"headers": [(f"x-{n}", "a" * 7000) for n in range(10)]}, 431, "headers_too_large"),
    "scheme": ({"scheme": "http"}, 421, "authority_mismatch"),
}


@by_id(LIMITS)
def test_an_h2_head_is_as_bounded_as_another(stand: Stand, case: tuple[dict[str, object], int, str]) -> None:
    changes, status, reason = case
    more = {"target": "/p/u", **changes}
    target = str(more.pop("target"))
    stand.old.reset()
    with stand.h2(stand.old) as client:
        refused(client.request("GET", target, authority=stand.old.authority, **more), reason, status)
        assert client.request("GET", "/echo", authority=stand.old.authority).status == 200
    assert len(stand.old.requests) == 1


# -- an upload that is denied ----------------------------------------------------------------------


def test_a_denied_h2_upload_is_taken_to_64_KiB_and_no_further(stand: Stand) -> None:
    with stand.h2(stand.new) as client:
        stream = client.begin("POST", "/p/denied-upload", authority=stand.new.authority, end=False)
        client.data(stream, b"x" * 30_000, end=False)
        reply = client.reply(stream)
        refused(reply, "method_not_allowed", 403)
        assert reply.complete, "the answer comes whole"
        deadline = time.monotonic() + 5
        while stream not in client.reset and time.monotonic() < deadline:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                client.data(stream, b"x" * 20_000, end=False)
            client._pump()
        assert client.reset == {stream: 0}
        assert client.request("GET", "/echo", authority=stand.new.authority).status == 200
    assert stand.ends("/p/denied-upload") == [("deny", "method_not_allowed")]


def test_a_denied_h2_upload_that_says_no_more_is_over_soon(stand: Stand) -> None:
    with stand.h2(stand.new) as client:
        stream = client.begin("POST", "/p/denied-silence", authority=stand.new.authority, end=False)
        refused(client.reply(stream), "method_not_allowed", 403)
        while stream not in client.reset:
            assert client._pump()
        assert client.request("GET", "/echo", authority=stand.new.authority).status == 200
    assert stand.ends("/p/denied-silence") == [("deny", "method_not_allowed")]


# -- an upgrade to an upstream that speaks HTTP/2 --------------------------------------------------


@pytest.mark.parametrize("alpn", [("http/1.1",), ("h2", "http/1.1")], ids=["old-client", "new-client"])
@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize("before", [False, True], ids=["at-once", "after-a-request"])
def test_an_upgrade_goes_by_http_1_1(stand: Stand, server: str, alpn: tuple[str, ...], before: bool) -> None:
    """An upstream that would choose h2 is not asked to, whatever the client offered."""
    target: Upstream = getattr(stand, server)
    fresh = Stand(stand.gate, stand.gate.session(), stand.old, stand.new)
    with fresh.tunnel(target, alpn=alpn) as raw:
        assert raw.sock.selected_alpn_protocol() == "http/1.1"  # type: ignore[attr-defined]
        if before:
            assert raw.request("GET", "/echo", host=target.authority).status == 200
        raw.send(
            b"GET /ws HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            % target.authority.encode()
        )
        assert raw.head().status == 101


# -- one header clock ------------------------------------------------------------------------------


def _headers_without_end(client: H2Client, authority: str) -> bytes:
    fields = [(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", "/echo")]
    block = hpack.Encoder().encode(fields)
    return len(block).to_bytes(3, "big") + b"\x01\x01" + (1).to_bytes(4, "big") + block


def _slow(stand: Stand, kind: str, stack: contextlib.ExitStack) -> RawClient:
    alpn = ("http/1.1",) if kind == "half-a-head" else ("h2",)
    raw = stack.enter_context(stand.tunnel(stand.old, alpn=alpn, tls=kind not in ("nothing", "half-a-hello")))
    if kind == "half-a-hello":
        raw.send(b"\x16\x03\x01\x02\x00\x01\x00")
    elif kind == "half-a-head":
        raw.send(b"GET / HTTP/1.1\r\nX: ")
    elif kind == "half-a-preface":
        raw.send(b"PRI * HTTP/2.0\r\n")
    elif kind == "magic-alone":
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    elif kind in ("half-a-frame", "no-end-of-headers"):
        client = H2Client(raw)
        frame = _headers_without_end(client, stand.old.authority)
        raw.send(frame if kind == "no-end-of-headers" else frame[:12])
    return raw


STARTS = ["nothing", "half-a-hello", "no-preface", "half-a-preface", "magic-alone", "half-a-frame", "no-end-of-headers",
          "half-a-head"]  # fmt: skip


def test_whatever_is_begun_and_not_finished_ends_soon(stand: Stand) -> None:
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        waiting = {kind: _slow(stand, kind, stack) for kind in STARTS}
        for kind, raw in waiting.items():
            raw.sock.settimeout(max(0.1, began + _HEAD_SECONDS + 4 - time.monotonic()))
            try:
                while raw.read():
                    pass
            except (TimeoutError, ssl.SSLError) as error:
                raise AssertionError(f"{kind} is still open") from error
        assert time.monotonic() - began > _HEAD_SECONDS - 1


def _split_handshake(stand: Stand, raw: RawClient, alpn: str) -> H2Client | None:
    """Take the client's handshake apart: the hello comes in two packets."""
    context = ssl.create_default_context(cafile=str(stand.ca))
    context.set_alpn_protocols([alpn])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = context.wrap_bio(incoming, outgoing, server_hostname=OLD)
    sent = False
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            inside.do_handshake()
            break
        if (data := outgoing.read()) and not sent:
            raw.sock.sendall(data[:100])
            time.sleep(0.2)  # two packets, whatever the kernel likes
            raw.sock.sendall(data[100:])
            sent = True
        incoming.write(raw.sock.recv(65536))
    raw.sock.sendall(outgoing.read())
    raw.sock = _Inside(raw.sock, inside, incoming, outgoing)  # type: ignore[assignment]
    return H2Client(raw) if alpn == "h2" else None


class _Inside:
    """Just enough of a socket over TLS in memory."""

    def __init__(self, sock: object, inside: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.sock, self.inside, self.incoming, self.outgoing = sock, inside, incoming, outgoing

    def sendall(self, data: bytes) -> None:
        if data:
            self.inside.write(data)
            self.sock.sendall(self.outgoing.read())  # type: ignore[attr-defined]

    def recv(self, size: int) -> bytes:
        while True:
            try:
                return self.inside.read(size)
            except ssl.SSLWantReadError:
                data = self.sock.recv(65536)  # type: ignore[attr-defined]
                if not data:
                    return b""
                self.incoming.write(data)

    def close(self) -> None:
        self.sock.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("alpn", ["h2", "http/1.1"])
def test_a_hello_in_two_packets_starts_no_clock_that_runs_on(stand: Stand, alpn: str) -> None:
    with connect(stand.gate) as raw:
        authority = stand.old.authority.encode()
        proof = proxy_header(stand.session.token)
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, proof))
        assert raw.reply(method="CONNECT").status == 200
        client = _split_handshake(stand, raw, alpn)
        for _ in range(3):
            if client is not None:
                reply = client.request("GET", "/echo", authority=stand.old.authority)
            else:
                reply = raw.request("GET", "/echo", host=stand.old.authority)
            assert reply.status == 200
            time.sleep(_HEAD_SECONDS / 2 + 1)  # longer than the clock, over both: idle is not late
