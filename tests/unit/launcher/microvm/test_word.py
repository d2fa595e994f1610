"""What a machine's first process says: a stranger's word, and read no further than asked."""

import os
from collections.abc import Iterator

import pytest

from tidegate_launcher.boundary import Cancelled
from tidegate_launcher.microvm.word import Word, heard, wait_up


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        pytest.param(b"end 7 0 10 20\n", Word(code=7), id="ended"),
        pytest.param(b"end 137 2 10 20\n", Word(code=137, oom_kills=2), id="out of memory"),
        pytest.param(b"end 1 0 0 20\n", Word(code=1, disk_full=True), id="no block left"),
        pytest.param(b"end 1 0 10 0\n", Word(code=1, disk_full=True), id="no inode left"),
        pytest.param(b"end 999 0 1 1\n", Word(code=255), id="no code"),
        pytest.param(b"end 0 0 1\n", Word(), id="half a line"),
        pytest.param(b"end -1 0 1 1\nend 0 0 1 1 1\nEND\n\xff\0\n", Word(), id="noise"),
        pytest.param(b"", Word(), id="nothing"),
    ],
)
def test_an_end_is_read_whole_or_not_at_all(pipe: tuple[int, int], said: bytes, word: Word) -> None:
    os.write(pipe[1], said)
    assert heard(pipe[0]) == word


def test_what_follows_the_first_word_is_left_to_be_heard(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"up\nend 3 0 1 1\n")
    assert wait_up(pipe[0], 5, cancel=None) == Word(up=True)
    assert heard(pipe[0]) == Word(code=3)


def test_a_word_that_does_not_come_is_not_waited_for_for_ever(pipe: tuple[int, int]) -> None:
    assert wait_up(pipe[0], 0.01, cancel=None) == Word()
    os.write(pipe[1], b"x" * 5000)
    assert wait_up(pipe[0], 5, cancel=None) == Word()


def test_one_who_can_say_no_more_is_not_waited_for() -> None:
    told, telling = os.pipe()
    os.close(telling)
    assert wait_up(told, 60, cancel=None) == Word()
    os.close(told)


def test_a_launch_that_is_wanted_no_more_is_not_waited_for(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(Cancelled):
        wait_up(pipe[0], 60, cancel=reading)
    os.close(reading)
