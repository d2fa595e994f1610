"""What a request counts against."""

from pathlib import Path

from tests.unit.exchange.stage import grant, rule, stage
from tidegate.exchange.charges import body_limit, request_charges, upload_charges
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, PolicySpec, RuleLimits


def live(folder: Path, **policy: object) -> LiveSession:
    made = stage(folder, policy=policy)
    return LiveSession(grant(), made.gate.prepared.policies["p"], {}, made.clock)


def test_each_limit_that_is_set_is_a_charge_of_its_own(tmp_path: Path) -> None:
    session = live(
        tmp_path,
        budgets_session=Budgets(requests_per_minute=5, upload_bytes_per_hour=50),
        budgets_policy=Budgets(requests_per_minute=6),
        budgets_owner=Budgets(requests_per_minute=7),
        limits=RuleLimits(requests_per_minute=8),
    )
    own = rule("r", "a.test", limits=RuleLimits(requests_per_minute=9))
    charges = request_charges(session, own)
    assert [(one.key, one.limit, one.window_seconds) for one in charges] == [
        ("session", 5, 60),
        ("policy", 6, 60),
        ("owner", 7, 60),
        ("rule:r", 9, 60),
    ]
    # By observe alone, under no rule at all: what the policy says of every rule.
    assert [(one.key, one.limit) for one in request_charges(session, None)][-1] == ("rule:*", 8)
    assert [(one.key, one.kind, one.window_seconds) for one in upload_charges(session, own)] == [
        ("session", "upload_bytes", 3600)
    ]
    assert request_charges(session, own) is charges


def test_no_limit_is_no_charge(tmp_path: Path) -> None:
    assert request_charges(live(tmp_path), None) == ()


def test_another_epoch_has_other_charges(tmp_path: Path) -> None:
    session = live(tmp_path, budgets_session=Budgets(requests_per_minute=5))
    assert len(request_charges(session, None)) == 1
    session.adopt(stage(tmp_path / "next").gate.prepared.policies["p"], {})
    assert request_charges(session, None) == ()


def test_a_rules_own_body_limit_comes_before_the_policys() -> None:
    own = rule("r", "a.test", limits=RuleLimits(request_body_bytes=10))
    assert body_limit(own, PolicySpec("p", limits=RuleLimits(request_body_bytes=5))) == 10
    assert body_limit(own, PolicySpec("p", limits=RuleLimits(request_body_bytes=15))) == 10
    assert body_limit(None, PolicySpec("p", limits=RuleLimits(request_body_bytes=5))) == 5
    assert body_limit(rule("r", "a.test"), PolicySpec("p", limits=RuleLimits(request_body_bytes=5))) == 5
    assert body_limit(None, PolicySpec("p")) is None


async def test_a_used_up_budget_stops_the_next_request_alone(tmp_path: Path) -> None:
    made = stage(tmp_path, policy={"budgets_session": Budgets(requests_per_minute=2)})
    session = LiveSession(grant(), made.gate.prepared.policies["p"], {}, made.clock)
    made.keeper.purse = 2
    charges = request_charges(session, None)
    assert [await made.gate.ledger.take_or_draw(charges) for _ in range(3)] == [None, None, Reason.BUDGET]
    assert Reason.BUDGET.status == 429


async def test_the_calls_of_a_session_share_what_was_drawn_of_its_budgets(tmp_path: Path) -> None:
    limits = RuleLimits(requests_per_minute=64)
    made = stage(tmp_path, policy={"budgets_session": Budgets(requests_per_minute=64), "limits": limits})
    policy = made.gate.prepared.policies["p"]
    parent = LiveSession(grant(id="parent"), policy, {}, made.clock)
    calls = [LiveSession(grant(id=f"call-{n}", root="parent"), policy, {}, made.clock) for n in range(2)]
    other = LiveSession(grant(id="other"), policy, {}, made.clock)
    for session in (parent, *calls, other):
        assert await made.gate.ledger.take_or_draw(request_charges(session, None)) is None
    # One slice of two requests for the three, which the third of them begins anew, and one for the other session.
    assert [ask for ask in made.keeper.asked if ask[0] == "draw" and ask[2] == "session"] == [
        ("draw", "requests", "session", 2)
    ] * 3


def test_the_calls_of_a_session_share_its_log_budget(tmp_path: Path) -> None:
    policy = stage(tmp_path, policy={"budgets_session": Budgets(log_bytes_per_hour=9)}).gate.prepared.policies["p"]
    clock = stage(tmp_path / "clock").clock
    pools = [
        [limit.pool for limit in LiveSession(grant(id=sid, root=root), policy, {}, clock).subject.log_limits]
        for sid, root in (("parent", None), ("call", "parent"), ("other", None))
    ]
    assert pools == [["session/parent"], ["session/parent"], ["session/other"]]
