"""The accounts of the log budgets."""

from tidegate.audit.event import Subject
from tidegate.audit.spending import Spending
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
