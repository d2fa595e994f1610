"""One request and its answer, without an engine: admit, judge, bytes, judge_response, finish."""

import base64
import gzip
import json
from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    PLACEHOLDER,
    SECRET,
    SESSION,
    FakeKeeper,
    Stage,
    connect,
    grant,
    head,
    judged,
    reply,
    rule,
    stage,
    tunnel,
)
from tidegate.exchange.effects import Forward, Relay
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.reply import Denial
from tidegate.exchange.tunnel import Tunnel
from tidegate.policy.paths import parse_glob
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, RuleLimits

BEARER = f"Authorization: Bearer {PLACEHOLDER}"
GET = "GET /v1/items?q=1 HTTP/1.1"


def forwarded(exchange: Exchange) -> Forward:
    assert isinstance(exchange.effect, Forward), exchange.effect
    return exchange.effect


def reason_of(exchange: Exchange) -> Reason:
    assert isinstance(exchange.effect, Denial), exchange.effect
    return exchange.effect.reason


def relayed(exchange: Exchange, line: str = "HTTP/1.1 200 OK", *fields: str) -> Relay:
    exchange.on_response(reply(line, *fields, method=exchange.head.method))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Relay), exchange.response_effect
    return exchange.response_effect


async def credentialed(made: Stage, line: str = GET, *fields: str) -> Exchange:
    return await judged(await tunnel(made), head(line, "Host: api.test", BEARER, *fields))


# -- the whole turn ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("method", ["http_decision", "credential_use"])
async def test_V_09_without_a_record_nothing_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = stage(tmp_path)
    monkeypatch.setattr(made.gate.recorder, method, lambda *_, **__: Reason.AUDIT_UNAVAILABLE)
    assert reason_of(await credentialed(made)) is Reason.AUDIT_UNAVAILABLE


# -- names ------------------------------------------------------------------------------------------


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


# -- rules ------------------------------------------------------------------------------------------


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
    assert forwarded(await judged(await tunnel(made, "inner.test"), head(GET, "Host: inner.test")))


# -- credentials ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "line", "field", "reason"),
    [
        pytest.param("api.test", GET, f"X-Other: {PLACEHOLDER}", Reason.CREDENTIAL_OUT_OF_SCOPE, id="C-other-header"),
        pytest.param(
            "api.test", f"GET /?k={PLACEHOLDER} HTTP/1.1", "X: 1", Reason.CREDENTIAL_OUT_OF_SCOPE, id="C-in-the-query"
        ),
        pytest.param("files.test", GET, BEARER, Reason.CREDENTIAL_OUT_OF_SCOPE, id="C-other-host"),
        pytest.param(
            "api.test", GET, "X: tg_71de9a7eZZZZZZZZZZZZZZZZZZZZZZ", Reason.UNKNOWN_PLACEHOLDER, id="C-31-another"
        ),
        pytest.param(
            "api.test", GET, f"X: {base64.b64encode(PLACEHOLDER.encode()).decode()}",
            Reason.ENCODED_PLACEHOLDER, id="C-encoded",
        ),
        pytest.param(
            "api.test", GET, "Authorization: Bearer my-own-key", Reason.FOREIGN_CREDENTIAL, id="C-foreign"
        ),
    ],
)  # fmt: skip
async def test_C_a_placeholder_elsewhere_is_refused_and_an_incident(
    tmp_path: Path, host: str, line: str, field: str, reason: Reason
) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, host), head(line, f"Host: {host}", field))
    assert reason_of(exchange) is reason
    assert made.keeper.count("lease") == 0
    assert [line["reason"] for line in made.records("incident")] == [reason.code]


async def test_a_lease_is_borrowed_only_where_it_is_used(tmp_path: Path) -> None:
    made = stage(tmp_path)
    forwarded(await judged(await tunnel(made), head(GET, "Host: api.test")))
    assert made.keeper.count("lease") == 0


@pytest.mark.parametrize("reason", [Reason.CREDENTIAL_UNAVAILABLE, Reason.KEEPER_UNAVAILABLE])
async def test_C_without_a_lease_nothing_leaves(tmp_path: Path, reason: Reason) -> None:
    assert reason_of(await credentialed(stage(tmp_path, keeper=FakeKeeper(leases=reason)))) is reason


