import random

from tests.unit.keeper.made import TurnedClock
from tidegate.session.budget import BudgetLedger, Charge
from tidegate.session.identity import SessionId

SID = SessionId("s")


class Purse:
    """What the keeper would do: grant up to a total."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.draws = 0

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int, window: int) -> int:
        self.draws += 1
        granted = min(amount, self.left)
        self.left -= granted
        return granted


def _requests(limit: int, key: str = "session") -> Charge:
    return Charge(SID, "requests", key, limit, 60)


async def test_most_requests_are_paid_from_memory() -> None:
    purse = Purse(3200)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    paid = [await ledger.take_or_draw([_requests(3200)]) for _ in range(1000)]
    assert all(paid)
    assert purse.draws == 10


async def test_several_workers_together_never_exceed_the_limit() -> None:
    purse, clock = Purse(100), TurnedClock()
    ledgers = [BudgetLedger(purse.draw, clock) for _ in range(4)]
    dice = random.Random(7)
    paid = 0
    for _ in range(600):
        paid += await dice.choice(ledgers).take_or_draw([_requests(100)])
        clock.go(0.001)
    assert 97 <= paid <= 100


async def test_all_charges_are_paid_or_none() -> None:
    wide, clock = Purse(1000), TurnedClock()
    ledger = BudgetLedger(wide.draw, clock)
    assert await ledger.take_or_draw([_requests(10), _requests(10, "owner")])
    wide.left = 0
    spent = 1
    while await ledger.take_or_draw([_requests(10), _requests(10, "owner")]):
        spent += 1
    assert spent <= 10
    assert ledger.take([_requests(10)]) is False


async def test_an_empty_budget_is_not_asked_for_again_at_once() -> None:
    purse, clock = Purse(0), TurnedClock()
    ledger = BudgetLedger(purse.draw, clock)
    assert [await ledger.take_or_draw([_requests(10)]) for _ in range(50)] == [False] * 50
    assert purse.draws == 1
    clock.go(0.3)
    purse.left = 5
    assert await ledger.take_or_draw([_requests(10)])


async def test_a_slice_is_not_spent_in_a_later_window() -> None:
    purse, clock = Purse(10), TurnedClock()
    ledger = BudgetLedger(purse.draw, clock)
    assert await ledger.take_or_draw([Charge(SID, "upload_bytes", "session", 3200, 60)], 5)
    assert ledger.take([Charge(SID, "upload_bytes", "session", 3200, 60)], 5) is True
    purse.left = 100
    assert await ledger.take_or_draw([Charge(SID, "upload_bytes", "session", 3200, 60)], 5)
    clock.go(7)
    assert ledger.take([Charge(SID, "upload_bytes", "session", 3200, 60)], 5) is None


async def test_a_name_is_paid_once() -> None:
    purse = Purse(1)
    ledger = BudgetLedger(purse.draw, TurnedClock())
    one = Charge(SID, "distinct_names", "session:a.test", 1, 3600)
    two = Charge(SID, "distinct_names", "session:b.test", 1, 3600)
    assert [await ledger.take_or_draw([one]) for _ in range(5)] == [True] * 5
    assert not await ledger.take_or_draw([two])
    assert purse.draws == 2


async def test_a_keeper_that_is_gone_pays_nothing() -> None:
    async def gone(*_: object) -> int:
        return 0

    assert not await BudgetLedger(gone, TurnedClock()).take_or_draw([_requests(10)])
