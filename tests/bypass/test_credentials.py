"""Group C end to end: what the upstream sees, what comes back, and what stands in any file of the gate."""

import base64
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import brotli
import pytest
import wsproto
import zstandard
from wsproto.events import AcceptConnection, TextMessage
from wsproto.events import Request as Handshake

from tests.lab.certs import Authority
from tests.lab.client import H2Client, Refused
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, GateDied, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream, hang, upstream
from tests.lab.visitor import Visitor, bearer, place

HEADER, BASIC, QUERY = "header.allowed.test", "basic.allowed.test", "query.allowed.test"
OTHER, REPLACED, FILED, COMMANDED = "other.allowed.test", "own.allowed.test", "file.allowed.test", "cmd.allowed.test"
SHORT_LIVED, INSIDE = "short.allowed.test", "inside.allowed.test"
SECRETS = {
    "header": "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ",
    "basic": "ghp_Qm4zX8vR2nT6yU0pL3kJ7hG1fD5sA9wE2rT4",
    "query": "AIza/Zx9+Cv8=Bn7&Mq6?Wp5%Er4 Ty3#Ui2",
    "own": "own-Kd83mZq01xVb72nPy56tLw94cRf",
    "filed": "file-Hs82kQp37vBn64mXz19tRw50yLc",
    "commanded": "cmd-Wn57xKq92mVb38zPt61yRs04fLc",
    "short": "short-Tb61nQx84mKv29zRp73yWs05fLc",
}
RENEWED = "renew-Yc47mVq18xKn93bZt52pRw60sLf"
CHECKED = ["/echo", "/reflect", "/r/**", "/cookies", "/header", "/ws", "/sse/**", "/bytes/**", "/status/**"]


@dataclass
class World:
    gate: Gate
    server: Upstream
    two: Upstream
    dns: DnsServer
    folder: Path

    def visitor(self, policy: str = "default", **more: object) -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy, credentials=list(SECRETS), **more))  # type: ignore[arg-type]


def credential(name: str, host: str, where: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "source": {"env": f"{name.upper()}_KEY"},
        "for": [{"host": host, "methods": ["GET", "POST", "PUT", "OPTIONS"], "paths": CHECKED}],
        "place": where,
        "placeholder": {"shape": "generic", "env": name.upper()},
        **more,
    }


def printed(path: Path) -> dict[str, object]:
    return {"command": ["/bin/cat", str(path)]}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tgc-", dir="/tmp"))
    made.chmod(0o755)
    (made / "filed").write_text(SECRETS["filed"] + "\r\n")
    for name in ("commanded", "short"):
        (made / name).write_text(SECRETS[name] + "\n")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    hosts = (HEADER, BASIC, QUERY, OTHER, REPLACED, FILED, COMMANDED, SHORT_LIVED)
    credentials = {
        "header": credential("header", HEADER, place()),
        "basic": credential("basic", BASIC, place(basic={"user": "x-access-token"})),
        "query": credential("query", QUERY, place(query="key")),
        "own": credential("own", REPLACED, place(header="X-Api-Key"), foreign="replace"),
        "filed": credential("filed", FILED, place(), source={"file": str(folder / "filed")}),
        "commanded": credential("commanded", COMMANDED, place(), source=printed(folder / "commanded")),
        "short": credential("short", SHORT_LIVED, place(), source=printed(folder / "short"), ttl_seconds=10),
    }
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1") for name in hosts}) as dns,
        upstream(ca=ca, names=hosts) as server,
        upstream(ca=ca, names=hosts, alpn=("h2",)) as two,
    ):
        bound = zip(hosts, ("header", "basic", "query", None, "own", "filed", "commanded", "short"), strict=True)
        dns.set(INSIDE, addresses("10.9.8.7"))
        allow = [
            rule(INSIDE, port=server.port),
            *(
                rule(host, ports=[server.port, two.port], websocket=True, **({"credential": name} if name else {}))
                for host, name in bound
            ),
        ]
        config = configuration(allow=allow, dns=dns, ca=ca, credentials=credentials)
        config["policies"]["strict"] = {**config["policies"]["default"], "placeholders": "strict"}
        env = {
            f"{name.upper()}_KEY": secret
            for name, secret in SECRETS.items()
            if name in ("header", "basic", "query", "own")
        }
        with gate(config, env=env) as running:
            yield World(running, server, two, dns, folder)


