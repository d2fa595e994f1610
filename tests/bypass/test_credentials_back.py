"""Group C end to end, on the way back: what a server says of a secret never reaches the sandbox."""

import base64
import gzip
import os

import pytest
import wsproto
from wsproto.events import AcceptConnection, TextMessage
from wsproto.events import Request as Handshake

from tests.bypass.vault import (
    HEADER,
    OTHER,
    SECRETS,
    World,
    confined,
    world_fixture,
)
from tests.lab.client import H2Client
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection
from tests.lab.visitor import Visitor, bearer

world = world_fixture()


def reflect(world: World, visitor: Visitor, query: str = "", **more: object) -> tuple[bytes, str]:
    token = visitor.session.placeholder("HEADER")
    reply = visitor.get(world.server, f"/reflect?{query}", host=HEADER, headers=[bearer(token)], **more)  # type: ignore[arg-type]
    assert reply.status == 200
    raw = reply.raw_head + reply.body + str(reply.trailers).encode()
    assert SECRETS["header"].encode() not in raw
    return raw, token


def test_C_19_a_plain_reflection_becomes_the_placeholder(world: World) -> None:
    visitor = world.visitor()
    raw, token = reflect(world, visitor)
    assert b"you sent: Bearer " + token.encode() in raw
    assert visitor.wait_log(type="http", phase="end", verdict="redact", reason="reflected_secret")
    assert visitor.wait_log(type="incident", reason="reflected_secret")


