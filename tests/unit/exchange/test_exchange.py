"""One request and its answer, without an engine: admit, judge, bytes, judge_response, finish."""

import json
from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    GET,
    PLACEHOLDER,
    SECRET,
    SESSION,
    FakeKeeper,
    connect,
    credentialed,
    forwarded,
    head,
    judged,
    reason_of,
    relayed,
    rule,
    stage,
    tunnel,
    written,
)
from tidegate.exchange.effects import Forward
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.reply import Denial
from tidegate.policy.paths import parse_glob
from tidegate.policy.reasons import Reason

# -- the whole turn -------------------------------------------------------------------------------


async def test_a_request_with_a_credential_from_connect_to_its_end(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made, "POST /v1/items?q=1 HTTP/1.1", "X-A: 1", "Content-Length: 5")
    effect = forwarded(exchange)
    assert (effect.host, effect.port, effect.tls, effect.authority) == ("api.test", 443, True, "api.test")
    assert effect.target == b"/v1/items?q=1"
    assert (b"Authorization", b"Bearer " + SECRET) in effect.headers
    assert (b"X-A", b"1") in effect.headers
    assert [value for name, value in effect.headers if name.lower() == b"accept-encoding"] == [b"identity"]
    exchange.head_sent()
    assert exchange.upload(b"hello") is None
    exchange.upload_end()
    answer = relayed(exchange, "HTTP/1.1 200 OK", "Content-Length: 2", "Set-Cookie: a=1", "ETag: x")
    assert answer.length == 2
    assert (b"ETag", b"x") in answer.headers
    assert not any(name.lower() == b"set-cookie" for name, _ in answer.headers)
    assert exchange.download(b"ok") == b"ok"
    assert exchange.download_end() == b""
    exchange.finish()
    exchange.finish()
    exchange.channel.close()
    assert made.phases() == [
        ("conn", "decision", "allow", None),
        ("http", "decision", "allow", None),
        ("credential", "event", "allow", None),
        ("http", "end", "allow", None),
        ("conn", "end", "allow", None),
    ]
    decision, end = made.records("http")
    assert (decision["session"], decision["owner"], decision["rule"]) == (SESSION, "team", "api")
    assert decision["flow"] == end["flow"]
    assert decision["parent"] == made.records("conn")[0]["flow"]
    block = end["http"]
    assert isinstance(block, dict)
    assert (block["method"], block["scheme"], block["host"], block["port"], block["path"], block["status"]) == (
        "POST", "https", "api.test", 443, "/v1/items", 200,
    )  # fmt: skip
    assert (block["bytes_up"], block["bytes_down"]) == (5 + written(exchange, "POST"), 2)
    assert block["credential"] == "key"
    text = b"".join(path.read_bytes() for path in made.log.rglob("*.jsonl"))
    assert SECRET not in text
    assert PLACEHOLDER.encode() not in text
    assert b"q=1" not in text


async def test_the_decision_is_on_record_before_the_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    exchange = Exchange(channel, head(GET, "Host: api.test"))
    record = made.gate.recorder.http_decision
    seen: list[object] = []

    def watched(*args: object, **more: object) -> Reason | None:
        seen.append(exchange.effect)
        return record(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(made.gate.recorder, "http_decision", watched)
    await exchange.judge()
    assert seen == [None]
    assert isinstance(exchange.effect, Forward)


async def test_V_09_without_a_record_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage(tmp_path)
    monkeypatch.setattr(made.gate.recorder, "http_decision", lambda *_, **__: Reason.AUDIT_UNAVAILABLE)
    assert reason_of(await credentialed(made)) is Reason.AUDIT_UNAVAILABLE


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "host", "reason"),
    [
        pytest.param("GET / HTTP/1.1", "evil.test", Reason.AUTHORITY_MISMATCH, id="P-03-fronting"),
        pytest.param("GET / HTTP/1.1", "files.test", Reason.AUTHORITY_MISMATCH, id="P-03-other-allowed"),
        pytest.param("GET / HTTP/1.1", "api.test:8443", Reason.AUTHORITY_MISMATCH, id="other-port"),
        pytest.param("GET / HTTP/1.1", "api.test, evil.test", Reason.AMBIGUOUS_HOST, id="comma"),
        pytest.param("GET / HTTP/1.1", "s@api.test", Reason.MALFORMED_TARGET, id="userinfo"),
        pytest.param("GET / HTTP/1.1", "", Reason.MALFORMED_HOST, id="empty"),
        pytest.param("GET / HTTP/1.1", "2130706433", Reason.MALFORMED_HOST, id="decimal"),
        pytest.param("GET https://evil.test/ HTTP/1.1", "api.test", Reason.AUTHORITY_MISMATCH, id="absolute-other"),
        pytest.param("GET https://evil.test/ HTTP/1.1", "evil.test", Reason.AUTHORITY_MISMATCH, id="absolute-both"),
        pytest.param("GET http://api.test/ HTTP/1.1", "api.test", Reason.AUTHORITY_MISMATCH, id="absolute-http"),
        pytest.param("GET ftp://api.test/ HTTP/1.1", "api.test", Reason.MALFORMED_TARGET, id="P-30-ftp"),
        pytest.param("GET * HTTP/1.1", "api.test", Reason.MALFORMED_TARGET, id="asterisk"),
        pytest.param("GET api.test/ HTTP/1.1", "api.test", Reason.MALFORMED_TARGET, id="no-form"),
    ],
)
async def test_one_name_a_request_in_a_tunnel(tmp_path: Path, line: str, host: str, reason: Reason) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made), head(line, f"Host: {host}"))
    assert reason_of(exchange) is reason
    assert made.resolver.asked == []