async def test_a_session_that_ends_during_the_borrowing_gets_no_secret(tmp_path: Path) -> None:
    class Ending(FakeKeeper):
        async def lease(self, session, credential):  # type: ignore[no-untyped-def]
            found = await super().lease(session, credential)
            made.gate.sessions._by_id[session].end(Reason.SESSION_INVALID)
            return found

    made = stage(tmp_path, keeper=Ending())
    assert reason_of(await credentialed(made)) is Reason.SESSION_INVALID


async def test_a_frozen_or_ended_session_is_refused_in_its_tunnel(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    assert channel.session is not None
    channel.session.frozen = True
    assert reason_of(await judged(channel, head(GET, "Host: api.test"))) is Reason.SESSION_FROZEN
    channel.session.end(Reason.SESSION_INVALID)
    assert reason_of(await judged(channel, head(GET, "Host: api.test"))) is Reason.SESSION_INVALID
    made.keeper.away = 6.0
    assert reason_of(await judged(channel, head(GET, "Host: api.test"))) is Reason.KEEPER_UNAVAILABLE


# -- bodies -----------------------------------------------------------------------------------------


async def test_C_a_placeholder_in_a_body_is_inert_and_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(
        await tunnel(made, "files.test"), head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 99")
    )
    text = PLACEHOLDER.encode()
    assert exchange.upload(b"x" + text[:9]) is None
    assert exchange.upload(text[9:] + b"x") is None
    exchange.finish()
    assert [(line["reason"], line["verdict"]) for line in made.records("credential")] == [("placeholder_seen", "allow")]


async def test_C_strict_refuses_a_placeholder_in_a_body(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"placeholders": "strict"})
    exchange = await judged(
        await tunnel(made, "files.test"), head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 99")
    )
    assert exchange.upload(PLACEHOLDER.encode()) is Reason.CREDENTIAL_OUT_OF_SCOPE


@pytest.mark.parametrize(
    ("field", "judged_at"),
    [
        pytest.param("Content-Length: 11", "head", id="told"),
        pytest.param("Transfer-Encoding: chunked", "body", id="not"),
    ],
)
async def test_V_07_a_body_has_a_limit(tmp_path: Path, field: str, judged_at: str) -> None:
    made = stage(tmp_path, policy={"limits": RuleLimits(request_body_bytes=10)})
    exchange = await judged(await tunnel(made, "files.test"), head("PUT / HTTP/1.1", "Host: files.test", field))
    if judged_at == "head":
        assert reason_of(exchange) is Reason.BODY_TOO_LARGE
        return
    assert exchange.upload(b"x" * 10) is None
    assert exchange.upload(b"x") is Reason.BODY_TOO_LARGE


def written(exchange: Exchange, method: str) -> int:
    """The bytes of the head as HTTP/1.1 writes it."""
    effect = exchange.effect
    assert isinstance(effect, Forward)
    lines = [b"%b %b HTTP/1.1" % (method.encode(), effect.target), b"Host: " + effect.authority.encode()]
    return len(b"\r\n".join([*lines, *(b"%b: %b" % field for field in effect.headers), b"", b""]))


async def paid(exchange: Exchange, data: bytes) -> Reason | None:
    """Send a piece of the body as the engine does."""
    refusal = exchange.upload(data)
    return await exchange.pay(len(data)) if refusal is None and exchange.metered else refusal


@pytest.mark.parametrize("framing", ["Content-Length: 400", "Transfer-Encoding: chunked"])
async def test_V_07_uploads_are_paid_as_they_leave(tmp_path: Path, framing: str) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=1000)})
    made.keeper.purse = 1000
    channel = await tunnel(made, "files.test")
    exchange = await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", framing))
    size = written(exchange, "PUT")
    assert exchange.bytes_up == 0, "allowed, but not gone yet"
    exchange.head_sent()
    assert exchange.bytes_up == size
    assert await paid(exchange, b"x" * 300) is None
    assert exchange.bytes_up == size + 300
    made.keeper.purse = 0
    refused = [await paid(exchange, b"x" * 25) for _ in range(4)]
    assert refused[-1] is Reason.BUDGET
    assert exchange.bytes_up <= 1000


