"""Group C end to end, on the way out: where a placeholder becomes the secret, and where it never does."""

import base64
import gzip
import json
from collections.abc import Callable
from urllib.parse import quote

import brotli
import pytest
import zstandard

from tests.bypass.vault import (
    BASIC,
    FILED,
    HEADER,
    OTHER,
    QUERY,
    REPLACED,
    SECRETS,
    World,
    basic,
    confined,
    one_credential,
    refused,
    world_fixture,
)
from tests.lab.client import H2Client
from tests.lab.gate import GateDied, gate
from tests.lab.visitor import bearer

world = world_fixture()


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_C_01_C_13_the_header_is_swapped_once_whatever_its_case(world: World, name: str) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    reply = visitor.get(world.server, host=HEADER, headers=[(name, f"Bearer {token}")])
    seen = world.server.requests[-1]
    assert seen.header("authorization") == f"Bearer {SECRETS['header']}"
    assert seen.raw_head.count(SECRETS["header"].encode()) == 1
    assert token.encode() not in seen.raw_head
    assert SECRETS["header"].encode() not in reply.raw_head + reply.body
    assert token.encode() in reply.body  # the echo says what the client sent
    use = visitor.wait_log(type="credential", phase="event", verdict="allow")
    assert use[0]["credential"]["name"] == "header"
    assert SECRETS["header"] not in json.dumps(world.gate.audit())


@pytest.mark.parametrize("client", ["h1", "h2"])
def test_C_01_http2_on_both_legs(world: World, client: str) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    alpn = ("h2",) if client == "h2" else ("http/1.1",)
    with visitor.tunnel(world.two if client == "h2" else world.server, HEADER, alpn=alpn) as raw:
        if client == "h2":
            authority = visitor.authority(world.two, HEADER)
            reply = H2Client(raw).request(
                "GET", "/echo", authority=authority, headers=[("authorization", f"Bearer {token}")]
            )
        else:
            reply = raw.request("GET", "/echo", host=visitor.authority(world.server, HEADER), headers=[bearer(token)])
    seen = (world.two if client == "h2" else world.server).requests[-1]
    assert seen.header("authorization") == f"Bearer {SECRETS['header']}"
    assert SECRETS["header"].encode() not in reply.body
    assert token.encode() in reply.body


PLACES: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "authorization": lambda text: [("Authorization", f"Bearer {text}")],
    "x-api-key": lambda text: [("X-Api-Key", text)],
    "basic": lambda text: [basic("u", text)],
    "cookie": lambda text: [("Cookie", f"a=1; t={text}")],
    "user-agent": lambda text: [("User-Agent", f"curl/{text}")],
    "referer": lambda text: [("Referer", f"https://x.test/?{text}")],
    "field-name": lambda text: [(f"X-{text}", "1")],
}


@pytest.mark.parametrize("where", list(PLACES))
def test_C_02_on_another_allowed_host_nothing_is_forwarded(world: World, where: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    reply = visitor.get(world.server, host=OTHER, headers=PLACES[where](visitor.session.placeholder("HEADER")))
    refused(reply, "credential_out_of_scope")
    assert world.server.bytes_in == 0
    assert visitor.wait_log(type="incident")


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer sk-attackers-own-key-000000000000")],
        [("Authorization", "token sk-attackers-own-key")],
        [basic("attacker", "password")],
        [("X-Api-Key", "sk-attackers-own-key")],
        [("Private-Token", "glpat-attackers-own")],
    ],
    ids=["bearer", "token", "basic", "x-api-key", "private-token"],
)
def test_C_03_the_sandbox_brings_no_account_of_its_own(world: World, headers: list[tuple[str, str]]) -> None:
    visitor = world.visitor()
    world.server.reset()
    refused(visitor.get(world.server, host=HEADER, headers=headers), "foreign_credential")
    assert world.server.bytes_in == 0