@pytest.mark.parametrize(
    ("line", "host"),
    [
        pytest.param("GET /a HTTP/1.1", "API.test", id="other-case"),
        pytest.param("GET /a HTTP/1.1", "api.test:443", id="with-the-port"),
        pytest.param("GET /a HTTP/1.1", "api.test.", id="final-dot"),
        pytest.param("GET https://api.test/a HTTP/1.1", "api.test", id="absolute"),
    ],
)
async def test_spellings_of_the_one_name_become_one(tmp_path: Path, line: str, host: str) -> None:
    effect = forwarded(await judged(await tunnel(stage(tmp_path)), head(line, f"Host: {host}")))
    assert (effect.authority, effect.target) == ("api.test", b"/a")


@pytest.mark.parametrize(
    ("line", "host", "reason"),
    [
        pytest.param("GET / HTTP/1.1", "plain.test", Reason.LOOP, id="P-28-origin-form"),
        pytest.param("GET http://plain.test/ HTTP/1.1", "evil.test", Reason.AMBIGUOUS_HOST, id="P-06-host-differs"),
        pytest.param("GET http://api.test/ HTTP/1.1", "api.test", Reason.SCHEME_NOT_ALLOWED, id="P-29-http-on-https"),
        pytest.param("GET https://api.test/ HTTP/1.1", "api.test", Reason.SCHEME_NOT_ALLOWED, id="P-30-https-absolute"),
        pytest.param("GET http://evil.test/ HTTP/1.1", "evil.test", Reason.NOT_IN_ALLOWLIST, id="unknown"),
        pytest.param("GET http://plain.test:8080/ HTTP/1.1", "plain.test:8080", Reason.PORT_NOT_ALLOWED, id="port"),
        pytest.param("GET http://10.9.9.1:8080/ HTTP/1.1", "10.9.9.1:8080", Reason.LOOP, id="P-28-own-port"),
        pytest.param("GET http://169.254.169.254/ HTTP/1.1", "169.254.169.254", Reason.METADATA, id="metadata"),
        pytest.param("GET ws://plain.test/ HTTP/1.1", "plain.test", Reason.MALFORMED_TARGET, id="P-30-ws"),
    ],
)
async def test_plain_requests_are_judged_as_strictly(tmp_path: Path, line: str, host: str, reason: Reason) -> None:
    made = stage(tmp_path)
    exchange = await judged(made.channel(), head(line, f"Host: {host}", token="t"))
    assert reason_of(exchange) is reason
    assert made.resolver.asked == []