async def test_H4_a_request_that_can_never_be_paid_takes_nothing_of_what_others_share(tmp_path: Path) -> None:
    """One request that sent nothing took the whole policy's budget."""
    budgets = {
        "budgets_session": Budgets(upload_bytes_per_hour=1000),
        "budgets_policy": Budgets(upload_bytes_per_hour=10_000_000),
    }
    made = stage(tmp_path, policy=budgets)
    channel = await tunnel(made, "files.test")
    exchange = await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 999999999999"))
    assert reason_of(exchange) is Reason.BUDGET
    assert made.keeper.count("draw") == 0


async def test_H4_a_request_that_sends_nothing_has_drawn_a_slice_at_most(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"budgets_policy": Budgets(upload_bytes_per_hour=3_200_000)})
    channel = await tunnel(made, "files.test")
    forwarded(await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 3000000")))
    assert [ask for ask in made.keeper.asked if ask[0] == "draw"] == [("draw", "upload_bytes", "policy", 100_000)]


async def test_H5_a_websocket_is_paid_for(tmp_path: Path) -> None:
    """It carried 13 MB out of a budget of 1000 bytes."""
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=1000)})
    made.keeper.purse = 1000
    exchange = await judged(await tunnel(made, "chat.test"), head(GET, "Host: chat.test", *UPGRADE))
    relayed(exchange, "HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket")
    assert exchange.upgraded
    sent = [await paid(exchange, b"B" * 100) for _ in range(10)]
    assert sent[0] is None
    assert sent[-1] is Reason.BUDGET
    assert exchange.bytes_up <= 1000


async def test_H5_targets_and_headers_are_paid_for(tmp_path: Path) -> None:
    """Twenty GETs carried 1.28 MB as `bytes_up` 0."""
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=100_000)})
    made.keeper.purse = 100_000
    channel = await tunnel(made, "files.test")
    fields = [f"X-{number}: {'d' * 6000}" for number in range(8)]
    line = f"GET /q?{'d' * 12_000} HTTP/1.1"
    found = [(await judged(channel, head(line, "Host: files.test", *fields))).effect for _ in range(4)]
    assert [effect.reason if isinstance(effect, Denial) else None for effect in found] == [None] + [Reason.BUDGET] * 3


# -- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        pytest.param(b"a " + SECRET + b" z", [], id="plain"),
        pytest.param(b"a " + base64.b64encode(SECRET) + b" z", [], id="base64"),
        pytest.param(gzip.compress(b"a " + SECRET + b" z"), ["Content-Encoding: gzip"], id="gzip"),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 10_000])
async def test_C_a_secret_that_comes_back_is_taken_out(
    tmp_path: Path, body: bytes, fields: list[str], cut: int
) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    answer = relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *fields)
    assert answer.gather or answer.length is None
    pieces = [exchange.download(body[at : at + cut]) for at in range(0, len(body), cut)]
    out = b"".join(piece for piece in [*pieces, exchange.download_end()] if isinstance(piece, bytes))
    assert SECRET not in out
    assert base64.b64encode(SECRET) not in out
    assert out.startswith(b"a ")
    assert out.endswith(b" z")
    exchange.finish()
    assert made.records("http")[-1]["reason"] == "reflected_secret"
    assert made.records("http")[-1]["verdict"] == "redact"
    assert [line["reason"] for line in made.records("incident")] == ["reflected_secret"]


async def test_C_every_live_secret_is_searched_for_also_where_none_was_used(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, "files.test"), head(GET, "Host: files.test"))
    relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {len(SECRET)}")
    out = exchange.download(SECRET)
    assert isinstance(out, bytes)
    assert SECRET not in out + (exchange.download_end() or b"")  # type: ignore[operator]


async def test_C_a_secret_in_a_header_is_taken_out(tmp_path: Path) -> None:
    exchange = await credentialed(stage(tmp_path))
    answer = relayed(exchange, "HTTP/1.1 200 OK", f"X-Echo: {SECRET.decode()}", "Content-Length: 0")
    assert SECRET not in b"".join(value for _, value in answer.headers)


