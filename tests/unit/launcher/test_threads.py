"""What is made meanwhile in a thread."""

import threading

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.threads import Later, in_a_thread


def test_it_is_made_meanwhile_and_taken_back_at_the_end() -> None:
    go, closed = threading.Event(), list[int]()

    def make() -> int:
        assert go.wait(10)
        return 7

    with Later(make, closed.append) as later:
        go.set()
        assert later.result() == 7
        assert later.result() == 7
        assert closed == []
    assert closed == [7]


def test_what_nobody_asks_for_is_taken_back_too() -> None:
    closed = list[int]()
    with Later(lambda: 7, closed.append):
        pass
    assert closed == [7]


def test_what_is_not_made_meanwhile_is_made_at_once() -> None:
    closed = list[str]()
    with Later(lambda: threading.current_thread().name, closed.append, meanwhile=False) as later:
        assert later.result() == threading.current_thread().name
    assert closed == [threading.current_thread().name]


def test_a_fault_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> int:
        raise LaunchError("no")

    closed = list[int]()
    with Later(fail, closed.append) as later:
        for _ in range(2):
            with pytest.raises(LaunchError, match="no"):
                later.result()
    assert closed == []


def test_what_is_not_permitted_is_told_with_what_to_do() -> None:
    def refused() -> None:
        raise PermissionError

    with pytest.raises(LaunchError, match=r"cannot be made.*run as root"):
        in_a_thread(refused, "it cannot be made", hint="run as root")
