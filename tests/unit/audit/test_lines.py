"""Lines of a file that another one owns: as many as were there, none of them without an end."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.audit import lines as module
from tidegate.audit.lines import LINE_CAP, read_lines
from tidegate.audit.unread import Unreadable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "gate-1").mkdir()
    return tmp_path / "gate-1" / "000000000000.jsonl"


@given(
    st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 100_000).map(bytes)), max_size=6), st.binary(max_size=20)
)
def test_lines_come_as_they_stand(tmp_path_factory: pytest.TempPathFactory, found: list[bytes], rest: bytes) -> None:
    raw = b"".join(line.replace(b"\n", b"") + b"\n" for line in found) + rest.replace(b"\n", b"")
    path = tmp_path_factory.mktemp("gate-1") / "1.jsonl"
    path.write_bytes(raw)
    *whole, cut = raw.split(b"\n")
    expected = [(line, True) for line in whole] + [(cut, False)] * bool(cut)
    assert list(read_lines(path)) == expected
    first = raw.find(b"\n") + 1
    assert list(read_lines(path, first)) == (expected[1:] if first else expected)


def test_a_file_that_grows_as_it_is_read_has_an_end(path: Path) -> None:
    path.write_bytes(b"line\n" * 20_000)
    with path.open("ab") as file:
        seen = 0
        for _ in read_lines(path):
            seen += 1
            file.write(b"more\n")
            file.flush()
    assert seen == 20_000


def test_a_file_that_shrinks_as_it_is_read_ends_there(path: Path) -> None:
    path.write_bytes(b"line\n" * 20_000)
    reading = read_lines(path)
    next(reading)
    os.truncate(path, 3)
    assert 0 < len(list(reading)) < 20_000


def test_a_file_that_is_replaced_as_it_is_read_is_not_read_on(path: Path) -> None:
    path.write_bytes(b"line\n" * 20_000)
    reading = read_lines(path)
    next(reading)
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"lie\n" * 20_000)
    with pytest.raises(Unreadable, match="another file took its place"):
        assert {line for line, _ in reading} == {b"line"}


def test_a_folder_that_becomes_a_link_leads_nowhere(path: Path) -> None:
    path.write_bytes(b"line\n")
    path.parent.rename(path.parent.with_name("aside"))
    path.parent.symlink_to("aside")
    with pytest.raises(Unreadable, match="no folder stands in its place"):
        list(read_lines(path))


def test_a_line_without_an_end_is_cut_at_the_cap(path: Path) -> None:
    path.write_bytes(b"line\n")
    os.truncate(path, 1 << 40)
    first, (rest, whole) = read_lines(path)
    assert (first, len(rest), whole) == ((b"line", True), LINE_CAP, False)


def test_more_than_a_segment_is_left_and_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEGMENT_CAP", 50)
    path.write_bytes(b"line\n" * 20)
    found = []
    with pytest.raises(Unreadable, match="longer than a segment: read up to 50 bytes"):
        found.extend(read_lines(path))
    assert found == [(b"line", True)] * 10


_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()
"""


def test_a_lease_holds_nobody(path: Path) -> None:
    path.write_bytes(b"line\n")
    with subprocess.Popen(
        [sys.executable, "-c", _LEASE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Unreadable, match="a process holds a lease"):
            list(read_lines(path))
        assert holder.stdin is not None
        holder.stdin.close()


@pytest.mark.parametrize("first", [b"line\n" * 100, b"x" * 40_000 + b"\n"], ids=["short lines", "a long line"])
def test_between_two_lines_a_hole_holds_no_memory(path: Path, first: bytes) -> None:
    """A chain waits while others are read, and a file with a hole costs its owner next to nothing."""
    path.write_bytes(first)
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    try:
        waiting = [read_lines(path) for _ in range(20)]
        for one in waiting:
            next(one)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20 * 6000


def test_a_file_of_two_names_is_not_read(path: Path) -> None:
    path.write_bytes(b"line\n")
    path.with_name("000000000001.jsonl").hardlink_to(path)
    with pytest.raises(Unreadable, match="another name"):
        list(read_lines(path))