@pytest.mark.parametrize("coding", ["x-unknown", "gzip, x-unknown", "compress"])
async def test_C_an_answer_that_cannot_be_searched_is_refused(tmp_path: Path, coding: str) -> None:
    exchange = await credentialed(stage(tmp_path))
    exchange.on_response(reply("HTTP/1.1 200 OK", "Content-Length: 5", f"Content-Encoding: {coding}"))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)
    assert exchange.response_effect.reason is Reason.UNSCANNABLE_RESPONSE


async def test_C_a_coding_that_lies_is_refused(tmp_path: Path) -> None:
    exchange = await credentialed(stage(tmp_path))
    relayed(exchange, "HTTP/1.1 200 OK", "Content-Length: 20", "Content-Encoding: gzip")
    found = exchange.download(b"this is not gzip ...")
    assert Reason.UNSCANNABLE_RESPONSE in (found, exchange.download_end())


@pytest.mark.parametrize(
    ("line", "fields", "length", "has_body", "gather"),
    [
        pytest.param("HTTP/1.1 200 OK", ["Content-Length: 10"], 10, True, True, id="short"),
        pytest.param("HTTP/1.1 200 OK", ["Transfer-Encoding: chunked"], None, True, False, id="chunked"),
        pytest.param("HTTP/1.1 200 OK", [], None, True, False, id="to-the-end"),
        pytest.param("HTTP/1.1 200 OK", ["Content-Length: 0"], 0, False, False, id="empty"),
        pytest.param("HTTP/1.1 204 No Content", [], None, False, False, id="204"),
        pytest.param("HTTP/1.1 304 Not Modified", ["ETag: x"], None, False, False, id="304"),
    ],
)
async def test_framing_is_told_anew(
    tmp_path: Path, line: str, fields: list[str], length: int | None, has_body: bool, gather: bool
) -> None:
    answer = relayed(await credentialed(stage(tmp_path)), line, *fields)
    assert (answer.length, answer.has_body, answer.gather) == (length, has_body, gather)
    assert not any(name.lower() in (b"transfer-encoding", b"connection") for name, _ in answer.headers)


async def test_a_head_request_keeps_the_length_that_was_told(tmp_path: Path) -> None:
    answer = relayed(await credentialed(stage(tmp_path), "HEAD / HTTP/1.1"), "HTTP/1.1 200 OK", "Content-Length: 10")
    assert (b"Content-Length", b"10") in answer.headers
    assert not answer.has_body


@pytest.mark.parametrize(
    ("line", "field", "outcome"),
    [
        pytest.param("HTTP/1.1 302 Found", "Location: https://evil.test/", "denied", id="R-01"),
        pytest.param("HTTP/1.1 302 Found", "Location: https://files.test/", "kept", id="allowed"),
        pytest.param("HTTP/1.1 201 Created", "Location: https://evil.test/", "removed", id="R-created"),
        pytest.param("HTTP/1.1 200 OK", "Refresh: 0;url=https://evil.test/", "removed", id="R-refresh"),
        pytest.param("HTTP/1.1 200 OK", "Content-Location: https://evil.test/", "removed", id="R-content-location"),
        pytest.param("HTTP/1.1 304 Not Modified", "Location: https://evil.test/", "removed", id="R-304"),
    ],
)
async def test_R_a_redirect_is_judged_before_the_client_sees_it(
    tmp_path: Path, line: str, field: str, outcome: str
) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    exchange.on_response(reply(line, field, "Content-Length: 0"))
    exchange.judge_response()
    effect = exchange.response_effect
    exchange.finish()
    if outcome == "denied":
        assert isinstance(effect, Denial)
        assert effect.reason is Reason.REDIRECT_DENIED
        assert b"evil" not in effect.body
        end = made.records("http")[-1]
        assert end["reason"] == "redirect_denied"
        assert "evil.test" in str(end["http"]["location"])  # type: ignore[index]
        return
    assert isinstance(effect, Relay)
    name = field.partition(":")[0].encode()
    assert any(key == name for key, _ in effect.headers) is (outcome == "kept")
    marks = [line["reason"] for line in made.records("http") if line["phase"] == "event"]
    assert marks == (["redirect_removed"] if outcome == "removed" else [])


