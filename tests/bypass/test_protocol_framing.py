"""Group P, what a request is made of: framing, fields, methods and paths that two parsers read in two ways.

Each is tried where it can bite: on the proxy port in absolute form, and inside TLS. What is refused leaves no byte
upstream; what is let through is written anew, and the server's exact bytes are looked at.

Longer than a module should be, by its tables: a line an attack.
"""

import pytest

from tests.bypass.arena import ONE, SCOPED, Arena, arena_fixture, fields
from tests.lab.client import H2Client, RawClient, RawReply
from tests.lab.upstream import Upstream
from tidegate.policy.reasons import Reason

arena = arena_fixture()


class Leg:
    """One of the two ways to the gate: the start of a request there, and the server behind."""

    def __init__(self, arena: Arena, kind: str, raw: RawClient) -> None:
        self.arena, self.kind, self.raw = arena, kind, raw
        self.server: Upstream = arena.one if kind == "tunnel" else arena.plain
        self.host = self.server.authority.encode()

    def send(self, rest: bytes, *, line: bytes | None = None, method: bytes = b"POST") -> None:
        """Send a head with `rest` after the Host line; `rest` has its own line ends and the body."""
        target = b"/echo" if self.kind == "tunnel" else b"http://%b/echo" % self.host
        proof = b"" if self.kind == "tunnel" else self.arena.proof
        first = line if line is not None else b"%b %b HTTP/1.1" % (method, target)
        self.raw.send(b"%b\r\nHost: %b\r\n%b%b" % (first, self.host, proof, rest))


each_way = pytest.mark.parametrize("way", ["tunnel", "plain"])


def refused(arena: Arena, way: str, rest: bytes, reason: Reason, *, method: bytes = b"POST") -> RawReply:
    """Assert that a head is refused at once with nothing sent upstream."""
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with arena.quiet(), opened as raw:
        Leg(arena, way, raw).send(rest, method=method)
        reply = raw.reply()
        assert raw.closed(), "the rest of the connection has no one reading"
        story = arena.story(raw)
    story.denied(reply, reason)
    return reply


FRAMING = {
    "P_12_length_and_coding": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "P_12_coding_and_length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "P_13_identity_after": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "P_13_gzip_before": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "P_13_x": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "P_13_folded": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "P_13_two_lines": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "P_13_two_lines_disagree": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "P_13_vertical_tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "P_13_quoted": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "P_13_parameter": b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "P_14_bare_lf": b"X: a\nY: b\r\n\r\n",
    "P_14_bare_cr": b"X: a\rY: b\r\n\r\n",
    "P_14_folded_value": b"X: a\r\n b\r\n\r\n",
    "P_15_twice": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "P_15_twice_different": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "P_15_comma": b"Content-Length: 5, 5\r\n\r\nhello",
    "P_15_plus": b"Content-Length: +5\r\n\r\nhello",
    "P_15_minus": b"Content-Length: -5\r\n\r\nhello",
    "P_15_hex": b"Content-Length: 0x5\r\n\r\nhello",
    "P_15_twenty_digits": b"Content-Length: 18446744073709551621\r\n\r\nhello",
    "P_15_underscore": b"Content-Length: 1_0\r\n\r\nhello",
    "P_15_empty": b"Content-Length:\r\n\r\nhello",
    "P_16_space_before_colon": b"X-A : b\r\n\r\n",
    "P_16_space_before_colon_of_a_framing_field": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "P_16_empty_name": b": b\r\n\r\n",
    "P_16_nul_in_a_value": b"X-A: b\0c\r\n\r\n",
    "P_16_del_in_a_value": b"X-A: b\x7fc\r\n\r\n",
    "P_16_no_token": b"X(A): b\r\n\r\n",
    "P_16_no_colon": b"X-A\r\n\r\n",
    "P_16_high_byte_in_a_name": b"X-\xe9: b\r\n\r\n",
    "P_16_expect_something_else": b"Expect: 200-ok\r\nContent-Length: 0\r\n\r\n",
}


@each_way
@pytest.mark.parametrize("rest", FRAMING.values(), ids=FRAMING.keys())
def test_P_12_P_13_P_14_P_15_P_16_head_with_two_readings(arena: Arena, way: str, rest: bytes) -> None:
    refused(arena, way, rest, Reason.AMBIGUOUS)


@each_way
def test_P_14_all_lines_end_in_lf(arena: Arena, way: str) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with arena.quiet(), opened as raw:
        raw.send(b"GET /echo HTTP/1.1\nHost: %b\n\n" % arena.one.authority.encode())
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.AMBIGUOUS)


