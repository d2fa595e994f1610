"""What of a head travels on."""

import pytest

from tidegate.exchange.fields import clean_request, clean_response, first, request_framing

NONE: frozenset[bytes] = frozenset()


@pytest.mark.parametrize(
    "name",
    [
        b"Proxy-Authorization", b"Proxy-Connection", b"Connection", b"Keep-Alive", b"TE", b"Trailer", b"Upgrade",
        b"Transfer-Encoding", b"HTTP2-Settings", b"Host", b"Expect",
    ],
)  # fmt: skip
def test_P_41_P_19_what_is_between_two_hops_stays_there(name: bytes) -> None:
    assert clean_request([(name, b"x"), (b"A", b"1")], NONE, identity=False) == [(b"A", b"1")]


@pytest.mark.parametrize(
    "name",
    [
        b"X-HTTP-Method-Override", b"X-Original-URL", b"X-Rewrite-URL", b"X-Forwarded-Host", b"Forwarded",
        b"x-method-override", b"X-Host",
    ],
)  # fmt: skip
def test_P_31_claims_of_another_request_are_dropped(name: bytes) -> None:
    assert clean_request([(name, b"DELETE"), (b"A", b"1")], NONE, identity=False) == [(b"A", b"1")]


def test_fields_that_connection_lists_are_dropped_in_any_case_of_letters() -> None:
    fields = [(b"X-Hop", b"1"), (b"x-end", b"2")]
    assert clean_request(fields, frozenset({b"x-hop"}), identity=False) == [(b"x-end", b"2")]
    assert clean_response(fields, frozenset({b"x-hop"}), cookies=True) == [(b"x-end", b"2")]


def test_order_case_and_repeats_of_other_fields_stay() -> None:
    fields = [(b"B", b"1"), (b"a", b"2"), (b"B", b"3"), (b"Content-Type", b"x"), (b"Authorization", b"y")]
    assert clean_request(fields, NONE, identity=False) == fields


def test_a_watched_request_asks_for_bytes_that_can_be_searched() -> None:
    fields = [(b"Accept-Encoding", b"br"), (b"accept-encoding", b"gzip")]
    assert clean_request(fields, NONE, identity=True) == [(b"Accept-Encoding", b"identity")]
    assert clean_request(fields, NONE, identity=False) == fields


def test_split_cookies_become_one() -> None:
    fields = [(b"cookie", b"a=1"), (b"x", b"1"), (b"cookie", b"b=2")]
    assert clean_request(fields, NONE, identity=False) == [(b"x", b"1"), (b"Cookie", b"a=1; b=2")]


@pytest.mark.parametrize(
    "name",
    [
        b"Alt-Svc", b"Connection", b"Transfer-Encoding", b"Content-Length", b"Proxy-Authenticate", b"Keep-Alive",
        b"Tidegate-Anything", b"TIDEGATE-REASON", b"Upgrade", b"Trailer",
    ],
)  # fmt: skip
def test_P_27_response_fields_that_are_not_for_the_client(name: bytes) -> None:
    assert clean_response([(name, b"x"), (b"A", b"1")], NONE, cookies=True) == [(b"A", b"1")]


def test_R_13_cookies_are_set_only_without_a_credential() -> None:
    fields = [(b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")]
    assert clean_response(fields, NONE, cookies=True) == fields
    assert clean_response(fields, NONE, cookies=False) == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        pytest.param(b"tidegate; error=x", None, id="ours-alone"),
        pytest.param(b'"tidegate"; error=x', None, id="ours-quoted"),
        pytest.param(b"TideGate; error=x", None, id="ours-in-capitals"),
        pytest.param(b"cdn; hit, tidegate; error=x", b"cdn; hit", id="ours-behind"),
        pytest.param(b"cdn; hit", b"cdn; hit", id="another"),
    ],
)
def test_only_the_gate_speaks_as_tidegate(value: bytes, kept: bytes | None) -> None:
    cleaned = clean_response([(b"Proxy-Status", value)], NONE, cookies=True)
    assert cleaned == ([] if kept is None else [(b"Proxy-Status", kept)])


def test_first_finds_the_first_in_any_case_of_letters() -> None:
    fields = [(b"ETAG", b"1"), (b"etag", b"2")]
    assert first(fields, b"etag") == b"1"
    assert first(fields, b"date") is None


@pytest.mark.parametrize(
    "name",
    [b"X_HTTP_Method_Override", b"x_forwarded-host", b"X-Original_URL", b"Content_Length", b"Transfer_Encoding"],
)
def test_an_underscore_is_a_dash(name: bytes) -> None:
    assert clean_request([(name, b"5"), (b"A_B", b"1")], NONE, identity=False) == [(b"A_B", b"1")]
    if name.startswith((b"Content", b"Transfer")):
        assert clean_response([(name, b"5"), (b"A_B", b"1")], NONE, cookies=True) == [(b"A_B", b"1")]


def test_a_length_never_travels_it_is_written() -> None:
    assert clean_request([(b"Content-Length", b"5"), (b"A", b"1")], NONE, identity=False) == [(b"A", b"1")]


@pytest.mark.parametrize(
    ("length", "method", "http2", "fields"),
    [
        pytest.param(5, "GET", False, [(b"Content-Length", b"5")], id="a-body"),
        pytest.param(0, "GET", False, [], id="no-body"),
        pytest.param(0, "POST", False, [(b"Content-Length", b"0")], id="an-empty-body"),
        pytest.param(None, "POST", False, [(b"Transfer-Encoding", b"chunked")], id="chunked"),
        pytest.param(None, "POST", True, [], id="h2-open"),
        pytest.param(5, "POST", True, [(b"content-length", b"5")], id="h2-length"),
    ],
)
def test_framing_is_written_from_the_reading(
    length: int | None, method: str, http2: bool, fields: list[tuple[bytes, bytes]]
) -> None:
    assert request_framing(length, method, http2=http2) == fields