def test_C_19_a_secret_of_the_session_reflected_by_another_host(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    assert visitor.get(world.server, host=HEADER, headers=[bearer(token)]).status == 200

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(chunks=b"stolen: " + SECRETS["header"].encode())

    world.server.route("/stolen", give)
    assert visitor.get(world.server, "/stolen", host=OTHER).body == b"stolen: " + token.encode()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip,br"])
@pytest.mark.parametrize("pad", [0, 200_000], ids=["short", "long"])
def test_C_20_coded_reflections_are_decoded_and_cleaned(world: World, coding: str, pad: int) -> None:
    raw, token = reflect(world, world.visitor(), f"coding={coding}&pad={pad}&chunk=1000")
    assert b"you sent: Bearer " + token.encode() in raw
    assert b"content-encoding" not in raw[:2000].lower()


@pytest.mark.parametrize(
    "query", ["declare=gzip", "declare=br", "declare=x-foo", "coding=gzip&declare=br", "declare=gzip,gzip,gzip"]
)
def test_C_21_a_lying_or_unknown_coding_is_unscannable(world: World, query: str) -> None:
    visitor = world.visitor()
    headers = [bearer(visitor.session.placeholder("HEADER"))]
    reply = visitor.get(world.server, f"/reflect?{query}", host=HEADER, headers=headers)
    assert (reply.status, reply.reason) == (502, "unscannable_response")
    assert SECRETS["header"].encode() not in reply.body
    assert not world.gate.audit(type="fault")


def test_C_21_a_body_that_lies_late_is_cut(world: World) -> None:
    visitor = world.visitor()
    body = gzip.compress(os.urandom(200_000))[:-4000] + SECRETS["header"].encode()

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(headers=[("content-encoding", "gzip")], chunks=body, framing="chunked")

    world.server.route("/r/late", give)
    reply = visitor.get(world.server, "/r/late", host=HEADER, headers=[bearer(visitor.session.placeholder("HEADER"))])
    assert not reply.complete or reply.status == 502
    assert SECRETS["header"].encode() not in reply.body
    assert visitor.wait_log(type="http", phase="end", reason="unscannable_response")


@pytest.mark.parametrize("name", ["X-Debug", "Location", "ETag", "WWW-Authenticate", "Link", "Content-Type", "Server"])
def test_C_22_reflections_in_headers(world: World, name: str) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(headers=[(name, f"a {SECRETS['header']} b")], chunks=b"x")

    world.server.route("/r/header", give)
    reply = visitor.get(world.server, "/r/header", host=HEADER, headers=[bearer(token)])
    assert SECRETS["header"].encode() not in reply.raw_head
    if name != "Location":  # with spaces in it, it is a redirect to nowhere, and gone
        assert reply.header(name) == f"a {token} b"


def test_C_22_the_status_line_and_trailers_are_no_way_out(world: World) -> None:
    visitor = world.visitor()
    secret = SECRETS["header"].encode()
    trailer = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-T: " + secret + b"\r\n\r\n"
    world.server.route("/r/line", b"HTTP/1.1 200 " + secret + b"\r\n" + trailer)
    with visitor.tunnel(world.server, HEADER) as raw:
        host = visitor.authority(world.server, HEADER)
        reply = raw.request("GET", "/r/line", host=host, headers=[bearer(visitor.session.placeholder("HEADER"))])
    assert reply.status == 200
    assert secret not in reply.raw_head
    assert not reply.trailers


def test_C_22_no_set_cookie_from_a_credentialed_answer_C_35(world: World) -> None:
    visitor = world.visitor()
    reply = visitor.get(world.server, "/cookies", host=HEADER, headers=[bearer(visitor.session.placeholder("HEADER"))])
    assert (reply.status, reply.header_all("set-cookie")) == (200, [])


@pytest.mark.parametrize("size", [1, 7, 19, 37])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_C_23_reflections_split_over_chunks(world: World, size: int, coding: str) -> None:
    raw, token = reflect(world, world.visitor(), f"chunk={size}&coding={coding}")
    assert token.encode() in raw


def test_C_23_split_over_http2_frames(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    with visitor.tunnel(world.two, HEADER, alpn=("h2",)) as raw:
        authority = visitor.authority(world.two, HEADER)
        headers = [("authorization", f"Bearer {token}")]
        reply = H2Client(raw).request("GET", "/reflect?chunk=5", authority=authority, headers=headers)
    assert reply.body == b"you sent: Bearer " + token.encode() + b"\n"


@pytest.mark.parametrize("how", ["url", "hex", "json", *[f"base64&shift={n}" for n in range(3)]])
def test_C_24_encoded_reflections(world: World, how: str) -> None:
    visitor = world.visitor()
    raw, _ = reflect(world, visitor, f"as={how}")
    secret = SECRETS["header"].encode()
    for form in (secret.hex(), base64.b64encode(secret).decode()[2:-4], "".join(f"%{byte:02x}" for byte in secret)):
        assert form.encode() not in raw
    assert visitor.wait_log(type="http", phase="end", reason="reflected_secret")


def test_C_25_many_decoys_do_not_exhaust_the_search(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER").encode()
    secret = SECRETS["header"].encode()
    body = (secret[:-1] + b"! ") * 5000 + (secret + b" ") * 2000 + secret

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(chunks=body)

    world.server.route("/r/decoys", give)
    reply = visitor.get(world.server, "/r/decoys", host=HEADER, headers=[bearer(token.decode())])
    assert secret not in reply.body
    assert reply.body.count(token) == 2001


def test_C_26_a_reflection_in_a_web_socket_ends_it(world: World) -> None:
    visitor = world.visitor()
    secret = SECRETS["header"]
    with visitor.tunnel(world.server, HEADER) as raw:
        ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        extra = [(b"Authorization", f"Bearer {visitor.session.placeholder('HEADER')}".encode())]
        authority = visitor.authority(world.server, HEADER)
        raw.send(ws.send(Handshake(host=authority, target="/ws", extra_headers=extra)))
        ws.receive_data(raw.read())
        assert any(isinstance(event, AcceptConnection) for event in ws.events())
        # The lab's server echoes; to the gate it is an upstream that gives the secret away.
        raw.send(ws.send(TextMessage(f"here: {secret}!")))
        said = raw.read_all()
    assert secret.encode() not in said
    assert visitor.wait_log(type="http", phase="end", reason="reflected_secret")


def test_C_32_no_secret_in_any_file_or_stream_of_the_gate(world: World) -> None:
    """Last in the file: everything above has been through this gate."""
    confined(world)