async def test_R_a_secret_in_a_denied_location_is_not_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    exchange.on_response(reply("HTTP/1.1 302 Found", f"Location: https://evil.test/{SECRET.decode()}"))
    exchange.judge_response()
    exchange.finish()
    assert SECRET not in b"".join(path.read_bytes() for path in made.log.rglob("*.jsonl"))


# -- WebSocket --------------------------------------------------------------------------------------

UPGRADE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: permessage-deflate")


async def test_P_20_an_upgrade_passes_where_the_rule_says_so(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, "chat.test"), head(GET, "Host: chat.test", *UPGRADE))
    headers = dict(forwarded(exchange).headers)
    assert headers[b"Upgrade"] == b"websocket"
    assert b"Sec-WebSocket-Extensions" not in headers
    answer = relayed(exchange, "HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
    assert answer.upgrade
    assert exchange.download(b"\x81\x05frame") == b"\x81\x05frame"
    assert exchange.download(b"\x01\x0ax" + SECRET[:9]) == b"\x01\x0ax"
    assert exchange.download(b"\x80\x18" + SECRET[9:]) is Reason.REFLECTED_SECRET


@pytest.mark.parametrize(
    ("host", "fields", "answer"),
    [
        pytest.param("files.test", UPGRADE, "Upgrade: websocket", id="no-rule"),
        pytest.param("chat.test", (), "Upgrade: websocket", id="not-asked-for"),
        pytest.param("chat.test", UPGRADE, "Upgrade: h2c", id="another-protocol"),
        pytest.param("chat.test", UPGRADE, "X: 1", id="no-protocol"),
    ],
)
async def test_P_19_no_other_protocol_begins(tmp_path: Path, host: str, fields: tuple[str, ...], answer: str) -> None:
    exchange = await judged(await tunnel(stage(tmp_path), host), head(GET, f"Host: {host}", *fields))
    exchange.on_response(reply("HTTP/1.1 101 Switching Protocols", answer))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)
    assert exchange.response_effect.reason is Reason.BAD_UPSTREAM


# -- observe, reload, time, the end -----------------------------------------------------------------


async def test_observe_lets_a_denied_request_pass_marked_and_without_a_credential(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"observe_until": 1e12})
    channel = await tunnel(made, "evil.test")
    assert channel.outcome == Tunnel()
    exchange = await judged(channel, head("PUT / HTTP/1.1", "Host: evil.test", "Transfer-Encoding: chunked"))
    forwarded(exchange)
    decision = made.records("http")[0]
    assert (decision["verdict"], decision["reason"], decision["observed"]) == ("allow", "not_in_allowlist", True)
    made.keeper.purse = 900_000
    assert await paid(exchange, b"x" * 900_000) is None
    refused = [await paid(exchange, b"x" * 25_000) for _ in range(4)]
    assert refused[-1] is Reason.NOT_IN_ALLOWLIST
    assert {ask[1:3] for ask in made.keeper.asked if ask[0] == "draw"} == {("observed_bytes", "policy")}
    other = await judged(channel, head("GET / HTTP/1.1", "Host: evil.test", BEARER))
    assert isinstance(other.effect, Denial)
    assert made.keeper.count("lease") == 0


