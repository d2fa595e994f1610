"""HTTP/2 heads have one reading, before they become HTTP/1 on the other side."""

import pytest
from mitmproxy import http
from mitmproxy.proxy.layers.http import RequestHeaders, ResponseHeaders

from tidegate.exchange.head import HeadLimits, RequestHead, ResponseHead
from tidegate.policy.reasons import Reason
from tidegate.runtime.http2_head import request_head, response_head

Fields = list[tuple[bytes, bytes]]
LIMITS = HeadLimits()


def request(
    *fields: tuple[bytes, bytes],
    method: bytes = b"GET",
    path: bytes = b"/a",
    authority: bytes = b"a.test",
    scheme: bytes = b"https",
    end: bool = True,
) -> RequestHead | Reason:
    made = http.Request(
        "", 0, method, scheme, authority, path, b"HTTP/2.0", http.Headers(fields), None, None, 0.0, None
    )  # fmt: skip
    return request_head(RequestHeaders(1, made, end), LIMITS)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param([(b"transfer-encoding", b"chunked")], Reason.AMBIGUOUS, id="P-18-transfer-encoding"),
        pytest.param([(b"connection", b"close")], Reason.AMBIGUOUS, id="connection"),
        pytest.param([(b"proxy-connection", b"close")], Reason.AMBIGUOUS, id="proxy-connection"),
        pytest.param([(b"keep-alive", b"1")], Reason.AMBIGUOUS, id="keep-alive"),
        pytest.param([(b"upgrade", b"h2c")], Reason.AMBIGUOUS, id="P-19-upgrade"),
        pytest.param([(b"X-Upper", b"1")], Reason.AMBIGUOUS, id="P-18-upper-case"),
        pytest.param([(b"x", b"a\r\nb: c")], Reason.AMBIGUOUS, id="P-18-CRLF"),
        pytest.param([(b"x", b"a\nb")], Reason.AMBIGUOUS, id="P-18-LF"),
        pytest.param([(b"x", b"a\x00b")], Reason.AMBIGUOUS, id="P-18-NUL"),
        pytest.param([(b"x: y\r\nz", b"1")], Reason.AMBIGUOUS, id="P-18-CRLF-in-a-name"),
        pytest.param([(b"x y", b"1")], Reason.AMBIGUOUS, id="P-18-space-in-a-name"),
        pytest.param([(b"x:", b"1")], Reason.AMBIGUOUS, id="P-18-colon-in-a-name"),
        pytest.param([(b"", b"1")], Reason.AMBIGUOUS, id="P-18-empty-name"),
        pytest.param([(b":path", b"/b")], Reason.AMBIGUOUS, id="P-18-a-second-path"),
        pytest.param([(b"te", b"gzip")], Reason.AMBIGUOUS, id="te"),
        pytest.param([(b"content-length", b"1"), (b"content-length", b"1")], Reason.AMBIGUOUS, id="P-15-two-lengths"),
        pytest.param([(b"content-length", b"+1")], Reason.AMBIGUOUS, id="P-15-plus"),
        pytest.param([(b"content-length", "²".encode())], Reason.AMBIGUOUS, id="P-15-superscript"),
        pytest.param([(b"content-length", b"1" * 19)], Reason.AMBIGUOUS, id="P-15-19-digits"),
        pytest.param([(b"host", b"evil.test")], Reason.AMBIGUOUS_HOST, id="P-07-host-differs"),
        pytest.param([(b"expect", b"x")], Reason.AMBIGUOUS, id="expect"),
    ],
)
def test_fields_of_two_readings_are_refused(fields: Fields, reason: Reason) -> None:
    assert request(*fields, end=False) is reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"method": b"get"}, Reason.MALFORMED_TARGET, id="P-33-method"),
        pytest.param({"method": b"GET / HTTP/1.1\r\nX: "}, Reason.MALFORMED_TARGET, id="P-18-method-with-CRLF"),
        pytest.param({"path": b"/a b"}, Reason.MALFORMED_TARGET, id="space"),
        pytest.param({"path": b"/a\r\nX: 1"}, Reason.MALFORMED_TARGET, id="P-18-path-with-CRLF"),
        pytest.param({"path": b"/\xff"}, Reason.MALFORMED_TARGET, id="no-ascii"),
        pytest.param({"path": b""}, Reason.MALFORMED_TARGET, id="empty-path"),
        pytest.param({"scheme": b"ftp"}, Reason.MALFORMED_TARGET, id="scheme"),
        pytest.param({"authority": b""}, Reason.AMBIGUOUS_HOST, id="no-authority"),
    ],
)
def test_pseudo_headers_have_one_form(changes: dict[str, bytes], reason: Reason) -> None:
    assert request(**changes) is reason  # type: ignore[arg-type]