CHUNKS = {
    "P_17_no_crlf_after_data": b"5\r\nhelloXX0\r\n\r\n",
    "P_17_lf_after_data": b"5\r\nhello\n0\r\n\r\n",
    "P_17_0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "P_17_plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "P_17_minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "P_17_empty_size": b"\r\nhello\r\n0\r\n\r\n",
    "P_17_underscore": b"1_0\r\nhello\r\n0\r\n\r\n",
    "P_17_huge_size": b"fffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "P_17_lf_after_size": b"5\nhello\r\n0\r\n\r\n",
}


@each_way
@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS.keys())
def test_P_17_chunks_with_two_readings_never_travel(arena: Arena, way: str, body: bytes) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    arena.one.reset()
    arena.plain.reset()
    with opened as raw:
        leg = Leg(arena, way, raw)
        leg.send(b"Transfer-Encoding: chunked\r\n\r\n" + body)
        reply = raw.reply()
        assert raw.closed()
        story = arena.story(raw)
    assert reply.status == 400
    assert reply.reason == Reason.AMBIGUOUS.code
    assert story.requests[0][1]["reason"] == Reason.AMBIGUOUS.code
    assert not leg.server.requests, "no whole request arrived"


@each_way
def test_P_17_chunk_extensions_are_left_behind(arena: Arena, way: str) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with opened as raw:
        leg = Leg(arena, way, raw)
        leg.send(b"Transfer-Encoding: chunked\r\n\r\n5;x=y;z\r\nhello\r\n00\r\n\r\n")
        reply = raw.reply()
        arena.story(raw).allowed()
    assert reply.json()["body"] == "hello"