async def test_P_10_each_request_of_a_connection_is_judged_alone(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    first = await judged(channel, head("GET http://plain.test/ HTTP/1.1", "Host: plain.test", token="t"))
    second = await judged(channel, head("GET http://evil.test/ HTTP/1.1", "Host: evil.test", token="t"))
    third = await judged(channel, head("GET http://plain.test/ HTTP/1.1", "Host: plain.test", token="t"))
    assert forwarded(first).authority == forwarded(third).authority == "plain.test"
    assert not forwarded(first).tls
    assert reason_of(second) is Reason.NOT_IN_ALLOWLIST


async def test_P_08_http_1_0_without_host_takes_it_from_the_target(tmp_path: Path) -> None:
    exchange = await judged(stage(tmp_path).channel(), head("GET http://plain.test/x HTTP/1.0", token="t"))
    assert forwarded(exchange).authority == "plain.test"


async def test_the_token_goes_nowhere(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(made.channel(), head("GET http://plain.test/ HTTP/1.1", "Host: plain.test", token="tok"))
    assert not any(name.lower().startswith(b"proxy-") for name, _ in forwarded(exchange).headers)


async def test_nobody_hears_of_metadata_before_being_asked_who_it_is(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=Reason.SESSION_REQUIRED))
    metadata = await judged(made.channel(), head("GET http://169.254.169.254/ HTTP/1.1", "Host: 169.254.169.254"))
    other = await judged(made.channel(), head("GET http://plain.test/ HTTP/1.1", "Host: plain.test"))
    assert reason_of(metadata) is Reason.METADATA
    assert reason_of(other) is Reason.SESSION_REQUIRED


# -- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param("/repos/me/x", None, id="inside"),
        pytest.param("/repos/me", Reason.PATH_NOT_ALLOWED, id="outside"),
        pytest.param("/repos/me/../../admin", Reason.AMBIGUOUS_PATH, id="dots"),
        pytest.param("/repos/me/%2e%2e/%2e%2e/admin", Reason.AMBIGUOUS_PATH, id="encoded-dots"),
        pytest.param("/repos/me%2f..%2fadmin", Reason.AMBIGUOUS_PATH, id="encoded-slash"),
        pytest.param("/repos/me/%252e%252e/admin", Reason.AMBIGUOUS_PATH, id="twice-encoded"),
        pytest.param("/repos/me/%5c..%5cadmin", Reason.AMBIGUOUS_PATH, id="backslash"),
        pytest.param("/repos//me/x", Reason.AMBIGUOUS_PATH, id="double-slash"),
        pytest.param("/repos/me/;/admin", Reason.AMBIGUOUS_PATH, id="parameters"),
    ],
)
async def test_P_32_a_path_has_one_reading(tmp_path: Path, target: str, reason: Reason | None) -> None:
    made = stage(tmp_path, rules=(rule("r", "api.test", paths=(parse_glob("/repos/me/*"),)),))
    exchange = await judged(await tunnel(made), head(f"GET {target} HTTP/1.1", "Host: api.test"))
    assert (isinstance(exchange.effect, Denial) and exchange.effect.reason) == (reason or False)


@pytest.mark.parametrize(
    ("line", "fields", "reason"),
    [
        pytest.param("POST / HTTP/1.1", [], Reason.METHOD_NOT_ALLOWED, id="method"),
        pytest.param("TRACE / HTTP/1.1", [], Reason.METHOD_NOT_ALLOWED, id="trace"),
        pytest.param("CONNECT / HTTP/1.1", [], Reason.METHOD_NOT_ALLOWED, id="P-24-connect-within"),
        pytest.param("PUT / HTTP/1.1", ["Content-Length: 3", "Trailer: X"], Reason.TRAILERS, id="B-11-trailers"),
    ],
)
async def test_refused_by_the_rule(tmp_path: Path, line: str, fields: list[str], reason: Reason) -> None:
    exchange = await judged(await tunnel(stage(tmp_path), "files.test"), head(line, "Host: files.test", *fields))
    assert reason_of(exchange) is reason


async def test_a_passthrough_rule_is_no_rule_for_requests(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = made.channel()
    await channel.admit(connect("sealed.test:443"))
    channel.hello("sealed.test")
    assert reason_of(await judged(channel, head("GET / HTTP/1.1", "Host: sealed.test"))) is Reason.NOT_HTTP


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        pytest.param("10.0.0.1", Reason.RESOLVED_BLOCKED, id="private"),
        pytest.param("8.8.8.8 ::1", Reason.RESOLVED_BLOCKED, id="one-of-two"),
        pytest.param("169.254.169.254", Reason.RESOLVED_METADATA, id="metadata"),
        pytest.param("", Reason.DNS_FAILURE, id="no-answer"),
    ],
)
async def test_D_the_whole_answer_is_vetted(tmp_path: Path, address: str, reason: Reason) -> None:
    made = stage(tmp_path)
    made.resolver.zone["api.test"] = address
    exchange = await credentialed(made)
    assert reason_of(exchange) is reason
    assert made.keeper.count("lease") == 0
    assert json.loads(exchange.effect.body)["reason"] == "destination_unavailable"  # type: ignore[union-attr]


async def test_a_special_address_is_reached_where_the_rule_names_its_network(tmp_path: Path) -> None:
    made = stage(tmp_path)
    made.resolver.zone["inner.test"] = "10.1.2.3"
    effect = forwarded(await judged(await tunnel(made, "inner.test"), head(GET, "Host: inner.test")))
    assert effect.host == "inner.test"
