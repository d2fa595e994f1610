"""What a request may carry: credentials and bodies, and what they cost."""

import base64
from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    BEARER,
    GET,
    PLACEHOLDER,
    UPGRADE,
    FakeKeeper,
    credentialed,
    forwarded,
    head,
    judged,
    paid,
    reason_of,
    relayed,
    stage,
    tunnel,
    written,
)
from tidegate.exchange.reply import Denial
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, RuleLimits

# -- credentials ----------------------------------------------------------------------------------


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


# -- bodies ---------------------------------------------------------------------------------------


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


async def test_a_request_that_can_never_be_paid_takes_nothing_of_what_others_share(tmp_path: Path) -> None:
    """One request that sent nothing took the whole policy's budget."""
    budgets: dict[str, object] = {
        "budgets_session": Budgets(upload_bytes_per_hour=1000),
        "budgets_policy": Budgets(upload_bytes_per_hour=10_000_000),
    }
    made = stage(tmp_path, policy=budgets)
    channel = await tunnel(made, "files.test")
    exchange = await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 999999999999"))
    assert reason_of(exchange) is Reason.BUDGET
    assert made.keeper.count("draw") == 0


async def test_a_request_that_sends_nothing_has_drawn_a_slice_at_most(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"budgets_policy": Budgets(upload_bytes_per_hour=3_200_000)})
    channel = await tunnel(made, "files.test")
    forwarded(await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", "Content-Length: 3000000")))
    assert [ask for ask in made.keeper.asked if ask[0] == "draw"] == [("draw", "upload_bytes", "policy", 100_000)]


GONE = [
    pytest.param(Reason.KEEPER_UNAVAILABLE, id="the keeper is gone"),
    pytest.param(Reason.INTERNAL_FAULT, id="the keeper cannot write"),
    pytest.param(Reason.SESSION_INVALID, id="the session has ended there"),
]


@pytest.mark.parametrize("fault", GONE)
@pytest.mark.parametrize(
    "budget",
    [
        pytest.param({"requests_per_minute": 10}, id="requests"),
        pytest.param({"upload_bytes_per_hour": 10_000}, id="uploads"),
    ],
)
async def test_a_request_that_cannot_be_counted_has_used_up_no_budget(
    tmp_path: Path, fault: Reason, budget: dict[str, int]
) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(**budget)})
    made.keeper.purse = fault
    exchange = await judged(await tunnel(made, "files.test"), head(GET, "Host: files.test"))
    assert reason_of(exchange) is fault
    assert made.records("http")[0]["reason"] == fault.code


@pytest.mark.parametrize("fault", GONE)
async def test_a_name_that_cannot_be_counted_has_used_up_no_budget(tmp_path: Path, fault: Reason) -> None:
    """As a request by plain http, which pays for its name itself."""
    made = stage(tmp_path, policy={"budgets_session": Budgets(distinct_names_per_hour=2)})
    made.keeper.purse = fault
    request = head("GET http://plain.test/ HTTP/1.1", "Host: plain.test", token="token")
    assert reason_of(await judged(made.channel(), request)) is fault


@pytest.mark.parametrize("fault", GONE)
async def test_a_body_that_cannot_be_counted_has_used_up_no_budget(tmp_path: Path, fault: Reason) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=32_000)})
    channel = await tunnel(made, "files.test")
    exchange = await judged(channel, head("PUT / HTTP/1.1", "Host: files.test", "Transfer-Encoding: chunked"))
    forwarded(exchange)
    made.keeper.purse = fault
    refused = [await paid(exchange, b"B" * 600) for _ in range(3)]
    assert refused[-1] is fault


async def test_a_websocket_is_paid_for(tmp_path: Path) -> None:
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


async def test_targets_and_headers_are_paid_for(tmp_path: Path) -> None:
    """Twenty GETs carried 1.28 MB as `bytes_up` 0."""
    made = stage(tmp_path, policy={"budgets_session": Budgets(upload_bytes_per_hour=100_000)})
    made.keeper.purse = 100_000
    channel = await tunnel(made, "files.test")
    fields = [f"X-{number}: {'d' * 6000}" for number in range(8)]
    line = f"GET /q?{'d' * 12_000} HTTP/1.1"
    found = [(await judged(channel, head(line, "Host: files.test", *fields))).effect for _ in range(4)]
    assert [effect.reason if isinstance(effect, Denial) else None for effect in found] == [None] + [Reason.BUDGET] * 3


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        pytest.param([b"hello"], None, id="whole"),
        pytest.param([b"hel"], Reason.AMBIGUOUS, id="shorter"),
        pytest.param([b"hel", b"lo!"], Reason.AMBIGUOUS, id="longer"),
        pytest.param([], Reason.AMBIGUOUS, id="nothing"),
    ],
)
async def test_a_request_is_as_long_as_it_says(tmp_path: Path, got: list[bytes], reason: Reason | None) -> None:
    line = "PUT / HTTP/1.1"
    request = head(line, "Host: files.test", "Content-Length: 5")
    exchange = await judged(await tunnel(stage(tmp_path), "files.test"), request)
    assert forwarded(exchange).length == 5
    refused = [found for piece in got if (found := exchange.upload(piece)) is not None]
    assert (refused[0] if refused else exchange.upload_end()) is reason
