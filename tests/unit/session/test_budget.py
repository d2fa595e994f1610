import asyncio
import random

import pytest

from tests.unit.keeper.made import TurnedClock
from tidegate.policy.reasons import Reason
from tidegate.session.budget import BudgetLedger, Charge
from tidegate.session.identity import SessionId

SID = SessionId("s")


class Purse:
    """What the keeper would do: grant up to a total."""

    def __init__(self, total: int, **kept: int) -> None:
        self.left = total
        self.kept = kept
        self.draws = 0
        self.asked: list[str] = []
        self.fault: Reason | None = None

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason:
        self.draws += 1
        self.asked.append(key)
        await asyncio.sleep(0)
        if self.fault is not None:
            return self.fault
        granted = min(amount, self.kept.get(key, self.left), max(limit // 32, 1))
        if key in self.kept:
            self.kept[key] -= granted
        else:
            self.left -= granted
        return granted


def _requests(limit: int, key: str = "session") -> Charge:
    return Charge(SID, "requests", key, limit)


async def test_most_requests_are_paid_from_memory() -> None:
    purse = Purse(3200)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    paid = [await ledger.take_or_draw([_requests(3200)]) for _ in range(1000)]
    assert paid == [None] * 1000
    assert purse.draws == 10


async def test_several_workers_together_never_exceed_the_limit() -> None:
    purse, clock = Purse(100), TurnedClock()
    ledgers = [BudgetLedger(purse.draw, clock) for _ in range(4)]
    dice = random.Random(7)
    paid = 0
    for _ in range(600):
        paid += await dice.choice(ledgers).take_or_draw([_requests(100)]) is None
        clock.go(0.001)
    assert 97 <= paid <= 100


async def test_all_charges_are_paid_or_none() -> None:
    wide, clock = Purse(1000), TurnedClock()
    ledger = BudgetLedger(wide.draw, clock)
    assert await ledger.take_or_draw([_requests(10), _requests(10, "owner")]) is None
    wide.left = 0
    spent = 1
    while await ledger.take_or_draw([_requests(10), _requests(10, "owner")]) is None:
        spent += 1
    assert spent <= 10
    assert ledger.take([_requests(10)]) is Reason.BUDGET


async def test_an_empty_budget_is_not_asked_for_again_at_once() -> None:
    purse, clock = Purse(0), TurnedClock()
    ledger = BudgetLedger(purse.draw, clock)
    assert [await ledger.take_or_draw([_requests(10)]) for _ in range(50)] == [Reason.BUDGET] * 50
    assert purse.draws == 1
    clock.go(0.3)
    purse.left = 5
    assert await ledger.take_or_draw([_requests(10)]) is None


async def test_a_slice_is_not_spent_in_a_later_window() -> None:
    purse, clock = Purse(10), TurnedClock()
    ledger = BudgetLedger(purse.draw, clock)
    assert await ledger.take_or_draw([Charge(SID, "upload_bytes", "session", 3200)], 5) is None
    assert ledger.take([Charge(SID, "upload_bytes", "session", 3200)], 5) is True
    purse.left = 100
    assert await ledger.take_or_draw([Charge(SID, "upload_bytes", "session", 3200)], 5) is None
    clock.go(361)
    assert ledger.take([Charge(SID, "upload_bytes", "session", 3200)], 5) is False


async def test_a_name_is_paid_once() -> None:
    purse = Purse(1)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    one = Charge(SID, "distinct_names", "session:a.test", 1)
    two = Charge(SID, "distinct_names", "session:b.test", 1)
    assert [await ledger.take_or_draw([one]) for _ in range(5)] == [None] * 5
    assert await ledger.take_or_draw([two]) is Reason.BUDGET
    assert purse.draws == 2


@pytest.mark.parametrize(
    "reason", [Reason.KEEPER_UNAVAILABLE, Reason.INTERNAL_FAULT, Reason.SESSION_INVALID], ids=lambda one: one.code
)
async def test_what_keeps_a_budget_from_being_drawn_is_not_taken_for_one_used_up(reason: Reason) -> None:
    purse, clock = Purse(10), TurnedClock()
    purse.fault = reason
    ledger = BudgetLedger(purse.draw, clock)
    assert [await ledger.take_or_draw([_requests(10)]) for _ in range(3)] == [reason] * 3
    assert ledger.take([_requests(10)]) is reason, "also by what is remembered for a moment"
    assert purse.draws == 1
    purse.fault = None
    clock.go(0.3)
    assert await ledger.take_or_draw([_requests(10)]) is None


OTHER = SessionId("t")


async def test_what_is_wrong_with_one_session_is_not_held_against_who_shares_its_budget() -> None:
    purse = Purse(10)
    purse.fault = Reason.SESSION_INVALID
    ledger = BudgetLedger(purse.draw, TurnedClock())
    shared = [Charge(one, "requests", "policy", 10, "policy/p") for one in (SID, OTHER)]
    assert await ledger.take_or_draw(shared[:1]) is Reason.SESSION_INVALID
    purse.fault = None
    assert await ledger.take_or_draw(shared[1:]) is None


def _uploads(session: SessionId, own: int, policy: int) -> list[Charge]:
    return [
        Charge(session, "upload_bytes", "session", own),
        Charge(session, "upload_bytes", "policy", policy, "policy/p"),
        Charge(session, "upload_bytes", "owner", policy, "owner/o"),
    ]


@pytest.mark.parametrize("amount", [1001, 999_999_999_999])
async def test_more_than_a_limit_is_refused_before_anything_is_drawn(amount: int) -> None:
    """A request that sends nothing takes nothing of the policy's budget."""
    purse = Purse(10_000_000)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    assert await ledger.take_or_draw(_uploads(SID, 1000, 10_000_000), amount) is Reason.BUDGET
    assert purse.draws == 0


async def test_a_session_with_nothing_left_draws_nothing_of_what_it_shares() -> None:
    purse = Purse(10_000_000, session=0)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    assert await ledger.take_or_draw(_uploads(SID, 1000, 10_000_000), 500) is Reason.BUDGET
    assert purse.asked == ["session"]


async def test_what_one_session_drew_of_a_shared_budget_the_next_one_uses() -> None:
    purse = Purse(0, session=10_000, policy=3200, owner=3200)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    assert await ledger.take_or_draw(_uploads(SID, 3200, 3200), 10) is None
    ledger.forget(SID)
    purse.kept |= {"policy": 0, "owner": 0}
    assert await ledger.take_or_draw(_uploads(OTHER, 3200, 3200), 90) is None
    assert await ledger.take_or_draw(_uploads(OTHER, 3200, 3200), 1) is Reason.BUDGET


async def test_many_who_are_short_at_once_draw_no_more_than_they_need() -> None:
    purse = Purse(3200)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    paid = await asyncio.gather(*(ledger.take_or_draw([_requests(3200)]) for _ in range(100)))
    assert paid == [None] * 100
    assert purse.draws == 1


async def test_who_waits_beside_another_is_not_refused_what_is_there() -> None:
    purse = Purse(3200)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    paid = await asyncio.gather(*(ledger.take_or_draw([_requests(3200)], 150) for _ in range(21)))
    assert paid == [None] * 21
    assert await ledger.take_or_draw([_requests(3200)], 150) is Reason.BUDGET