def test_P_18_a_length_without_a_body_is_refused() -> None:
    assert request((b"content-length", b"5"), end=True) is Reason.AMBIGUOUS


def test_a_head_is_read_as_http_1_would_be() -> None:
    head = request((b"content-length", b"5"), (b"te", b"trailers"), (b"x", b"\xff"), method=b"POST", end=False)
    assert isinstance(head, RequestHead)
    assert (head.method, head.target, head.authority, head.length, head.minor) == ("POST", b"/a", b"a.test", 5, 1)
    assert head.headers[-1] == (b"x", b"\xff")


@pytest.mark.parametrize(
    ("fields", "end", "length"),
    [
        pytest.param([], True, 0, id="ended"),
        pytest.param([], False, None, id="open"),
        pytest.param([(b"content-length", b"7")], False, 7, id="told"),
    ],
)
def test_the_body_ends_where_the_stream_says(fields: Fields, end: bool, length: int | None) -> None:
    head = request(*fields, end=end)
    assert isinstance(head, RequestHead)
    assert head.length == length


def test_host_may_stand_in_for_the_authority_and_does_not_travel() -> None:
    head = request((b"host", b"a.test"), authority=b"")
    assert isinstance(head, RequestHead)
    assert head.authority == b"a.test"
    assert head.headers == []


def answer(
    *fields: tuple[bytes, bytes], status: int = 200, method: str = "GET", end: bool = False
) -> ResponseHead | None:
    made = http.Response(b"HTTP/2.0", status, b"", http.Headers(fields), None, None, 0.0, None)
    return response_head(ResponseHeaders(1, made, end), method, LIMITS)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param([(b"content-length", b"1"), (b"content-length", b"2")], 200, id="two-lengths"),
        pytest.param([(b"content-length", b"x")], 200, id="no-number"),
        pytest.param([(b"x", b"a\r\nb")], 200, id="CRLF"),
        pytest.param([(b"x\r\ny", b"a")], 200, id="CRLF-in-a-name"),
        pytest.param([(b"x y", b"a")], 200, id="space-in-a-name"),
        pytest.param([(b"connection", b"close")], 200, id="connection"),
        pytest.param([(b"transfer-encoding", b"chunked")], 200, id="transfer-encoding"),
        pytest.param([], 101, id="switching"),
        pytest.param([], 600, id="status"),
    ],
)
def test_an_answer_of_two_readings_is_none(fields: Fields, status: int) -> None:
    assert answer(*fields, status=status) is None


@pytest.mark.parametrize(
    ("head", "length"),
    [
        pytest.param(answer((b"content-length", b"5")), 5, id="told"),
        pytest.param(answer(), None, id="open"),
        pytest.param(answer(end=True), 0, id="ended"),
        pytest.param(answer((b"content-length", b"5"), method="HEAD"), 0, id="head"),
        pytest.param(answer(status=304), 0, id="304"),
    ],
)
def test_an_answers_body_ends_where_the_stream_says(head: ResponseHead | None, length: int | None) -> None:
    assert head is not None
    assert head.length == length


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        pytest.param([], b"/" + b"a" * 16384, Reason.URL_TOO_LONG, id="url"),
        pytest.param([(b"x%d" % n, b"1") for n in range(201)], b"/", Reason.HEADERS_TOO_LARGE, id="fields"),
        pytest.param([(b"x%d" % n, b"a" * 9000) for n in range(8)], b"/", Reason.HEADERS_TOO_LARGE, id="bytes"),
    ],
)
def test_a_head_is_bounded_as_in_http1(fields: Fields, path: bytes, reason: Reason) -> None:
    assert request(*fields, path=path) is reason
    if path == b"/":
        assert answer(*fields) is None


def test_inside_tls_the_scheme_is_https() -> None:
    assert request(scheme=b"http") is Reason.AUTHORITY_MISMATCH


def test_an_answer_that_ends_with_its_head_has_no_length() -> None:
    assert answer((b"content-length", b"5"), end=True) is None
    assert answer((b"content-length", b"0"), end=True) is not None
    assert answer((b"content-length", b"5"), method="HEAD", end=True) is not None
    assert answer((b"content-length", b"5"), status=304, end=True) is not None
