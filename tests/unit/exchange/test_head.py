"""Heads: one reading, or a refusal with its reason."""

import pytest

from tidegate.exchange.head import (
    BadReply,
    HeadLimits,
    RequestHead,
    ResponseHead,
    parse_request_head,
    parse_response_head,
    serialise_headers,
)
from tidegate.policy.reasons import Reason

LIMITS = HeadLimits()
GET = b"GET /a HTTP/1.1\r\nHost: a.test"


def read(raw: bytes, limits: HeadLimits = LIMITS) -> RequestHead | Reason:
    return parse_request_head(raw, limits)


def good(raw: bytes) -> RequestHead:
    head = read(raw)
    assert isinstance(head, RequestHead), head
    return head


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(GET + b"\nX: 1", Reason.AMBIGUOUS, id="bare-lf"),
        pytest.param(GET + b"\r\nX: a\rb", Reason.AMBIGUOUS, id="bare-cr-in-a-value"),
        pytest.param(GET + b"\r\nX: a\r\n b", Reason.AMBIGUOUS, id="obs-fold"),
        pytest.param(GET + b"\r\nX: a\r\n\tb", Reason.AMBIGUOUS, id="obs-fold-tab"),
        pytest.param(b"GET /a HTTP/1.1\r\n Host: a.test", Reason.AMBIGUOUS, id="space-before-the-first-field"),
        pytest.param(b"GET /a HTTP/1.1\nHost: a.test", Reason.MALFORMED_TARGET, id="bare-lf-after-the-request-line"),
    ],
)
def test_P_14_line_ends_have_one_reading(raw: bytes, reason: Reason) -> None:
    assert read(raw) is reason


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"X : 1", id="space-before-colon"),
        pytest.param(b"X\t: 1", id="tab-before-colon"),
        pytest.param(b": 1", id="empty-name"),
        pytest.param(b"X", id="no-colon"),
        pytest.param(b"", id="empty-line-within"),
        pytest.param(b"X: a\x00b", id="NUL"),
        pytest.param(b"X: a\x0bb", id="VT"),
        pytest.param(b"X: a\x7fb", id="DEL"),
        pytest.param(b"X(: 1", id="no-token"),
        pytest.param("Ü: 1".encode(), id="name-not-ascii"),
        pytest.param(b"X@Y: 1", id="at-in-name"),
    ],
)
def test_P_16_field_lines_have_one_form(field: bytes) -> None:
    assert read(GET + b"\r\n" + field + b"\r\nY: 2") is Reason.AMBIGUOUS


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([b"Content-Length: 1", b"Transfer-Encoding: chunked"], id="P-12-both"),
        pytest.param([b"Transfer-Encoding: chunked", b"Content-Length: 1"], id="P-12-both-turned"),
        pytest.param([b"Transfer-Encoding: chunked, identity"], id="P-13-identity"),
        pytest.param([b"Transfer-Encoding: identity"], id="P-13-only-identity"),
        pytest.param([b"Transfer-Encoding: xchunked"], id="P-13-xchunked"),
        pytest.param([b"Transfer-Encoding: gzip, chunked"], id="P-13-gzip"),
        pytest.param([b"Transfer-Encoding: chunked, chunked"], id="P-13-twice-in-one"),
        pytest.param([b'Transfer-Encoding: "chunked"'], id="P-13-quoted"),
        pytest.param([b"Transfer-Encoding: chunked;x=1"], id="P-13-parameter"),
        pytest.param([b"Transfer-Encoding:"], id="P-13-empty"),
        pytest.param([b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], id="P-13-two-lines"),
        pytest.param([b"Transfer-Encoding : chunked"], id="P-13-space"),
        pytest.param([b"X: 1", b" Transfer-Encoding: chunked"], id="P-13-folded"),
        pytest.param([b"Content-Length: 1", b"Content-Length: 1"], id="P-15-twice-the-same"),
        pytest.param([b"Content-Length: 1", b"content-length: 2"], id="P-15-twice"),
        pytest.param([b"Content-Length: 1, 1"], id="P-15-comma"),
        pytest.param([b"Content-Length: +1"], id="P-15-plus"),
        pytest.param([b"Content-Length: -1"], id="P-15-minus"),
        pytest.param([b"Content-Length: 0x10"], id="P-15-hex"),
        pytest.param([b"Content-Length: 12345678901234567890"], id="P-15-20-digits"),
        pytest.param([b"Content-Length: 1 0"], id="P-15-space"),
        pytest.param([b"Content-Length:"], id="P-15-empty"),
        pytest.param(["Content-Length: ١".encode()], id="P-15-arabic-digit"),
        pytest.param([b"Content-Length: 1_0"], id="P-15-underscore"),
        pytest.param([b"Expect: 200-ok"], id="another-expectation"),
    ],
)
def test_bodies_have_one_length(fields: list[bytes]) -> None:
    assert read(b"\r\n".join([b"POST / HTTP/1.1", b"Host: a.test", *fields])) is Reason.AMBIGUOUS