def test_C_03_or_it_is_replaced_where_the_credential_says_so(world: World) -> None:
    visitor = world.visitor()
    visitor.get(world.server, host=REPLACED, headers=[("X-Api-Key", "attackers-own")])
    assert world.server.requests[-1].header_all("x-api-key") == [SECRETS["own"]]


@pytest.mark.parametrize("target", ["/echo?access_token=mine", "/echo?api_key=mine", "/echo?X-Amz-Credential=mine"])
def test_C_03_nor_in_the_query(world: World, target: str) -> None:
    refused(world.visitor().get(world.server, target, host=HEADER), "foreign_credential")


def test_C_04_basic_is_decoded_swapped_and_encoded(world: World) -> None:
    visitor = world.visitor()
    visitor.get(world.server, host=BASIC, headers=[basic("x-access-token", visitor.session.placeholder("BASIC"))])
    seen = world.server.requests[-1].header("authorization")
    assert seen == basic("x-access-token", SECRETS["basic"])[1]


NOT_WHOLE: dict[str, Callable[[str], str]] = {
    "as-user": lambda p: basic(p, "x")[1],
    "with-a-tail": lambda p: basic("x", p + "x")[1],
    "bad-padding": lambda p: basic("x", p)[1].rstrip("=")[:-1],
    "not-utf-8": lambda p: "Basic " + base64.b64encode(b"\xff\xfe:" + p.encode() + b"\xff").decode(),
    "no-base64": lambda p: "Basic !!!!",
}


@pytest.mark.parametrize("how", list(NOT_WHOLE))
def test_C_05_basic_that_is_not_the_placeholder_as_a_whole_field(world: World, how: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    header = ("Authorization", NOT_WHOLE[how](visitor.session.placeholder("BASIC")))
    reply = visitor.get(world.server, host=BASIC, headers=[header])
    refused(reply, "foreign_credential" if how in ("bad-padding", "no-base64") else "credential_out_of_scope")
    assert world.server.bytes_in == 0


def test_C_06_query_is_swapped_and_escaped(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("QUERY")
    reply = visitor.get(world.server, f"/echo?a=1&key={token}&b=2", host=QUERY)
    assert world.server.requests[-1].target == f"/echo?a=1&key={quote(SECRETS['query'], safe='')}&b=2"
    assert quote(SECRETS["query"], safe="").encode() not in reply.body
    assert SECRETS["query"] not in json.dumps(visitor.log())


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/echo?key={p}&key={p}", "ambiguous"),
        ("/echo?key=x&key={p}", "ambiguous"),
        ("/echo?key={p}&KEY=x", "ambiguous"),
        ("/echo?key={p};key={p}", "ambiguous"),
        ("/echo?other={p}", "credential_out_of_scope"),
        ("/echo?key={p}x", "credential_out_of_scope"),
        ("/echo?k%65y={p}", "credential_out_of_scope"),
    ],
)
def test_C_06_other_parameters_and_doubles_are_refused(world: World, target: str, reason: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    reply = visitor.get(world.server, target.format(p=visitor.session.placeholder("QUERY")), host=QUERY)
    refused(reply, reason)
    assert world.server.bytes_in == 0


def test_C_09_a_body_publishes_no_secret(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    body = json.dumps({"files": {"leak.txt": {"content": token}}}).encode()
    reply = visitor.get(world.server, host=HEADER, method="POST", headers=[bearer(token)], body=body)
    assert reply.status == 200
    seen = world.server.requests[-1]
    assert seen.body == body
    assert seen.header("authorization") == f"Bearer {SECRETS['header']}"
    assert visitor.wait_log(type="credential", reason="placeholder_seen")


def test_C_09_strict_refuses_it(world: World) -> None:
    visitor = world.visitor("strict")
    token = visitor.session.placeholder("HEADER")
    world.server.reset()
    refused(visitor.get(world.server, host=HEADER, method="POST", body=token.encode()), "credential_out_of_scope")
    assert not world.server.requests


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "x-foo"])
@pytest.mark.parametrize("honest", [True, False], ids=["coded", "lying"])
def test_C_10_a_coded_request_body_is_not_edited_and_never_a_fault(world: World, coding: str, honest: bool) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER").encode()
    pack = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress}.get(coding)
    body = pack(token) if pack and honest else token
    headers = [("Content-Encoding", coding)]
    reply = visitor.get(world.server, host=HEADER, method="POST", headers=headers, body=body)
    assert reply.status == 200
    assert world.server.requests[-1].body == body
    strict = world.visitor("strict")
    refused(strict.get(world.server, host=HEADER, method="POST", headers=headers, body=body), "encoded_body")
    assert not world.gate.audit(type="fault")


