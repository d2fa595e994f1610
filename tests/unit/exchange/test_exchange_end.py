"""How an exchange ends: by observe's time, a reload, a deadline, a client that leaves."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import (
    BEARER,
    GET,
    FakeKeeper,
    credentialed,
    forwarded,
    grant,
    head,
    judged,
    paid,
    relayed,
    reply,
    stage,
    tunnel,
)
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.reply import Denial
from tidegate.exchange.tunnel import Tunnel
from tidegate.policy.reasons import Reason


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