@each_way
@pytest.mark.parametrize("tail", [b"0\r\nX-Sum: 1\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n"], ids=["any", "framing"])
def test_B_11_request_trailers_end_the_exchange(arena: Arena, way: str, tail: bytes) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with opened as raw:
        leg = Leg(arena, way, raw)
        leg.server.reset()
        leg.send(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" + tail)
        reply = raw.reply()
        arena.story(raw)
    assert (reply.status, reply.reason) == (501, Reason.TRAILERS.code)
    assert not leg.server.requests


# -- P-18: HTTP/2 -----------------------------------------------------------------------------------------

H2 = {
    "P_18_crlf_in_a_value": [("x-a", "b\r\nx-evil: 1")],
    "P_18_lf_in_a_value": [("x-a", "b\nx-evil: 1")],
    "P_18_nul_in_a_value": [("x-a", "b\0c")],
    "P_18_transfer_encoding": [("transfer-encoding", "chunked")],
    "P_18_connection": [("connection", "close")],
    "P_18_upgrade": [("upgrade", "h2c")],
    "P_18_upper_case_name": [("X-Upper", "b")],
    "P_18_space_in_a_name": [("x a", "b")],
    "P_18_colon_in_a_name": [("x:a", "b")],
    "P_18_crlf_in_a_name": [("x-a\r\nx-evil", "b")],
    "P_18_two_lengths": [("content-length", "0"), ("content-length", "0")],
    "P_18_te": [("te", "gzip")],
    "P_18_second_path": [(":path", "/other")],
    "P_18_unknown_pseudo": [(":proto", "x")],
    "P_18_host_differs": [("host", "evil.test")],
}


def _careless(raw: RawClient) -> H2Client:
    h2 = H2Client(raw)
    h2.h2.config.validate_outbound_headers = False
    h2.h2.config.normalize_outbound_headers = False
    return h2


@pytest.mark.parametrize("more", H2.values(), ids=H2.keys())
@pytest.mark.parametrize("server", ["h1_upstream", "h2_upstream"])
def test_P_18_http2_fields_that_would_break_http1(arena: Arena, server: str, more: list[tuple[str, str]]) -> None:
    behind = arena.one if server == "h1_upstream" else arena.two
    with arena.quiet(), arena.tunnel(behind, alpn=("h2",)) as raw:
        h2 = _careless(raw)
        stream = h2.begin("GET", "/echo", authority=behind.authority, headers=more)
        _refusal(h2, stream)
        story = arena.story(raw)
    story.allowed(0)
    assert [end for _, end in story.requests if end["verdict"] == "deny"], story


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y", "", "evil.test/", "http://evil.test/", "/\x7f", "/é"])
def test_P_18_http2_paths(arena: Arena, target: str) -> None:
    with arena.quiet(), arena.tunnel(arena.one, alpn=("h2",)) as raw:
        h2 = _careless(raw)
        stream = h2.begin("GET", target, authority=arena.one.authority)
        _refusal(h2, stream)
        story = arena.story(raw)
    story.allowed(0)
    assert [end for _, end in story.requests if end["verdict"] == "deny"], story


def _refusal(h2: H2Client, stream: int) -> None:
    """Assert a reply of 4xx, a reset, or the end of the connection."""
    try:
        reply = h2.reply(stream)
    except EOFError:
        return
    assert 400 <= reply.status < 500


def test_P_18_an_http2_request_is_written_anew_for_http1(arena: Arena) -> None:
    arena.one.reset()
    with arena.tunnel(arena.one, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        cookies = [("cookie", "a=1"), ("cookie", "b=2"), ("te", "trailers")]
        reply = h2.request("POST", "/echo", authority=arena.one.authority, headers=cookies, body=b"x" * 70_000)
        story = arena.story(raw)
    story.allowed()
    assert story.requests[0][0]["http"]["version"] == "2"
    seen = fields(reply)
    assert seen["cookie"] == ["a=1; b=2"]
    assert seen["host"] == [arena.one.authority]
    assert "te" not in seen
    assert reply.json()["length"] == 70_000
    assert arena.one.requests[0].raw_head.startswith(b"POST /echo HTTP/1.1\r\nHost: ")


# -- P-19, P-31, P-41: fields that are dropped ------------------------------------------------------------

DROPPED = {
    "P_19_h2c": [("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk"), ("Connection", "Upgrade, HTTP2-Settings")],
    "P_31_method_override": [("X-HTTP-Method-Override", "DELETE"), ("X-Method-Override", "PUT")],
    "P_31_url_override": [("X-Original-URL", "/admin"), ("X-Rewrite-URL", "/admin")],
    "P_31_host_override": [("X-Forwarded-Host", "evil.test"), ("Forwarded", "host=evil.test"), ("X-Host", "evil.test")],
    "P_41_proxy_authorization": [("Proxy-Authorization", "Basic czpmb28=")],
    "P_41_proxy_connection": [("Proxy-Connection", "keep-alive"), ("Keep-Alive", "300")],
    "P_41_listed_by_connection": [("Connection", "X-Internal"), ("X-Internal", "1")],
}  # fmt: skip


@pytest.mark.parametrize("more", DROPPED.values(), ids=DROPPED.keys())
def test_P_19_P_31_P_41_fields_that_do_not_travel(arena: Arena, more: list[tuple[str, str]]) -> None:
    with arena.tunnel(arena.one) as raw:
        reply = raw.request("GET", "/echo", host=arena.one.authority, headers=[*more, ("X-Kept", "1")])
        arena.story(raw).allowed()
    seen = fields(reply)
    assert seen["x-kept"] == ["1"]
    assert not {name.lower() for name, _ in more} & seen.keys()


def test_P_41_the_session_token_stays_here(arena: Arena) -> None:
    with arena.connect() as raw:
        Leg(arena, "plain", raw).send(b"Proxy-Connection: close\r\nContent-Length: 0\r\n\r\n")
        reply = raw.reply()
        arena.story(raw).allowed()
    assert not {name for name in fields(reply) if name.startswith("proxy-")}
    assert arena.session.token.encode() not in reply.body


def test_P_41_two_proofs_are_none(arena: Arena) -> None:
    with arena.quiet(), arena.connect() as raw:
        Leg(arena, "plain", raw).send(arena.proof + b"Content-Length: 0\r\n\r\n")
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.SESSION_INVALID)


# -- P-32: paths ------------------------------------------------------------------------------------------

PATHS = [
    "/repos/acme/../../admin", "/repos/acme/%2e%2e/%2e%2e/admin", "/repos/acme/%2E%2E/x", "/repos/acme/..%2fadmin",
    "/repos/acme%2f..%2f..%2fadmin", "/repos/acme/%252e%252e/admin", "/repos/acme/%5c..%5cadmin", "/repos/acme/..\\x",
    "//repos/acme/x", "/repos/acme//x", "/repos/acme/;/x", "/repos/acme/..;/x", "/repos/acme/./x", "/repos/acme/%00",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_P_32_path_with_two_readings_on_a_scoped_rule(arena: Arena, path: str) -> None:
    with arena.quiet(), arena.tunnel(arena.one, SCOPED) as raw:
        reply = raw.request("GET", path, host=f"{SCOPED}:{arena.one.port}")
        story = arena.story(raw)
    assert reply.reason in (Reason.AMBIGUOUS_PATH.code, Reason.MALFORMED_TARGET.code)
    story.denied(reply, Reason(reply.reason))  # type: ignore[call-arg]


def test_P_32_path_outside_the_scope(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, SCOPED) as raw:
        reply = raw.request("GET", "/repos/other/x", host=f"{SCOPED}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.PATH_NOT_ALLOWED)


def test_P_32_path_travels_as_it_was_judged(arena: Arena) -> None:
    arena.one.reset()
    with arena.tunnel(arena.one, SCOPED) as raw:
        raw.request("GET", "/repos/acme/a%20b?x=/../%2e%2e", host=f"{SCOPED}:{arena.one.port}")
        arena.story(raw).allowed()
    assert arena.one.requests[0].target == "/repos/acme/a%20b?x=/../%2e%2e"


# -- P-33: methods ----------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("method", ["get", "pOsT", "Get", "connect", "trace"])
def test_P_33_method_in_another_spelling(arena: Arena, way: str, method: str) -> None:
    refused(arena, way, b"\r\n", Reason.MALFORMED_TARGET, method=method.encode())


@pytest.mark.parametrize("method", ["POST", "DELETE", "TRACE", "GETX"])
def test_P_33_method_outside_the_rule(arena: Arena, method: str) -> None:
    with arena.quiet(), arena.tunnel(arena.one, SCOPED) as raw:
        reply = raw.request(method, "/repos/acme/x", host=f"{SCOPED}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, Reason.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
def test_P_33_methods_that_no_rule_means(arena: Arena, method: str) -> None:
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        reply = raw.request(method, "/echo", host=arena.one.authority)
        story = arena.story(raw)
    story.denied(reply, Reason.METHOD_NOT_ALLOWED)


# -- P-34: uploads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 30_000_000], ids=["chunked", "with_a_length"])
def test_P_34_denied_upload_is_answered_before_its_body(arena: Arena, length: int | None) -> None:
    coding = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    with arena.quiet(), arena.tunnel(arena.one, SCOPED) as raw:
        head = b"POST /repos/acme/x HTTP/1.1\r\nHost: %b:%d\r\nExpect: 100-continue\r\n%b\r\n\r\n"
        raw.send(head % (SCOPED.encode(), arena.one.port, coding))
        reply = raw.reply()
        assert raw.closed()
        story = arena.story(raw)
    story.denied(reply, Reason.METHOD_NOT_ALLOWED)
    assert reply.early == [], "no 100 before the denial"
    assert reply.header("connection") == "close"


def test_P_34_denied_upload_in_full_flow(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, SCOPED) as raw:
        head = b"POST /repos/acme/x HTTP/1.1\r\nHost: %b:%d\r\nContent-Length: 60000\r\n\r\n"
        raw.send(head % (SCOPED.encode(), arena.one.port))
        raw.send(b"x" * 30_000)
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, Reason.METHOD_NOT_ALLOWED)


# -- P-39: junk -------------------------------------------------------------------------------------------

JUNK = {
    "http_0_9": (b"GET /\r\n\r\n", Reason.MALFORMED_TARGET),
    "http_0_9_without_an_empty_line": (b"GET /\r\n", Reason.MALFORMED_TARGET),
    "http_2_preface_in_clear": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reason.MALFORMED_TARGET),
    "http_3": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", Reason.MALFORMED_TARGET),
    "http_1_10": (b"GET / HTTP/1.10\r\nHost: x\r\n\r\n", Reason.MALFORMED_TARGET),
    "proxy_protocol": (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", Reason.MALFORMED_TARGET),
    "two_spaces": (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", Reason.MALFORMED_TARGET),
    "tab": (b"GET\t/\tHTTP/1.1\r\nHost: x\r\n\r\n", None),
    "long_line": (b"GET /" + b"a" * 65_536 + b" HTTP/1.1\r\nHost: x\r\n\r\n", Reason.URL_TOO_LONG),
    "long_head": (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 90_000, Reason.HEADERS_TOO_LARGE),
    "many_fields": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 300 + b"\r\n", Reason.HEADERS_TOO_LARGE),
    "status_line": (b"HTTP/1.1 200 OK\r\n\r\n", None),
}


@each_way
@pytest.mark.parametrize(("data", "reason"), JUNK.values(), ids=JUNK.keys())
def test_P_39_junk(arena: Arena, way: str, data: bytes, reason: Reason | None) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with arena.quiet(), opened as raw:
        raw.send(data)
        said = raw.read_all()
        story = arena.story(raw)
    if reason is None:
        assert said == b""
        story.silently(Reason.NOT_HTTP)
        return
    assert said.startswith(b"HTTP/1.1 %d " % (reason.status or 0)), said[:200]
    story.silently(reason)


@each_way
def test_P_39_proxy_protocol_version_2(arena: Arena, way: str) -> None:
    opened = arena.tunnel(arena.one) if way == "tunnel" else arena.connect()
    with arena.quiet(), opened as raw:
        raw.send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12))
        assert raw.read_all() == b""
        story = arena.story(raw)
    story.silently(Reason.NOT_HTTP)


def test_the_host_is_the_one_of_the_arena() -> None:
    assert ONE.endswith("allowed.test")
