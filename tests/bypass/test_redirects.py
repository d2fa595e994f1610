"""Redirects (group R): judged before the client sees them, and the hop judged anew."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server, sequence
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, Upstream, upstream
from tests.lab.visitor import Visitor, bearer, place

A, B, WWW = "a.allowed.test", "b.allowed.test", "www.a.allowed.test"
STORE, CHAIN, FLIP = "store.allowed.test", "chain.allowed.test", "flip.allowed.test"
SECRET = "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ"


@dataclass
class World:
    gate: Gate
    a: Upstream
    b: Upstream
    plain: Upstream
    dns: DnsServer

    def visitor(self, policy: str = "default") -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy, credentials=["key"]))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    hosts = (A, B, WWW, STORE, CHAIN, FLIP)
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1") for name in hosts}) as dns,
        upstream(ca=ca, names=(A, CHAIN, FLIP)) as a,
        upstream(ca=ca, names=(B, WWW, STORE)) as b,
        upstream(names=(A,)) as plain,
    ):
        allow = [
            rule(A, port=a.port, credential="key"),
            rule(B, port=b.port, methods=["GET", "POST"], paths=["/echo", "/open/**"]),
            rule(WWW, port=b.port),
            rule(STORE, port=b.port, strip=["authorization", "x-api-key"]),
            rule(CHAIN, port=a.port, limits={"requests_per_minute": 60}),
            rule(FLIP, port=a.port),
            rule(A, port=plain.port, protocol="http"),
        ]
        credential = {
            "source": {"env": "KEY"},
            "for": [{"host": A}],
            "place": place(),
            "placeholder": {"shape": "generic", "env": "API_KEY"},
        }
        config = configuration(allow=allow, dns=dns, ca=ca, credentials={"key": credential})
        config["policies"]["strict"] = {**config["policies"]["default"], "placeholders": "strict"}
        with gate(config, env={"KEY": SECRET}) as running:
            yield World(running, a, b, plain, dns)


def redirect(to: str, status: int = 302) -> str:
    return f"/redirect?status={status}&to={quote(to, safe='')}"


def header(name: str, value: str, status: int = 200) -> str:
    return f"/header?status={status}&name={name}&value={quote(value, safe='')}"


def test_R_01_the_placeholder_repeated_on_the_other_host_is_refused(world: World) -> None:
    visitor = world.visitor()
    token = bearer(visitor.session.placeholder("API_KEY"))
    to = f"https://{B}:{world.b.port}/echo"
    first = visitor.get(world.a, redirect(to), headers=[token])
    assert (first.status, first.header("location")) == (302, to)
    assert world.a.requests[-1].header("authorization") == f"Bearer {SECRET}"
    world.b.reset()
    hop = visitor.get(world.b, headers=[token])
    assert (hop.status, hop.reason) == (403, "credential_out_of_scope")
    assert world.b.bytes_in == 0
    assert visitor.wait_log(type="incident", reason="credential_out_of_scope")


def test_R_02_https_to_http_on_the_same_name_carries_no_secret(world: World) -> None:
    visitor = world.visitor()
    token = bearer(visitor.session.placeholder("API_KEY"))
    # No rule lets plain http to the https port: the redirect does not reach the client.
    denied = visitor.get(world.a, redirect(f"http://{A}:{world.a.port}/echo"), headers=[token])
    assert (denied.status, denied.reason) == (403, "redirect_denied")
    # Where a rule of its own lets plain http through, the hop goes without the secret or not at all.
    world.plain.reset()
    allowed = visitor.get(world.a, redirect(f"http://{A}:{world.plain.port}/echo"), headers=[token])
    assert allowed.status == 302
    hop = visitor.plain(f"http://{A}:{world.plain.port}/echo", host=f"{A}:{world.plain.port}", headers=[token])
    assert (hop.status, hop.reason) == (403, "credential_out_of_scope")
    assert world.plain.bytes_in == 0
    again = visitor.plain(f"http://{A}:{world.a.port}/echo", host=f"{A}:{world.a.port}", headers=[token])
    assert again.status == 403
    assert again.reason in ("scheme_not_allowed", "port_not_allowed")


def test_R_03_redirect_to_metadata_never_reaches_the_client(world: World) -> None:
    visitor = world.visitor()
    url = "http://169.254.169.254/latest/meta-data/"
    reply = visitor.get(world.a, redirect(url))
    assert (reply.status, reply.reason) == (403, "redirect_denied")
    assert b"169.254" not in reply.raw_head + reply.body
    ended = visitor.wait_log(type="http", phase="end", reason="redirect_denied")
    assert ended[-1]["http"]["location"].startswith("http://169.254.169.254/")
    hop = visitor.plain(url, host="169.254.169.254")
    assert (hop.status, hop.reason) == (403, "metadata")


ODD = {
    "no-scheme": "//evil.test/x",
    "backslash": "/\\evil.test",
    "two-backslashes": "\\\\evil.test",
    "https-without-slashes": "https:evil.test",
    "three-slashes": "///evil.test",
    "tab-inside": "ht\ttps://evil.test/",
    "tab-in-slashes": "/\t/evil.test/",
    "user-info": f"https://{A}@evil.test/",
    "user-info-backslash": f"https://evil.test\\@{A}/",
    "upper-case-scheme": "HTTPS://EVIL.TEST/",
    "control-before": "\x01https://evil.test",
    "trailing-dot": "https://evil.test./",
    "percent-host": "https://%65vil.test/",
    "wide-stop": "https://evil。test/",
    "fragment-trick": f"https://evil.test#@{A}/",
    "query-trick": f"https://evil.test?@{A}/",
    "leading-space": "  https://evil.test/",
}


@pytest.mark.parametrize("to", list(ODD.values()), ids=list(ODD))
def test_R_04_odd_locations_are_taken_for_what_some_client_makes_of_them(world: World, to: str) -> None:
    world.a.reset()
    raw = b"HTTP/1.1 302 Found\r\nLocation: " + to.encode() + b"\r\nContent-Length: 0\r\n\r\n"
    world.a.route("/odd", raw)
    reply = world.visitor().get(world.a, "/odd")
    # A control character is no header value at all; everything else is a redirect to a denied place.
    assert (reply.status, reply.reason) in ((403, "redirect_denied"), (502, "bad_upstream"))
    assert "location" not in dict(reply.headers)
    assert len(world.a.requests) == 1
    assert world.dns.count("evil.test") == world.dns.count("*.evil.test") == 0


def test_R_04_two_locations_do_not_slip_past_with_one_good(world: World) -> None:
    good = f"https://{B}:{world.b.port}/echo"
    head = f"HTTP/1.1 302 Found\r\nLocation: {good}\r\nLocation: https://evil.test/\r\nContent-Length: 0\r\n\r\n"
    world.a.route("/two", head.encode())
    reply = world.visitor().get(world.a, "/two")
    assert (reply.status, reply.reason) == (403, "redirect_denied")


@pytest.mark.parametrize("status", [307, 308])
def test_R_05_a_replayed_method_and_body_are_judged_like_the_first(world: World, status: int) -> None:
    visitor = world.visitor()
    placeholder = visitor.session.placeholder("API_KEY")
    body = b'{"key": "' + placeholder.encode() + b'"}'
    # DELETE is not allowed on B, and 307 repeats it.
    to = f"https://{B}:{world.b.port}/echo"
    denied = visitor.get(world.a, redirect(to, status), method="DELETE")
    assert (denied.status, denied.reason) == (403, "redirect_denied")
    assert visitor.get(world.a, redirect(to, status), method="POST", body=b"x").status == status
    # In the rest of a body the placeholder is inert text: forwarded as it is, and recorded.
    hop = visitor.get(world.b, method="POST", body=body)
    assert hop.json()["body"] == body.decode()
    assert visitor.wait_log(type="credential", reason="placeholder_seen")
    with_header = visitor.get(world.b, method="POST", body=body, headers=[bearer(placeholder)])
    assert (with_header.status, with_header.reason) == (403, "credential_out_of_scope")


def test_R_05_strict_placeholders_refuse_the_replayed_body(world: World) -> None:
    visitor = world.visitor("strict")
    body = visitor.session.placeholder("API_KEY").encode()
    world.b.reset()
    reply = visitor.get(world.b, method="POST", body=body)
    assert (reply.status, reply.reason) == (403, "credential_out_of_scope")
    assert not world.b.requests


@pytest.mark.parametrize("status", [301, 302, 303])
def test_R_05_a_post_that_becomes_a_get_is_judged_as_a_get(world: World, status: int) -> None:
    # Only GET and POST reach B; a client turns a redirected POST into GET (RFC 9110 15.4).
    to = f"https://{B}:{world.b.port}/echo"
    assert world.visitor().get(world.a, redirect(to, status), method="POST", body=b"x").status == status


def test_R_06_each_hop_of_a_loop_costs_and_is_logged(world: World) -> None:
    visitor = world.visitor()
    world.a.reset()
    to = f"https://{CHAIN}:{world.a.port}/redirect"
    statuses = []
    with visitor.tunnel(world.a, CHAIN) as raw:
        for _ in range(65):
            target = redirect(to)
            statuses.append(raw.request("GET", target, host=visitor.authority(world.a, CHAIN)).status)
    assert statuses == [302] * 60 + [429] * 5
    assert len(world.a.requests) == 60
    ends = visitor.wait_log(lambda lines: len(lines) >= 60, type="http", phase="end", reason=None)
    assert len(ends) == 60
    assert len(visitor.log(type="http", phase="decision", reason="budget")) == 5


@pytest.mark.parametrize("name", ["Location", "Refresh", "Link", "X-Next"])
def test_R_07_a_secret_in_a_url_of_a_header_becomes_the_placeholder(world: World, name: str) -> None:
    visitor = world.visitor()
    placeholder = visitor.session.placeholder("API_KEY")
    allowed = f"https://{B}:{world.b.port}/echo?t={SECRET}"
    value = {"Refresh": f"0; url={allowed}", "Link": f"<{allowed}>; rel=next"}.get(name, allowed)
    status = 302 if name == "Location" else 200

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(status, [(name, value)], b"x")

    world.a.route("/leak", give)
    reply = visitor.get(world.a, "/leak", headers=[bearer(placeholder)])
    assert reply.status == status
    assert SECRET.encode() not in reply.raw_head
    assert placeholder in (reply.header(name) or "")
    assert visitor.wait_log(type="http", phase="end", verdict="redact", reason="reflected_secret")


def test_R_07_an_open_redirect_with_the_secret_to_a_denied_host_tells_no_one(world: World) -> None:
    visitor = world.visitor()

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(302, [("Location", f"https://evil.test/?t={SECRET}")], SECRET.encode())

    world.a.route("/open", give)
    reply = visitor.get(world.a, "/open", headers=[bearer(visitor.session.placeholder("API_KEY"))])
    assert (reply.status, reply.reason) == (403, "redirect_denied")
    assert SECRET.encode() not in reply.raw_head + reply.body
    ended = visitor.wait_log(type="http", phase="end", reason="redirect_denied")
    assert SECRET not in str(ended)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Refresh", "0; url=https://evil.test/"),
        ("Refresh", "0;https://evil.test/"),
        ("Refresh", "5, URL='//evil.test/'"),
        ("Refresh", "0; url=http://169.254.169.254/"),
        ("Content-Location", "https://evil.test/"),
        ("Location", "https://evil.test/"),
    ],
)
def test_R_08_a_hint_at_a_denied_place_is_removed_and_the_answer_stays(world: World, name: str, value: str) -> None:
    visitor = world.visitor()
    reply = visitor.get(world.a, header(name, value, 201), method="POST", body=b"write")
    assert (reply.status, reply.body) == (201, b"see the header\n")
    assert reply.header(name) is None
    assert visitor.wait_log(reason="redirect_removed")


def test_R_08_a_hint_at_an_allowed_place_stays(world: World) -> None:
    value = f"0; url=https://{B}:{world.b.port}/echo"
    assert world.visitor().get(world.a, header("Refresh", value)).header("refresh") == value


def test_R_09_a_subdomain_is_another_host(world: World) -> None:
    visitor = world.visitor()
    world.b.reset()
    reply = visitor.get(world.b, host=WWW, headers=[bearer(visitor.session.placeholder("API_KEY"))])
    assert (reply.status, reply.reason) == (403, "credential_out_of_scope")
    assert world.b.bytes_in == 0


def test_R_10_a_strip_rule_drops_the_repeated_placeholder_and_lets_the_request_go(world: World) -> None:
    visitor = world.visitor()
    placeholder = visitor.session.placeholder("API_KEY")
    to = f"https://{STORE}:{world.b.port}/echo"
    assert visitor.get(world.a, redirect(to), headers=[bearer(placeholder)]).status == 302
    reply = visitor.get(world.b, host=STORE, headers=[bearer(placeholder), ("X-Api-Key", placeholder)])
    assert reply.status == 200
    names = {name.lower() for name, _ in reply.json()["headers"]}
    assert not names & {"authorization", "x-api-key"}
    assert placeholder not in str(reply.json())
    assert visitor.wait_log(type="credential", reason="placeholder_seen")


def test_R_11_proxy_authorization_reaches_no_upstream(world: World) -> None:
    visitor = world.visitor()
    extra = [("Proxy-Authorization", "Basic czpzZWNyZXQ="), ("Proxy-Connection", "keep-alive")]
    inside = visitor.get(world.b, headers=extra)
    assert inside.status == 200
    plain = visitor.plain(f"http://{A}:{world.plain.port}/echo", host=f"{A}:{world.plain.port}")
    assert plain.status == 200
    for reply in (inside, plain):
        assert not [name for name, _ in reply.json()["headers"] if name.lower().startswith("proxy-")]


@pytest.mark.parametrize("where", ["X-Api-Key", "Private-Token", "X-Anything", "Cookie", "query", "path"])
def test_R_12_any_field_or_parameter_with_the_placeholder_is_in_the_scope_check(world: World, where: str) -> None:
    visitor = world.visitor()
    placeholder = visitor.session.placeholder("API_KEY")
    world.b.reset()
    target = {"query": f"/echo?key={placeholder}", "path": f"/open/{placeholder}"}.get(where, "/echo")
    headers = [] if where in ("query", "path") else [(where, f"k={placeholder}" if where == "Cookie" else placeholder)]
    reply = visitor.get(world.b, target, headers=headers)
    assert (reply.status, reply.reason) == (403, "credential_out_of_scope")
    assert world.b.bytes_in == 0


def test_R_13_cookies_of_a_credentialed_host_do_not_reach_the_client(world: World) -> None:
    visitor = world.visitor()
    with_key = visitor.get(world.a, "/cookies", headers=[bearer(visitor.session.placeholder("API_KEY"))])
    assert with_key.status == 200
    assert with_key.header_all("set-cookie") == []
    assert len(visitor.get(world.b, "/cookies", host=WWW).header_all("set-cookie")) == 2


SPELLINGS = ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "127.1", "[::ffff:a9fe:a9fe]", "017700000001"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_R_14_a_redirect_to_a_spelling_of_an_address_is_denied_and_so_is_the_hop(world: World, spelling: str) -> None:
    visitor = world.visitor()
    reply = visitor.get(world.a, redirect(f"http://{spelling}/"))
    assert (reply.status, reply.reason) == (403, "redirect_denied")
    hop = visitor.plain(f"http://{spelling}/", host=spelling)
    assert hop.reason in ("malformed_host", "metadata")


@pytest.mark.parametrize(
    "url",
    ["gopher://b.allowed.test/1", "ftp://b.allowed.test/x", "file:///etc/passwd", "data:text/html,x", "javascript:x"],
)
def test_R_15_only_http_and_https_pass(world: World, url: str) -> None:
    visitor = world.visitor()
    reply = visitor.get(world.a, redirect(url))
    assert (reply.status, reply.reason) == (403, "redirect_denied")
    assert visitor.plain(url, host=B).status == 400


@pytest.mark.parametrize(
    "value",
    [b"/" + b"x" * 100_000, b"/a\nSet-Cookie: x=1", b"/a\rSet-Cookie: x=1", b"/a\x00b", b"/a\r\n\tfolded"],
    ids=["100KB", "LF", "CR", "NUL", "folded"],
)
def test_R_16_a_location_that_smuggles_is_a_bad_upstream(world: World, value: bytes) -> None:
    world.a.route("/long", b"HTTP/1.1 302 Found\r\nLocation: " + value + b"\r\nContent-Length: 0\r\n\r\n")
    reply = world.visitor().get(world.a, "/long")
    assert (reply.status, reply.reason) == (502, "bad_upstream")
    assert reply.header("set-cookie") is None
    assert len(reply.raw_head) < 2000


def test_R_18_the_same_name_after_its_dns_flipped_is_vetted_again(world: World) -> None:
    visitor = world.visitor()
    world.dns.set(FLIP, sequence(addresses("127.0.0.1", ttl=0), addresses("10.0.0.5", ttl=0)))
    to = f"https://{FLIP}:{world.a.port}/echo"
    assert visitor.get(world.a, redirect(to), host=FLIP).status == 302
    seen = len(world.a.requests)
    hop = visitor.get(world.a, host=FLIP)
    assert (hop.status, hop.reason) == (502, "destination_unavailable")
    assert len(world.a.requests) == seen
    assert visitor.wait_log(type="http", reason="resolved_blocked")


def test_R_19_the_environment_of_a_session_brings_no_netrc(world: World) -> None:
    visitor = world.visitor()
    assert not [name for name in visitor.session.env if "NETRC" in name.upper()]
    # What the sandbox has of its own goes where it likes among the allowed, but never to a host that has our key.
    own = ("Authorization", "Basic bWFjaGluZTpwYXNzd29yZA==")
    assert dict(visitor.get(world.b, headers=[own]).json()["headers"])["Authorization"] == own[1]
    refused = visitor.get(world.a, headers=[own])
    assert (refused.status, refused.reason) == (403, "foreign_credential")