@pytest.mark.parametrize("client", ["chunks", "segments", "frames"])
def test_C_11_a_placeholder_in_two_pieces_is_seen_and_in_a_header_swapped(world: World, client: str) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    first, second = token[:13].encode(), token[13:].encode()
    if client == "frames":
        with visitor.tunnel(world.two, HEADER, alpn=("h2",)) as raw:
            h2 = H2Client(raw)
            authority = visitor.authority(world.two, HEADER)
            stream = h2.begin("POST", "/echo", authority=authority, end=False)
            h2.data(stream, first, end=False)
            h2.data(stream, second)
            assert h2.reply(stream).status == 200
    else:
        with visitor.tunnel(world.server, HEADER) as raw:
            host = visitor.authority(world.server, HEADER)
            head = f"POST /echo HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n".encode()
            if client == "chunks":
                pieces = [head + b"Transfer-Encoding: chunked\r\n\r\n", b"d\r\n" + first + b"\r\n"]
                pieces += [b"%x\r\n%b\r\n" % (len(second), second), b"0\r\n\r\n"]
            else:
                cut = head.index(token.encode()) + 9
                head += b"Content-Length: %d\r\n\r\n" % len(token)
                pieces = [head[:cut], head[cut:], first, second]
            raw.send_slowly(pieces)
            assert raw.reply().status == 200
        assert world.server.requests[-1].header("authorization") == f"Bearer {SECRETS['header']}"
    assert (world.two if client == "frames" else world.server).requests[-1].body == token.encode()
    assert visitor.wait_log(type="credential", reason="placeholder_seen")


