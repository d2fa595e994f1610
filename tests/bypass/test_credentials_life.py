"""Group C end to end, over time: scope, revocation, leases that end, sources that fail, what does not load."""

import time

import pytest
import wsproto
from wsproto.events import AcceptConnection
from wsproto.events import Request as Handshake

from tests.bypass.vault import (
    COMMANDED,
    HEADER,
    INSIDE,
    OTHER,
    RENEWED,
    SECRETS,
    SHORT_LIVED,
    World,
    confined,
    one_credential,
    refusal_to_start,
    refused,
    world_fixture,
)
from tests.lab.client import H2Client, Refused
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, hang
from tests.lab.visitor import bearer

world = world_fixture()


@pytest.mark.parametrize(("method", "target"), [("GET", "/admin/keys"), ("DELETE", "/echo"), ("GET", "/echo/x")])
def test_C_28_methods_and_paths_outside_the_credential(world: World, method: str, target: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    headers = [bearer(visitor.session.placeholder("HEADER"))]
    refused(visitor.get(world.server, target, host=HEADER, method=method, headers=headers), "credential_out_of_scope")
    assert world.server.bytes_in == 0


@pytest.mark.parametrize("kind", ["keep-alive", "h2", "websocket", "stream"])
def test_C_29_revocation_reaches_open_connections_within_a_second(world: World, kind: str) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    server = world.two if kind == "h2" else world.server
    authority = visitor.authority(server, HEADER)
    world.server.route("/r/hang", hang)
    with visitor.tunnel(server, HEADER, alpn=("h2",) if kind == "h2" else ("http/1.1",)) as raw:
        if kind == "h2":
            h2 = H2Client(raw)
            assert (
                h2.request("GET", "/echo", authority=authority, headers=[("authorization", f"Bearer {token}")]).status
                == 200
            )
        elif kind == "websocket":
            ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
            raw.send(
                ws.send(
                    Handshake(
                        host=authority, target="/ws", extra_headers=[(b"Authorization", f"Bearer {token}".encode())]
                    )
                )
            )
            ws.receive_data(raw.read())
            assert any(isinstance(event, AcceptConnection) for event in ws.events())
        elif kind == "keep-alive":
            assert raw.request("GET", "/echo", host=authority, headers=[bearer(token)]).status == 200
        else:
            raw.send(f"GET /r/hang HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            assert server.wait(lambda one: bool(one.requests) and one.requests[-1].path == "/r/hang")
        begun = time.monotonic()
        status, _ = world.gate.admin("DELETE", f"/v1/sessions/{visitor.session.id}")
        assert status == 200
        raw.sock.settimeout(3)
        while raw.read():
            pass
        assert time.monotonic() - begun < 1.5
    with pytest.raises(Refused) as gone, visitor.tunnel(server, HEADER):
        pass
    assert gone.value.reply is not None
    assert gone.value.reply.reason == "session_invalid"


def test_C_30_an_expired_session_gets_nothing_more(world: World) -> None:
    visitor = world.visitor(ttl_seconds=2)
    token = visitor.session.placeholder("HEADER")
    with visitor.tunnel(world.server, HEADER) as raw:
        authority = visitor.authority(world.server, HEADER)
        assert raw.request("GET", "/echo", host=authority, headers=[bearer(token)]).status == 200
        raw.sock.settimeout(6)
        assert raw.closed()
    refused(visitor.get(world.server, host=HEADER, headers=[bearer(token)]), "session_invalid")


@pytest.mark.parametrize("whose", ["ended", "other", "made-up"])
def test_C_31_placeholders_of_other_sessions(world: World, whose: str) -> None:
    visitor, other = world.visitor(), world.visitor()
    token = other.session.placeholder("HEADER")
    if whose == "ended":
        world.gate.admin("DELETE", f"/v1/sessions/{other.session.id}")
    elif whose == "made-up":
        token = token[:-5] + "00000"
    world.server.reset()
    for host in (HEADER, OTHER):
        refused(visitor.get(world.server, host=host, headers=[bearer(token)]), "unknown_placeholder")
        refused(visitor.get(world.server, f"/echo?x={token}", host=host), "unknown_placeholder")
    assert world.server.bytes_in == 0
    assert visitor.wait_log(type="incident", reason="unknown_placeholder")


@pytest.mark.parametrize("page", ["dns", "garbage", "denied"])
def test_C_33_error_pages_are_fixed_text(world: World, page: str) -> None:
    visitor = world.visitor()
    world.server.route(
        "/r/garbage", b"HTTP/1.1 200 OK\r\nX-Sec: " + SECRETS["header"].encode() + b"\r\nbro ken: 1\r\n\r\n"
    )
    token = bearer(visitor.session.placeholder("HEADER"))
    host, told = {
        "dns": (INSIDE, (502, "destination_unavailable")),
        "garbage": (HEADER, (502, "bad_upstream")),
        "denied": ("marked.evil.test", (403, "not_in_allowlist")),
    }[page]
    headers = [token, ("X-Marked", "1")] if page == "garbage" else [("X-Marked", "1")]
    target = "/r/garbage?marked=query" if page == "garbage" else "/marked-path?marked=query"
    reply = visitor.get(world.server, target, host=host, headers=headers)
    assert (reply.status, reply.reason) == told
    text = (reply.raw_head + reply.body).lower()
    named = text.replace(b"marked.evil.test", b"")  # the host that was asked for, and nothing else
    for word in (
        b"marked",
        b"10.9.8.7",
        b"127.0.0.1",
        b"traceback",
        b"mitmproxy",
        b"default[",
        SECRETS["header"].lower().encode(),
    ):
        assert word not in named
    assert set(reply.json()) <= {"type", "title", "status", "detail", "reason", "request_id", "docs", "host"}


@pytest.mark.parametrize(
    ("method", "reason"),
    [("TRACE", "method_not_allowed"), ("TRACK", "credential_out_of_scope"), ("CONNECT", "method_not_allowed")],
)
def test_C_34_methods_that_echo_are_denied(world: World, method: str, reason: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    headers = [bearer(visitor.session.placeholder("HEADER"))]
    reply = visitor.get(world.server, host=HEADER, method=method, headers=headers)
    refused(reply, reason)
    assert world.server.bytes_in == 0


def test_C_34_an_echo_to_options_is_cleaned(world: World) -> None:
    visitor = world.visitor()
    headers = [bearer(visitor.session.placeholder("HEADER"))]
    reply = visitor.get(world.server, "/reflect", host=HEADER, method="OPTIONS", headers=headers)
    assert reply.status == 200
    assert SECRETS["header"].encode() not in reply.body


def test_C_36_a_credentialed_request_asks_for_identity(world: World) -> None:
    visitor = world.visitor()
    headers = [bearer(visitor.session.placeholder("HEADER")), ("Accept-Encoding", "gzip, br"), ("TE", "gzip")]
    visitor.get(world.server, host=HEADER, headers=headers)
    seen = world.server.requests[-1]
    assert seen.header_all("accept-encoding") == ["identity"]
    assert seen.header("te") is None


def test_C_37_guesses_at_a_part_of_the_secret_are_not_confirmed(world: World) -> None:
    visitor = world.visitor()
    secret = SECRETS["header"]
    token = visitor.session.placeholder("HEADER")
    assert visitor.get(world.server, "/bytes/9", host=HEADER, headers=[bearer(token)]).status == 200
    guesses = [secret[:n] for n in range(8, len(secret))] + [secret[1:], secret[:-1] + "!"]
    reply = visitor.get(world.server, host=OTHER, method="POST", body=" ".join(guesses).encode())
    assert reply.json()["body"] == " ".join(guesses)
    assert not visitor.log(type="http", verdict="redact")


@pytest.mark.parametrize("shape", ["TOKEN", "prefix:", "short", "prefix:a b"])
def test_C_40_a_generic_placeholder_does_not_load(shape: str) -> None:
    text = refusal_to_start(one_credential({"placeholder": {"shape": shape, "env": "KEY"}}))
    assert "placeholder.shape" in text


@pytest.mark.parametrize("host", ["*.allowed.test", "*", "10.0.0.1"])
def test_C_41_a_credential_is_bound_to_exact_hosts(host: str) -> None:
    assert "host" in refusal_to_start(one_credential({"for": [{"host": host}]}))


def test_C_42_a_secret_that_is_missing_at_the_swap(world: World) -> None:
    visitor = world.visitor()
    world.server.reset()
    source = world.folder / "commanded"
    source.rename(world.folder / "away")
    try:
        headers = [bearer(visitor.session.placeholder("COMMANDED"))]
        reply = visitor.get(world.server, host=COMMANDED, headers=headers)
    finally:
        (world.folder / "away").rename(source)
    assert (reply.status, reply.reason) == (503, "credential_unavailable")
    assert world.server.bytes_in == 0
    # And back by itself, without a restart.
    deadline = time.monotonic() + 5
    while visitor.get(world.server, host=COMMANDED, headers=headers).status != 200:
        assert time.monotonic() < deadline
    assert world.server.requests[-1].header("authorization") == f"Bearer {SECRETS['commanded']}"


def test_C_30_an_expired_lease_is_never_used(world: World) -> None:
    visitor = world.visitor()
    token = bearer(visitor.session.placeholder("SHORT"))
    with visitor.tunnel(world.server, SHORT_LIVED) as raw:
        host = visitor.authority(world.server, SHORT_LIVED)
        assert raw.request("GET", "/echo", host=host, headers=[token]).status == 200
        assert world.server.requests[-1].header("authorization") == f"Bearer {SECRETS['short']}"
        (world.folder / "short").write_text(RENEWED)
        try:
            deadline = time.monotonic() + 12
            while world.server.requests[-1].header("authorization") != f"Bearer {RENEWED}":
                assert time.monotonic() < deadline, "the lease outlived its ten seconds"
                time.sleep(0.2)  # a lease ends by the clock: nothing but the next request shows it
                reply = raw.request("GET", "/echo", host=host, headers=[token])
                assert reply.status == 200
                assert RENEWED.encode() not in reply.body
        finally:
            (world.folder / "short").write_text(SECRETS["short"])

        async def give(connection: Connection, request: Request) -> Reply:
            return Reply(chunks=f"old {SECRETS['short']} new {RENEWED}".encode())

        # What has ended is still searched for.
        world.server.route("/r/both", give)
        body = raw.request("GET", "/r/both", host=host, headers=[token]).body.decode()
    assert SECRETS["short"] not in body
    assert RENEWED not in body


def test_C_32_no_secret_in_any_file_or_stream_of_the_gate(world: World) -> None:
    """Last in the file: everything above has been through this gate."""
    confined(world)