def basic(user: str, password: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def refused(reply: object, *reasons: str) -> None:
    assert reply.reason in reasons, (reply.status, reply.body)  # type: ignore[attr-defined]


# -- putting the secret in ------------------------------------------------------------------------


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
    refused(reply, "credential_out_of_scope", "encoded_placeholder")
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


@pytest.mark.parametrize("value", list(NOT_WHOLE.values()), ids=list(NOT_WHOLE))
def test_C_05_basic_that_is_not_the_placeholder_as_a_whole_field(world: World, value: Callable[[str], str]) -> None:
    visitor = world.visitor()
    world.server.reset()
    header = ("Authorization", value(visitor.session.placeholder("BASIC")))
    reply = visitor.get(world.server, host=BASIC, headers=[header])
    refused(reply, "foreign_credential", "encoded_placeholder", "credential_out_of_scope")
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
        ("/echo?key={p}x", "foreign_credential"),
        ("/echo?k%65y={p}", "foreign_credential"),
    ],
)
def test_C_06_other_parameters_and_doubles_are_refused(world: World, target: str, reason: str) -> None:
    visitor = world.visitor()
    world.server.reset()
    reply = visitor.get(world.server, target.format(p=visitor.session.placeholder("QUERY")), host=QUERY)
    refused(reply, reason, "credential_out_of_scope")
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
    refused(in_place, "encoded_placeholder", "foreign_credential")
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
        refused(
            visitor.get(world.server, host=HEADER, headers=headers),
            "credential_out_of_scope", "encoded_placeholder", "foreign_credential",
        )  # fmt: skip
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


# -- what comes back ------------------------------------------------------------------------------


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


# -- scope, lifetime ------------------------------------------------------------------------------


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
            assert server.wait(lambda one: one.requests and one.requests[-1].path == "/r/hang")
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
        refused(
            visitor.get(world.server, host=host, headers=[bearer(token)]), "unknown_placeholder", "foreign_credential"
        )
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
    text = check(one_credential({"placeholder": {"shape": shape, "env": "KEY"}}))
    assert "placeholder.shape" in text


@pytest.mark.parametrize("host", ["*.allowed.test", "*", "10.0.0.1"])
def test_C_41_a_credential_is_bound_to_exact_hosts(host: str) -> None:
    assert "host" in check(one_credential({"for": [{"host": host}]}))


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
                time.sleep(0.2)
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


def needles() -> list[bytes]:
    found = []
    for secret in (*SECRETS.values(), RENEWED):
        raw = secret.encode()
        encoded = [base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)]
        found += [raw, raw.hex().encode(), quote(secret, safe="").encode(), *encoded]
    return found


def test_C_32_no_secret_in_any_file_or_stream_of_the_gate(world: World) -> None:
    """Last in the file: everything above has been through this gate."""
    pids = [world.gate.process.pid]
    for pid in pids:
        task = Path(f"/proc/{pid}/task/{pid}/children")
        pids += [int(child) for child in task.read_text().split()]
    files = [path for path in world.gate.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".jsonl" for path in files)
    assert any("keeper" in str(path) for path in files), "the store is where one would look first"
    texts = {str(path): path.read_bytes() for path in files} | {"stderr": world.gate.stderr.encode()}
    for pid in pids:
        texts[f"argv of {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
        if pid not in (pids[0], keeper(world)):  # these two are given it by their environment
            texts[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_bytes()
    for name, text in texts.items():
        for needle in needles():
            assert needle not in text, f"a secret stands in {name}"


def keeper(world: World) -> int:
    out = subprocess.run(
        ["pgrep", "-P", str(world.gate.process.pid), "-f", "tidegate.keeper.__main__"], capture_output=True
    )
    return int(out.stdout or 0)


def one_credential(changes: dict[str, object]) -> dict[str, object]:
    allow = [rule(HEADER, port=8443, credential="one")]
    one = {"source": {"env": "KEY"}, "for": [{"host": HEADER}], "place": place(), "placeholder": {"shape": "generic"}}
    return configuration(allow=allow, credentials={"one": {**one, **changes}})


def check(config: dict[str, object]) -> str:
    """Return what the gate says as it refuses to start with a configuration."""
    with pytest.raises(GateDied) as died, gate(config, env={"KEY": SECRETS["header"]}):
        pass
    return str(died.value)
