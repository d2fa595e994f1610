"""The talk with a sandbox's first process: what waits, what has come, and what nobody takes any more."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from tidegate_launcher.kept import init
from tidegate_launcher.kept.control import Control


@pytest.fixture
def control() -> Iterator[Control]:
    with contextlib.closing(Control()) as one:
        yield one


def test_what_has_no_room_waits_and_is_sent_whole(control: Control) -> None:
    orders = next(ours for ours, theirs in control.theirs.items() if theirs == init.ORDERS)
    data = os.urandom(300_000)
    control.tell(init.RUN, data)
    assert control.waiting
    came = b""
    while len(came) < init.HEAD.size + len(data):
        came += os.read(orders, 65536)
        control.flush()
    assert not control.waiting
    assert came == init.HEAD.pack(init.RUN, len(data)) + data


def test_what_nobody_takes_any_more_does_not_wait(control: Control) -> None:
    """It would be tried again at once, for as long as the sandbox takes to end."""
    control.close_theirs()
    control.tell(init.KILL)
    assert not control.waiting


def test_answers_come_whole_however_they_are_cut(control: Control) -> None:
    answers = next(ours for ours, theirs in control.theirs.items() if theirs == init.ANSWERS)
    said = init.ANSWER.pack(init.TAKEN, 0) + init.ANSWER.pack(init.ENDED, 7)
    heard = []
    for byte in said:
        os.write(answers, bytes([byte]))
        heard += list(control.heard())
    assert heard == [(init.TAKEN, 0), (init.ENDED, 7)]
    assert list(control.heard()) == []