def test_P_13_chunked_with_http_1_0_is_refused() -> None:
    assert read(b"POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked") is Reason.AMBIGUOUS


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"GET / HTTP/1.1", Reason.AMBIGUOUS_HOST, id="P-08-no-host"),
        pytest.param(GET + b"\r\nHost: a.test", Reason.AMBIGUOUS_HOST, id="P-07-two-hosts-the-same"),
        pytest.param(GET + b"\r\nhOsT: evil.test", Reason.AMBIGUOUS_HOST, id="P-07-two-hosts"),
        pytest.param(
            b"GET http://a.test/ HTTP/1.0\r\nHost: a.test\r\nHost: b", Reason.AMBIGUOUS_HOST, id="P-07-two-hosts-1.0"
        ),
    ],
)
def test_one_host_is_named(raw: bytes, reason: Reason) -> None:
    assert read(raw) is reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b"get / HTTP/1.1", Reason.MALFORMED_TARGET, id="P-33-lower"),
        pytest.param(b"pOsT / HTTP/1.1", Reason.MALFORMED_TARGET, id="P-33-mixed"),
        pytest.param(b"A" * 33 + b" / HTTP/1.1", Reason.MALFORMED_TARGET, id="P-33-longer-than-any-method"),
        pytest.param(b"GET  / HTTP/1.1", Reason.MALFORMED_TARGET, id="two-spaces"),
        pytest.param(b"GET / HTTP/1.1 ", Reason.MALFORMED_TARGET, id="trailing-space"),
        pytest.param(b"GET /a b HTTP/1.1", Reason.MALFORMED_TARGET, id="space-in-target"),
        pytest.param("GET /ü HTTP/1.1".encode(), Reason.MALFORMED_TARGET, id="target-not-ascii"),
        pytest.param(b"GET /\x00 HTTP/1.1", Reason.MALFORMED_TARGET, id="NUL-in-target"),
        pytest.param(b"GET / HTTP/1.2", Reason.MALFORMED_TARGET, id="version-1.2"),
        pytest.param(b"GET / HTTP/2.0", Reason.MALFORMED_TARGET, id="version-2.0"),
        pytest.param(b"GET / http/1.1", Reason.MALFORMED_TARGET, id="version-lower"),
        pytest.param(b"GET /", Reason.MALFORMED_TARGET, id="P-39-http-0.9"),
        pytest.param(b"PRI * HTTP/2.0", Reason.MALFORMED_TARGET, id="P-39-h2-preface"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6", Reason.NOT_HTTP, id="P-21-ssh"),
        pytest.param(b"EHLO mail.test", Reason.MALFORMED_TARGET, id="smtp"),
        pytest.param(b"\x05\x01\x00", Reason.NOT_HTTP, id="P-26-socks5"),
        pytest.param(b"\x16\x03\x01\x00", Reason.NOT_HTTP, id="tls"),
        pytest.param(b"", Reason.NOT_HTTP, id="nothing"),
        pytest.param(b"A" * 100, Reason.NOT_HTTP, id="letters"),
        pytest.param(b"GET /" + b"a" * LIMITS.url_bytes + b" HTTP/1.1", Reason.URL_TOO_LONG, id="V-04-url"),
        pytest.param(b"A" * 65536, Reason.URL_TOO_LONG, id="P-39-64-KB-line"),
    ],
)
def test_request_lines_that_are_none(line: bytes, reason: Reason) -> None:
    assert read(line + b"\r\nHost: a.test") is reason


