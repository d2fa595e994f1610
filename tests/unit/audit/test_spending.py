"""The accounts of the log budgets."""

from tidegate.audit.event import LogLimit, Subject
from tidegate.audit.spending import Debt, Spending
from tidegate.audit.tally import Count

SUBJECT = Subject(session="a", log_bytes_per_hour=100)


def test_refusals_are_told_at_once_and_then_once_a_minute() -> None:
    spending = Spending(1000)
    assert not spending.over(SUBJECT, 0.0)
    spending.charge(SUBJECT, 100)
    assert spending.over(SUBJECT, 1.0)
    assert spending.refuse(SUBJECT, 1.0, "t1") == Count(1, "t1", "t1")
    assert spending.refuse(SUBJECT, 2.0, "t2") is None
    assert spending.refuse(SUBJECT, 3.0, "t3") is None
    assert list(spending.due(60.0)) == []
    assert list(spending.due(61.0)) == [(SUBJECT, Count(2, "t2", "t3"))]


def test_what_was_not_told_outlives_the_hour() -> None:
    spending = Spending(1000)
    spending.over(SUBJECT, 0.0)
    spending.charge(SUBJECT, 100)
    spending.refuse(SUBJECT, 3599.0, "t1")
    spending.refuse(SUBJECT, 3599.5, "t2")
    assert not spending.over(SUBJECT, 3600.0)
    assert list(spending.due(3601.0)) == [(SUBJECT, Count(1, "t2", "t2"))]


def test_a_subject_without_a_limit_has_the_default_and_sessions_do_not_share() -> None:
    spending = Spending(10)
    other = Subject(session="b")
    for subject in (SUBJECT, other):
        spending.over(subject, 0.0)
        spending.charge(subject, 50)
    assert not spending.over(SUBJECT, 1.0)
    assert spending.over(other, 1.0)


def test_idle_accounts_are_forgotten() -> None:
    spending = Spending(10)
    spending.over(SUBJECT, 0.0)
    spending.charge(SUBJECT, 500)
    list(spending.due(3600.0))
    assert not spending.over(SUBJECT, 3600.0)


# -- pools: what a policy or an owner has in all workers together --------------------------------------

POLICY = LogLimit("policy", "policy/p", 100)
OWNER = LogLimit("owner", "owner/o", 300)
ALICE = Subject(session="alice", log_limits=(POLICY, OWNER))
BOB = Subject(session="bob", log_limits=(LogLimit("policy", "policy/q", 100), OWNER))


def spent(spending: Spending, subject: Subject, size: int, now: float = 0.0) -> bool:
    """Write `size` bytes; say whether the subject is over then."""
    if not spending.over(subject, now):
        spending.charge(subject, size)
    return spending.over(subject, now)


def test_a_pool_is_shared_by_its_sessions_and_by_nobody_else() -> None:
    spending = Spending(10_000)
    assert spent(spending, ALICE, 150)
    assert spending.over(Subject(session="another of p", log_limits=(POLICY,)), 0.0)
    assert not spent(spending, BOB, 50)
    assert not spent(spending, Subject(session="a victim"), 5000)
    assert spent(spending, Subject(session="of the owner", log_limits=(OWNER,)), 100)
    assert spending.over(BOB, 1.0)
    assert not spending.over(BOB, 3600.0)  # the next hour


def test_what_was_written_is_told_once_and_what_could_not_be_told_again() -> None:
    spending = Spending(10_000)
    spent(spending, ALICE, 40)
    debts = spending.debts()
    assert debts == [Debt("policy/p", "policy", "alice", 40, 100), Debt("owner/o", "owner", "alice", 40, 300)]
    assert spending.debts() == []
    spending.owe(debts[0], 15)
    assert [(debt.pool, debt.size) for debt in spending.debts()] == [("policy/p", 15)]


def test_a_pool_that_is_full_elsewhere_is_full_here_for_a_tenth_of_the_hour() -> None:
    spending = Spending(10_000)
    spent(spending, ALICE, 10)
    (debt, _) = spending.debts()
    spending.fill(debt, 50.0)
    assert spending.over(ALICE, 51.0)
    assert not spending.over(BOB, 51.0)
    assert spending.over(ALICE, 409.0)
    assert not spending.over(ALICE, 410.0)


def test_of_two_limits_of_one_owner_the_wider_one_is_not_full_with_the_other() -> None:
    spending = Spending(10_000)
    tight = Subject(session="tight", log_limits=(LogLimit("owner", "owner/o", 100),))
    wide = Subject(session="wide", log_limits=(LogLimit("owner", "owner/o", 1000),))
    spent(spending, tight, 10)
    spending.fill(spending.debts()[0], 0.0)
    assert spending.over(tight, 1.0)
    assert not spending.over(wide, 1.0)