def test_C_11_strict_stops_a_split_placeholder_under_way(world: World) -> None:
    visitor = world.visitor("strict")
    token = visitor.session.placeholder("HEADER").encode()
    world.server.reset()
    with visitor.tunnel(world.server, HEADER) as raw:
        host = visitor.authority(world.server, HEADER).encode()
        raw.send(b"POST /echo HTTP/1.1\r\nHost: " + host + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        raw.send(b"9\r\n" + token[:9] + b"\r\n")
        raw.send(b"%x\r\n%b\r\n" % (len(token) - 9, token[9:]))
        refused(raw.reply(), "credential_out_of_scope")
    assert not world.server.requests


def test_C_12_a_long_body_streams_with_a_swap_in_the_header_only(world: World) -> None:
    visitor = world.visitor()
    token = visitor.session.placeholder("HEADER")
    body = token.encode() + b"x" * (8 << 20) + token.encode()
    assert visitor.get(world.server, host=HEADER, method="PUT", headers=[bearer(token)], body=body).status == 200
    seen = world.server.requests[-1]
    assert seen.header("authorization") == f"Bearer {SECRETS['header']}"
    assert seen.body == body


def spelled(token: str, form: str) -> str:
    return {
        "percent": "".join(f"%{byte:02X}" for byte in token.encode()),
        "double-percent": quote("".join(f"%{byte:02X}" for byte in token.encode())),
        "json": "".join(f"\\u{byte:04x}" for byte in token.encode()),
        "html": "".join(f"&#{byte};" for byte in token.encode()),
        "base64": base64.b64encode(token.encode()).decode(),
        "hex": token.encode().hex(),
        "upper": token.upper(),
    }[form]


@pytest.mark.parametrize("form", ["percent", "double-percent", "json", "html", "base64", "hex", "upper"])
def test_C_13_C_14_an_encoded_placeholder_is_recognised(world: World, form: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    token = spelled(visitor.session.placeholder("HEADER"), form)
    refused(visitor.get(world.server, host=OTHER, headers=[("X-Thing", token)]), "encoded_placeholder")
    in_place = visitor.get(world.server, host=HEADER, headers=[("Authorization", f"Bearer {token}")])
    refused(in_place, "encoded_placeholder")
    assert world.server.bytes_in == 0


def test_C_15_the_line_end_of_a_secret_file_is_no_part_of_the_secret(world: World) -> None:
    visitor = world.visitor()
    visitor.get(world.server, host=FILED, headers=[bearer(visitor.session.placeholder("FILED"))])
    assert world.server.requests[-1].header("authorization") == f"Bearer {SECRETS['filed']}"


@pytest.mark.parametrize("inner", ["\n", "\r", "\r\nX-Smuggled: 1"])
def test_C_15_a_secret_with_a_line_end_inside_does_not_load(inner: str) -> None:
    config = one_credential({"source": {"env": "KEY"}})
    with (
        pytest.raises(GateDied, match=r"line break|carriage return"),
        gate(config, env={"KEY": f"sk-Live-3xR7vQ2mZ9{inner}pL5tY8wK1nB4cD6"}),
    ):
        pass


@pytest.mark.parametrize("where", ["user-agent", "referer", "cookie", "x-api-key", "field-name"])
def test_C_16_an_unbound_place_on_the_bound_host(world: World, where: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    token = visitor.session.placeholder("HEADER")
    both = [bearer(token), *PLACES[where](token)]
    for headers in (both, both[1:]):
        refused(visitor.get(world.server, host=HEADER, headers=headers), "credential_out_of_scope")  # fmt: skip
    assert world.server.bytes_in == 0


def test_C_16_the_place_twice_is_ambiguous(world: World) -> None:
    visitor = world.visitor()
    token = bearer(visitor.session.placeholder("HEADER"))
    refused(visitor.get(world.server, host=HEADER, headers=[token, token]), "ambiguous")


def test_C_17_a_placeholder_as_a_name_makes_no_query(world: World) -> None:
    visitor = world.visitor()
    label = visitor.session.placeholder("HEADER").lower()
    world.dns.reset()
    for name in (f"{label}.evil.test", f"{label}.allowed.test", label):
        refused(visitor.get(world.server, host=name), "not_in_allowlist")
    with visitor.tunnel(world.server, OTHER, sni=f"{label}.evil.test", ca=None) as raw:
        refused(raw.request("GET", "/", host=visitor.authority(world.server, OTHER)), "sni_mismatch")
    assert world.dns.count("*.evil.test") == world.dns.count(f"{label}.allowed.test") == world.dns.count(label) == 0


SIGNED = {
    "sigv4": "AWS4-HMAC-SHA256 Credential={p}/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=00",
    "hmac": "HMAC {p}:0000",
    "digest": 'Digest username="{p}", response="00"',
    "oauth": 'OAuth oauth_consumer_key="{p}", oauth_signature="00"',
}


@pytest.mark.parametrize("scheme", list(SIGNED))
def test_C_18_what_is_signed_with_the_placeholder_is_refused_with_a_word(world: World, scheme: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    value = SIGNED[scheme].format(p=visitor.session.placeholder("HEADER"))
    reply = visitor.get(world.server, host=HEADER, headers=[("Authorization", value)])
    refused(reply, "unsupported_signing")
    assert "sign" in reply.json()["detail"]
    assert world.server.bytes_in == 0


def test_C_32_no_secret_in_any_file_or_stream_of_the_gate(world: World) -> None:
    """Last in the file: everything above has been through this gate."""
    confined(world)