async def test_a_narrower_policy_would_refuse_what_is_under_way(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    none = stage(tmp_path / "next", rules=()).gate.prepared.policies["p"]
    assert exchange.refused_by(made.gate.prepared.policies["p"], 0.0) is None
    assert exchange.refused_by(none, 0.0) is Reason.NOT_IN_ALLOWLIST


@pytest.mark.parametrize(
    ("line", "fields", "answering", "later", "reason"),
    [
        pytest.param(GET, [], False, 121, Reason.UPSTREAM_TIMEOUT, id="V-16-silent-upstream"),
        pytest.param(GET, [], False, 119, None, id="still-in-time"),
        pytest.param(GET, [], True, 599, None, id="a-slow-answer"),
        pytest.param(GET, [], True, 601, Reason.UPSTREAM_TIMEOUT, id="V-16-stalled-answer"),
        pytest.param("PUT / HTTP/1.1", ["Content-Length: 9"], False, 121, Reason.CLIENT_TIMEOUT, id="V-02-stalled"),
        pytest.param("PUT / HTTP/1.1", ["Content-Length: 9"], False, 61, Reason.CLIENT_TIMEOUT, id="V-02-slow-body"),
        pytest.param("PUT / HTTP/1.1", ["Content-Length: 9"], False, 59, None, id="body-in-time"),
    ],
)
async def test_deadlines(
    tmp_path: Path, line: str, fields: list[str], answering: bool, later: float, reason: Reason | None
) -> None:
    made = stage(tmp_path)
    exchange = await judged(await tunnel(made, "files.test"), head(line, "Host: files.test", *fields))
    if answering:
        relayed(exchange, "HTTP/1.1 200 OK", "Transfer-Encoding: chunked")
    assert exchange.overdue(exchange.progress + later, stall=120, slow=60, rate=64) is reason


async def test_a_stopped_exchange_ends_with_its_first_reason(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    assert exchange.stop(Reason.UPSTREAM_TLS).status == 502
    exchange.stop(Reason.CLIENT_TIMEOUT)
    exchange.finish()
    assert made.phases()[-1] == ("http", "end", "error", "upstream_tls")


async def test_a_client_that_leaves_is_on_record(tmp_path: Path) -> None:
    made = stage(tmp_path)
    exchange = await credentialed(made)
    exchange.client_gone()
    exchange.finish()
    assert made.phases()[-1] == ("http", "end", "error", None)
    exchange.on_response(reply("HTTP/1.1 200 OK"))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)


async def test_an_exchange_that_was_never_judged_still_leaves_both_lines(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    exchange = Exchange(channel, head(GET, "Host: api.test"))
    exchange.finish()
    lines = [line for line in made.phases() if line[0] == "http"]
    assert lines == [("http", phase, "error", "internal_fault") for phase in ("decision", "end")]


async def test_an_answer_without_a_session_is_never_relayed(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant()))
    exchange = await credentialed(made)
    exchange.channel.session = None
    exchange.on_response(reply("HTTP/1.1 200 OK"))
    exchange.judge_response()
    assert isinstance(exchange.response_effect, Denial)


@pytest.mark.parametrize(
    ("told", "got", "reason"),
    [
        pytest.param(5, [b"hello"], None, id="whole"),
        pytest.param(5, [b"hel"], Reason.BAD_UPSTREAM, id="shorter"),
        pytest.param(5, [b"hello", b"!"], Reason.BAD_UPSTREAM, id="longer"),
    ],
)
async def test_C2_an_answer_is_as_long_as_it_says(
    tmp_path: Path, told: int, got: list[bytes], reason: Reason | None
) -> None:
    exchange = await judged(await tunnel(stage(tmp_path), "files.test"), head(GET, "Host: files.test"))
    relayed(exchange, "HTTP/1.1 200 OK", f"Content-Length: {told}")
    last = [exchange.download(piece) for piece in got][-1]
    ended = exchange.download_end() if isinstance(last, bytes) else last
    assert (ended if isinstance(ended, Reason) else None) is reason


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        pytest.param([b"hello"], None, id="whole"),
        pytest.param([b"hel"], Reason.AMBIGUOUS, id="shorter"),
        pytest.param([b"hel", b"lo!"], Reason.AMBIGUOUS, id="longer"),
        pytest.param([], Reason.AMBIGUOUS, id="nothing"),
    ],
)
async def test_C2_a_request_is_as_long_as_it_says(tmp_path: Path, got: list[bytes], reason: Reason | None) -> None:
    line = "PUT / HTTP/1.1"
    request = head(line, "Host: files.test", "Content-Length: 5")
    exchange = await judged(await tunnel(stage(tmp_path), "files.test"), request)
    assert forwarded(exchange).length == 5
    refused = [found for piece in got if (found := exchange.upload(piece)) is not None]
    assert (refused[0] if refused else exchange.upload_end()) is reason