def test_V_04_the_number_of_fields_is_bounded() -> None:
    fields = b"".join(b"\r\nX-%d: 1" % number for number in range(LIMITS.headers - 1))
    assert isinstance(read(GET + fields), RequestHead)
    assert read(GET + fields + b"\r\nY: 1") is Reason.HEADERS_TOO_LARGE


def test_a_head_says_all_that_frames_and_names_its_request() -> None:
    head = good(
        b"PUT /a?b HTTP/1.1\r\nHost: a.test:444\r\nContent-Length: 12\r\nExpect: 100-Continue\r\n"
        b"Connection: Keep-Alive, X-Hop\r\nConnection: ,close\r\nUpgrade: WebSocket\r\nTrailer: X\r\nX-A: \tone two\t "
    )
    assert (head.method, head.target, head.minor, head.length) == ("PUT", b"/a?b", 1, 12)
    assert head.authority == b"a.test:444"
    assert head.connection_tokens == {b"keep-alive", b"x-hop", b"close"}
    assert head.expect_continue
    assert head.close
    assert head.trailers
    assert head.upgrade == b"websocket"
    assert head.headers[-1] == (b"X-A", b"one two")


@pytest.mark.parametrize(
    ("raw", "close"),
    [
        pytest.param(GET, False, id="1.1"),
        pytest.param(GET + b"\r\nConnection: close", True, id="1.1-close"),
        pytest.param(b"GET http://a.test/ HTTP/1.0", True, id="1.0"),
        pytest.param(b"GET http://a.test/ HTTP/1.0\r\nConnection: keep-alive", False, id="1.0-keep-alive"),
    ],
)
def test_P_08_persistence_follows_the_version(raw: bytes, close: bool) -> None:
    assert good(raw).close is close


def test_values_may_hold_bytes_beyond_ascii_and_methods_of_their_own() -> None:
    head = good(b"X-Y /a HTTP/1.1\r\nHost: a.test\r\nX: \xfc\xff\tend")
    assert head.method == "X-Y"
    assert head.headers[-1] == (b"X", b"\xfc\xff\tend")


def test_chunked_is_read_in_any_case_of_letters() -> None:
    assert good(b"POST / HTTP/1.1\r\nHost: a.test\r\nTRANSFER-ENCODING: Chunked").length is None


# -- responses --------------------------------------------------------------------------------------


def answer(raw: bytes, method: str = "GET") -> ResponseHead:
    return parse_response_head(raw, method=method, limits=LIMITS)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", id="both-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2", id="two-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1", id="minus"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1", id="comma"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", id="gzip-chunked"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", id="two-codings"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: a\r\n b", id="obs-fold"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX : a", id="space-before-colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b", id="bare-cr"),
        pytest.param(b"HTTP/1.1 200 O\x00K", id="NUL-in-the-phrase"),
        pytest.param(b"HTTP/1.1 20 OK", id="two-digits"),
        pytest.param(b"HTTP/1.1 099 OK", id="leading-zero"),
        pytest.param(b"HTTP/1.1 2000 OK", id="four-digits"),
        pytest.param(b"HTTP/2 200", id="http2"),
        pytest.param(b"ICY 200 OK", id="icy"),
        pytest.param(b"<html>", id="http-0.9"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK" + b"\r\nX: 1" * 201, id="too-many"),
    ],
)
def test_a_reply_of_two_readings_is_bad(raw: bytes) -> None:
    with pytest.raises(BadReply) as fault:
        answer(raw)
    assert not any(word in str(fault.value) for word in ("OK", "gzip", "html"))


