"""Several reasons against one request: the first in order of precedence is told, and its incident is not lost."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import PLACEHOLDER, FakeKeeper, Stage, head, judged, rule, stage, tunnel
from tidegate.exchange.exchange import Exchange
from tidegate.exchange.reply import Denial
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, RuleLimits

STRANGER = "tg_71de9a7e" + "Z" * 22
TOO_LONG = "Content-Length: 100"
OUT_OF_PLACE = f"X-Note: {PLACEHOLDER}"
UNKNOWN = f"X-Note: {STRANGER}"
FOREIGN = "Authorization: Bearer my-own-account"
ENCODED = f"X-Note: {PLACEHOLDER.encode().hex()}"


async def refused(made: Stage, *fields: str) -> tuple[Reason, Exchange]:
    exchange = await judged(await tunnel(made), head("POST /v1/x HTTP/1.1", "Host: api.test", *fields))
    assert isinstance(exchange.effect, Denial), exchange.effect
    exchange.finish()
    return exchange.effect.reason, exchange


def broke(folder: Path) -> Stage:
    """A gate where no body may be longer than ten bytes and every budget is used up, if its keeper grants nothing."""
    tight = Budgets(requests_per_minute=1000, upload_bytes_per_hour=100_000)
    return stage(
        folder,
        keeper=FakeKeeper(purse=0),
        rules=(rule("api", "api.test", credential="key", limits=RuleLimits(request_body_bytes=10)),),
        policy={"budgets_session": tight},
    )


@pytest.mark.parametrize(
    ("fields", "reason", "credential"),
    [
        pytest.param([OUT_OF_PLACE], Reason.CREDENTIAL_OUT_OF_SCOPE, "key", id="out-of-place"),
        pytest.param([UNKNOWN], Reason.UNKNOWN_PLACEHOLDER, None, id="unknown"),
        pytest.param([ENCODED], Reason.ENCODED_PLACEHOLDER, "key", id="encoded"),
        pytest.param([FOREIGN], Reason.FOREIGN_CREDENTIAL, "key", id="foreign"),
    ],
)
async def test_C_a_placeholder_ranks_before_a_budget_and_before_the_bodys_length(
    tmp_path: Path, fields: list[str], reason: Reason, credential: str | None
) -> None:
    made = broke(tmp_path)
    found, _ = await refused(made, TOO_LONG, *fields)
    assert found is reason
    (incident,) = made.records("incident")
    assert (incident["reason"], incident["incident"]["credential"]) == (reason.code, credential)  # type: ignore[index]
    assert made.keeper.count("draw") == 0  # what is refused anyway costs the session nothing


@pytest.mark.parametrize(
    ("purse", "reason"),
    [pytest.param(0, Reason.BUDGET, id="budget-first"), pytest.param(None, Reason.BODY_TOO_LARGE, id="then-length")],
)
async def test_V_07_a_budget_ranks_before_the_bodys_length(tmp_path: Path, purse: int | None, reason: Reason) -> None:
    made = broke(tmp_path)
    made.keeper.purse = purse
    assert (await refused(made, TOO_LONG))[0] is reason


async def test_the_policy_ranks_before_a_placeholder(tmp_path: Path) -> None:
    made = stage(tmp_path, rules=(rule("api", "api.test", credential="key", methods=("GET",)),))
    assert (await refused(made, OUT_OF_PLACE))[0] is Reason.METHOD_NOT_ALLOWED
