"""One policy a decision, and one vetting a rule: what waits or is open is not let through by another's."""

from pathlib import Path

import msgspec

from tests.unit.exchange.stage import FakeKeeper, FakeResolver, head, judged, rule, settings, stage, tunnel
from tidegate.exchange.effects import Forward
from tidegate.exchange.gate import prepare
from tidegate.exchange.reply import Denial
from tidegate.policy.names import HostName
from tidegate.policy.paths import parse_glob
from tidegate.policy.reasons import Reason
from tidegate.resolve.resolver import Answer


class Reloading(FakeResolver):
    """Lets another policy come into force while a name is looked up."""

    def __init__(self, swap: "list[object]") -> None:
        super().__init__()
        self.swap = swap

    async def lookup(self, name: HostName, *, payer: str | None = None) -> Answer | Reason:
        if self.swap:
            self.swap.pop()()  # type: ignore[operator]
        return await super().lookup(name, payer=payer)


async def test_a_request_that_waited_through_a_reload_is_judged_by_the_new_policy(tmp_path: Path) -> None:
    made = stage(tmp_path)
    narrow = prepare(settings(tmp_path, rules=(rule("files", "files.test"),)), frozenset(), frozenset())
    made.gate.resolver = Reloading([lambda: made.gate.adopt(narrow, 2)])  # type: ignore[assignment]
    exchange = await judged(await tunnel(made), head("GET /v1 HTTP/1.1", "Host: api.test"))
    assert isinstance(exchange.effect, Denial)
    assert exchange.effect.reason is Reason.NOT_IN_ALLOWLIST


async def test_an_open_connection_into_a_special_range_serves_only_rules_that_name_it(tmp_path: Path) -> None:
    inside = rule("inside", "inner.test", paths=(parse_glob("/in/**"),), addresses=("10.1.0.0/16",))
    outside = rule("outside", "inner.test", paths=(parse_glob("/out/**"),))
    made = stage(tmp_path, rules=(inside, outside), keeper=FakeKeeper())
    made.resolver.zone["inner.test"] = "10.1.2.3"
    channel = await tunnel(made, "inner.test")
    first = await judged(channel, head("GET /in/a HTTP/1.1", "Host: inner.test"))
    assert isinstance(first.effect, Forward)
    channel.upstreams.opened("inner.test", 443, "10.1.2.3")
    second = await judged(channel, head("GET /out/a HTTP/1.1", "Host: inner.test"))
    assert isinstance(second.effect, Denial)
    assert second.effect.reason is Reason.RESOLVED_BLOCKED
    third = await judged(channel, head("GET /in/b HTTP/1.1", "Host: inner.test"))
    assert isinstance(third.effect, Forward)
    assert len(made.resolver.asked) == 1


async def test_an_open_connection_is_judged_by_the_deny_list_of_now(tmp_path: Path) -> None:
    made = stage(tmp_path)
    channel = await tunnel(made)
    first = await judged(channel, head("GET /a HTTP/1.1", "Host: api.test"))
    assert isinstance(first.effect, Forward)
    channel.upstreams.opened("api.test", 443, "93.184.216.34")
    closed = msgspec.structs.replace(settings(tmp_path), deny_cidrs=("93.184.216.0/24",))
    made.gate.adopt(prepare(closed, frozenset(), frozenset()), 2)
    second = await judged(channel, head("GET /b HTTP/1.1", "Host: api.test"))
    assert isinstance(second.effect, Denial)
    assert second.effect.reason is Reason.RESOLVED_BLOCKED