@pytest.mark.parametrize(
    ("raw", "method", "length", "close"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5", "GET", 5, False, id="counted"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", "GET", 5, False, id="same-twice"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "GET", None, False, id="chunked"),
        pytest.param(b"HTTP/1.1 200 OK", "GET", -1, True, id="to-the-end"),
        pytest.param(b"HTTP/1.1 200 ", "GET", -1, True, id="empty-phrase"),
        pytest.param(b"HTTP/1.1 200", "GET", -1, True, id="no-phrase"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5", "HEAD", 0, False, id="head"),
        pytest.param(b"HTTP/1.1 200 OK", "HEAD", 0, False, id="head-without-length"),
        pytest.param(b"HTTP/1.1 204 No", "GET", 0, False, id="204"),
        pytest.param(b"HTTP/1.1 304 No\r\nContent-Length: 5", "GET", 0, False, id="304"),
        pytest.param(b"HTTP/1.1 100 Go", "GET", 0, False, id="100"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 5", "GET", 5, True, id="1.0"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive", "GET", 5, False, id="1.0-keep"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close", "GET", 5, True, id="close"),
    ],
)
def test_a_replys_body_ends_where_rfc_9112_6_3_says(raw: bytes, method: str, length: int | None, close: bool) -> None:
    head = answer(raw, method)
    assert (head.length, head.close) == (length, close)


def test_a_head_is_written_from_its_parts() -> None:
    assert serialise_headers(b"GET / HTTP/1.1", [(b"A", b"1"), (b"B", b"")]) == b"GET / HTTP/1.1\r\nA: 1\r\nB: \r\n\r\n"


HIDDEN = [
    "Content-Length", "CONTENT_LENGTH", "Host", "Authorization", "Cookie", "Content-Type", "Content-Encoding", "Range",
    "Transfer_Encoding", "If-None-Match", "Private-Token", "Sec-WebSocket-Key", "X-Forwarded-For", "Expect",
]  # fmt: skip
LEFT = ["close", "Keep-Alive", "Upgrade, HTTP2-Settings", "TE", "X-Hop", "Proxy-Connection", "Trailer", ", ,"]


@pytest.mark.parametrize("name", [*HIDDEN, "Transfer-Encoding"])
@pytest.mark.parametrize("line", ["{}", "close, {}", "X-A\r\nConnection: {} "])
def test_connection_lists_no_field_for_all_recipients(name: str, line: str) -> None:
    raw = GET + b"\r\nConnection: " + line.format(name).encode()
    assert parse_request_head(raw, HeadLimits()) is Reason.AMBIGUOUS


@pytest.mark.parametrize("name", LEFT)
def test_connection_lists_what_is_between_two_hops(name: str) -> None:
    assert isinstance(parse_request_head(GET + b"\r\nConnection: " + name.encode(), HeadLimits()), RequestHead)


@pytest.mark.parametrize("name", HIDDEN)
def test_nor_does_an_answer(name: str) -> None:
    raw = b"HTTP/1.1 200 OK\r\nConnection: x-a, " + name.encode()
    with pytest.raises(BadReply):
        parse_response_head(raw, method="GET", limits=HeadLimits())


@pytest.mark.parametrize("name", [*LEFT, "Transfer-Encoding"])
def test_an_answer_lists_what_is_between_two_hops(name: str) -> None:
    parse_response_head(b"HTTP/1.1 200 OK\r\nConnection: " + name.encode(), method="GET", limits=HeadLimits())
