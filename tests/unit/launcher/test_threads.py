"""What is made meanwhile in a thread."""

import subprocess
import sys
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


def test_who_wants_it_no_more_does_not_wait_for_it() -> None:
    given_up, closed = threading.Event(), list[bool]()
    with pytest.raises(KeyboardInterrupt), Later(lambda: given_up.wait(20), closed.append, give_up=given_up.set):
        raise KeyboardInterrupt
    assert closed == [True]


FEW = """
import os, resource
from tidegate.errors import LaunchError
from tidegate_launcher.threads import Later, in_a_thread
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setresuid(60_123, 60_123, 60_123)
for begin in (lambda: in_a_thread(int, "no", hint="no"), Later(int, print).__enter__):
    try:
        begin()
    except LaunchError as fault:
        print(fault)
"""


def test_threads_that_cannot_be_had_are_told_with_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.count("no thread is to be had (see how many processes we may have") == 2


def test_what_is_not_permitted_is_told_with_what_to_do() -> None:
    def refused() -> None:
        raise PermissionError

    with pytest.raises(LaunchError, match=r"cannot be made.*run as root"):
        in_a_thread(refused, "it cannot be made", hint="run as root")
