"""No name is looked up, and nothing is borrowed, for what cannot be put on record."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.exchange.stage import PLACEHOLDER, Stage, connect, head, judged, rule, stage, tunnel
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets
from tidegate.resolve.resolver import Answer

PLAIN = (rule("plain", "*.plain.test", protocol="http", unsafe_wildcard=True),)
SEALED = (rule("raw", "*.raw.test", protocol="tcp", ports=(9000,), unsafe_wildcard=True),)


def told(made: Stage, kind: str) -> set[object]:
    return {line[kind].get("host") or line[kind].get("name") for line in made.records(kind)}  # type: ignore[attr-defined]


async def test_a_plain_request_over_the_log_budget_asks_no_resolver(tmp_path: Path) -> None:
    made = stage(tmp_path, rules=PLAIN, policy={"budgets_session": Budgets(log_bytes_per_hour=6000)})
    for number in range(60):
        name = f"d{number:03}-exfil.plain.test"
        channel = made.channel()
        exchange = await judged(channel, head(f"GET http://{name}/ HTTP/1.1", f"Host: {name}", token="token"))
        exchange.finish()
        channel.close()
    assert made.resolver.asked
    assert set(made.resolver.asked) <= told(made, "http")
    assert len(made.resolver.asked) < 20


async def test_an_opaque_tunnel_over_the_log_budget_asks_no_resolver(tmp_path: Path) -> None:
    made = stage(tmp_path, rules=SEALED, policy={"budgets_session": Budgets(log_bytes_per_hour=6000)})
    for number in range(60):
        channel = made.channel()
        await channel.admit(connect(f"d{number:03}-exfil.raw.test:9000"))
        channel.close()
    assert made.resolver.asked
    assert set(made.resolver.asked) <= told(made, "conn")
    assert len(made.resolver.asked) < 20


async def test_many_at_once_look_up_no_name_without_a_record(tmp_path: Path) -> None:
    """What waits for its answer has its line already; it cannot be used up by the next one."""
    made = stage(tmp_path, rules=PLAIN, policy={"budgets_session": Budgets(log_bytes_per_hour=30_000)})
    answer, lookup = asyncio.Event(), made.resolver.lookup

    async def slow(name: HostName, *, payer: str | None = None) -> Answer | Reason:
        found = await lookup(name, payer=payer)
        await answer.wait()
        return found

    made.resolver.lookup = slow  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        for number in range(60):
            name = f"d{number:03}-exfil.plain.test"
            request = head(f"GET http://{name}/ HTTP/1.1", f"Host: {name}", token="token")
            group.create_task(judged(made.channel(), request))
        for _ in range(10):  # turns enough for each to come as far as it can
            await asyncio.sleep(0)
        answer.set()
    assert 10 < len(made.resolver.asked) < 40
    assert set(made.resolver.asked) <= told(made, "http")


async def test_with_a_log_that_cannot_be_written_nothing_is_asked_or_borrowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    request = ("GET / HTTP/1.1", "Host: api.test", f"Authorization: Bearer {PLACEHOLDER}")
    writer = made.gate.recorder._writer
    with monkeypatch.context() as broken:
        broken.setattr(writer, "problem", lambda: "no space")
        exchange = await judged(channel, head(*request))
        assert exchange.status == Reason.AUDIT_UNAVAILABLE.status
        assert made.resolver.asked == []
        assert made.keeper.count("lease") == 0
    made.gate.recorder.tick(made.clock.boot())  # which tells of what was lost, and so tries the disk
    assert (await judged(channel, head(*request))).status is None
