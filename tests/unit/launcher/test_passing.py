"""Output on its way to our own: nobody who does not read holds us up, and who has left is noticed."""

import io
import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from tidegate_launcher.passing import Passing

ENOUGH = 4 << 20  # more than a pipe holds


@contextmanager
def pipe() -> Iterator[tuple[io.BufferedReader, TextIO]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        yield reader, writer


def test_bytes_pass_as_they_are_and_in_order() -> None:
    with pipe() as (reader, writer):
        with Passing({"stdout": writer}) as passing:
            for piece in (b"\xff\x1b[2J", b"", b"\x00end"):
                passing.take("stdout", piece)
        writer.close()
        assert reader.read() == b"\xff\x1b[2J\x00end"


def test_a_terminal_is_shown_what_it_may_be_and_all_of_it() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        with Passing({"stdout": terminal}) as passing:
            passing.take("stdout", b"a\x1b[2J\xe2\x82")  # the rest of the character never comes
        assert os.read(ours, 100) == b"a\\x1b[2J\\xe2\\x82"
    os.close(ours)


def test_a_reader_that_waits_does_not_hold_up_who_gives() -> None:
    with pipe() as (reader, writer):
        with Passing({"stdout": writer}) as passing:
            passing.take("stdout", b"x" * ENOUGH)
            passing.take("stdout", b"y")
            got: list[bytes] = []
            thread = threading.Thread(target=lambda: got.append(reader.read(ENOUGH + 1)))
            thread.start()
        thread.join(10)
        assert got == [b"x" * ENOUGH + b"y"]


def test_a_pipe_that_would_block_is_waited_for() -> None:
    with pipe() as (reader, writer):
        os.set_blocking(writer.fileno(), False)
        got: list[bytes] = []
        with Passing({"stdout": writer}) as passing:
            passing.take("stdout", b"x" * ENOUGH)
            thread = threading.Thread(target=lambda: got.append(reader.read(ENOUGH)))
            thread.start()
        thread.join(10)
        assert got == [b"x" * ENOUGH]


def test_a_reader_that_has_left_is_told_to_who_gives() -> None:
    with pipe() as (reader, writer):
        reader.close()
        passing = Passing({"stdout": writer})
        passing.take("stdout", b"x")
        with pytest.raises(BrokenPipeError):
            passing.close()
        with pytest.raises(BrokenPipeError):
            passing.take("stdout", b"y")


def test_what_came_before_a_fault_is_passed_on() -> None:
    def fail(writer: TextIO) -> None:
        with Passing({"stdout": writer}) as passing:
            passing.take("stdout", b"said")
            raise ZeroDivisionError

    with pipe() as (reader, writer):
        with pytest.raises(ZeroDivisionError):
            fail(writer)
        writer.close()
        assert reader.read() == b"said"


def test_a_stream_that_is_closed_takes_nothing() -> None:
    with pipe() as (reader, writer):
        with Passing({"stdout": None, "stderr": writer}) as passing:
            passing.take("stdout", b"nowhere")
            passing.take("stderr", b"here")
        writer.close()
        assert reader.read() == b"here"
