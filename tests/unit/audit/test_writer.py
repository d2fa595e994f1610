"""The chain on disk."""

import hashlib
import json
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.clock import SteppedClock
from tests.unit.audit.making import common, files, http, lines
from tidegate.audit.writer import GENESIS, ChainWriter, Fsync
from tidegate.errors import AuditError


def make(directory: Path, **more: object) -> ChainWriter:
    return ChainWriter(directory, "gate-1", clock=SteppedClock(), fsync="never", **more)  # type: ignore[arg-type]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow past `size`: what a full disk looks like to a writer, root or not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_until(true: Callable[[], object]) -> None:
    """Ask again until it is so, at most five seconds (a thread of the writer's must get its turn)."""
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        os.sched_yield()


def no_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that was written be taken back, as on a file that is append-only."""

    def refused(fd: int, length: int) -> None:
        raise PermissionError(1, "append only")

    monkeypatch.setattr(os, "ftruncate", refused)


def check_chain(directory: Path) -> None:
    """Every line is JSON and follows from the one before."""
    prev, seq = GENESIS, 0
    for path in files(directory):
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            assert (record["seq"], record["prev"]) == (seq, prev)
            prev, seq = hashlib.sha256(line).hexdigest(), seq + 1


def test_V_10_a_chain_begins_with_a_start_mark_and_hangs_together(tmp_path: Path) -> None:
    writer = make(tmp_path)
    for _ in range(5):
        writer.append(common(), http())
    writer.close()
    found = lines(tmp_path)
    assert [line["seq"] for line in found] == list(range(7))
    assert (found[0]["writer"], found[-1]["writer"]) != (None, None)
    assert [found[0]["writer"]["act"], found[-1]["writer"]["act"]] == ["start", "stop"]  # type: ignore[index]
    assert found[0]["prev"] == GENESIS
    check_chain(tmp_path)


def test_a_line_has_the_common_part_then_its_block(tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.append(common(), http(path="/x", status=200))
    line = lines(tmp_path)[1]
    assert list(line) == [
        "v", "ts", "mono_ns", "chain", "seq", "prev", "session", "owner", "call", "flow", "parent", "type", "phase",
        "verdict", "reason", "rule", "policy_hash", "observed", "count", "first", "last", "http",
    ]  # fmt: skip
    assert line["ts"] == "2030-01-02T03:04:05.000000Z"
    assert line["reason"] is None
    assert line["http"]["bytes_up"] is None  # type: ignore[index]


def test_V_12_both_clocks_stand_in_each_line(tmp_path: Path) -> None:
    clock = SteppedClock()
    writer = ChainWriter(tmp_path, "gate-1", clock=clock, fsync="never")
    for step in (3600.0, -86400.0, 0.25):
        clock.wall_now += step
        clock.boot_now += 1
        writer.append(common(), http())
    found = lines(tmp_path)[1:]
    assert [line["ts"] for line in found] == [
        "2030-01-02T04:04:05.000000Z", "2030-01-01T04:04:05.000000Z", "2030-01-01T04:04:05.250000Z",
    ]  # fmt: skip
    assert [line["mono_ns"] for line in found] == [1001 * 10**9, 1002 * 10**9, 1003 * 10**9]
    check_chain(tmp_path)


def test_V_10_rotation_loses_nothing_and_names_each_file_by_its_first_line(tmp_path: Path) -> None:
    writer = make(tmp_path, segment_bytes=2000)
    for _ in range(12):
        writer.append(common(), http())
    assert len(files(tmp_path)) > 3
    for path in files(tmp_path):
        assert json.loads(path.read_bytes().splitlines()[0])["seq"] == int(path.stem)
    check_chain(tmp_path)


def test_nothing_is_continued(tmp_path: Path) -> None:
    make(tmp_path).close()
    with pytest.raises(AuditError, match="exists"):
        make(tmp_path)


@pytest.mark.parametrize("chain", ["../x", "a/b", "", ".hidden", "a\nb", "x" * 97, "keeper-1"])
def test_a_chain_name_cannot_lead_elsewhere_nor_pose_as_a_keepers(tmp_path: Path, chain: str) -> None:
    with pytest.raises(AuditError, match="name"):
        ChainWriter(tmp_path, chain)


def test_a_link_in_the_place_of_a_segment_is_not_followed(tmp_path: Path) -> None:
    writer = make(tmp_path, segment_bytes=1)
    target = tmp_path / "target"
    (tmp_path / "gate-1" / "000000000001.jsonl").symlink_to(target)
    writer.append(common(), http())
    assert not target.exists()


def test_files_are_not_for_everybody(tmp_path: Path) -> None:
    make(tmp_path)
    assert not stat.S_IMODE(files(tmp_path)[0].stat().st_mode) & 0o007
    assert not stat.S_IMODE((tmp_path / "gate-1").stat().st_mode) & 0o007


def test_V_09_a_short_write_is_taken_back_and_writing_resumes(tmp_path: Path) -> None:
    writer = make(tmp_path)
    size = files(tmp_path)[0].stat().st_size
    for room in (0, 1, 300):
        with file_size_limit(size + room), pytest.raises(AuditError):
            writer.append(common(), http())
        assert files(tmp_path)[0].stat().st_size == size
        assert writer.problem() is not None
    assert writer.append(common(), http()) == 1
    assert writer.problem() is None
    check_chain(tmp_path)


def test_V_09_a_cut_line_that_cannot_be_taken_back_is_told_by_the_next_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(tmp_path)
    no_truncation(monkeypatch)
    size = files(tmp_path)[0].stat().st_size
    with file_size_limit(size + 100), pytest.raises(AuditError):
        writer.append(common(), http())
    assert writer.append(common(), http()) == 2
    first, second = files(tmp_path)
    piece = first.read_bytes()[size:]
    mark = json.loads(second.read_bytes().splitlines()[0])["writer"]
    assert (mark["act"], mark["torn_bytes"]) == ("torn", 100)
    assert mark["torn_sha256"] == hashlib.sha256(piece).hexdigest()


def test_V_09_a_write_that_ends_with_a_line_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    model = make(whole)
    before = files(whole)[0].stat().st_size
    model.append(common(), http())
    line = files(whole)[0].stat().st_size - before
    (tmp_path / "tried").mkdir()
    writer = make(tmp_path / "tried")
    no_truncation(monkeypatch)
    with file_size_limit(files(tmp_path / "tried")[0].stat().st_size + line), pytest.raises(AuditError):
        writer.append_all([(common(), http())] * 2)
    assert writer.append(common(), http()) == 2
    check_chain(tmp_path / "tried")
    assert not any(b'"act":"torn"' in path.read_bytes() for path in files(tmp_path / "tried"))


@pytest.mark.parametrize("room", [100, 900, 1500], ids=["in-the-first", "in-the-second", "in-the-third"])
def test_V_09_of_lines_written_together_all_stand_or_none(tmp_path: Path, room: int) -> None:
    writer = make(tmp_path)
    size = files(tmp_path)[0].stat().st_size
    with file_size_limit(size + room), pytest.raises(AuditError):
        writer.append_all([(common(), http())] * 3)
    assert files(tmp_path)[0].stat().st_size == size
    assert writer.append_all([(common(), http())] * 3) == 3
    assert writer.last_bytes == files(tmp_path)[0].stat().st_size - size
    check_chain(tmp_path)


def test_V_09_of_lines_that_cannot_be_taken_back_the_whole_ones_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(tmp_path)
    no_truncation(monkeypatch)
    size = files(tmp_path)[0].stat().st_size
    with file_size_limit(size + 900), pytest.raises(AuditError):
        writer.append_all([(common(), http())] * 3)
    first = files(tmp_path)[0].read_bytes()[size:]
    standing, _, cut = first.rpartition(b"\n")
    assert standing
    assert cut
    assert b"\n" not in standing
    assert writer.append(common(), http()) == 3  # after the line that stands and the mark
    mark = json.loads(files(tmp_path)[1].read_bytes().splitlines()[0])
    assert (mark["seq"], mark["prev"]) == (2, hashlib.sha256(standing).hexdigest())
    assert mark["writer"]["torn_sha256"] == hashlib.sha256(cut).hexdigest()


def test_a_second_file_for_one_first_line_gets_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(tmp_path, segment_bytes=1)
    no_truncation(monkeypatch)
    with file_size_limit(100), pytest.raises(AuditError):
        writer.append(common(), http())  # a new segment that holds nothing but a piece
    writer.append(common(), http())
    assert "000000000001-r1.jsonl" in {path.name for path in files(tmp_path)}


def test_V_09_a_directory_that_is_gone_denies_and_writing_resumes_when_it_is_back(tmp_path: Path) -> None:
    writer = make(tmp_path, segment_bytes=1)
    chain = tmp_path / "gate-1"
    chain.rename(tmp_path / "elsewhere")
    with pytest.raises(AuditError):
        writer.append(common(), http())
    with pytest.raises(AuditError):
        writer.append(common(), http(), keep=True)
    (tmp_path / "elsewhere").rename(chain)
    assert writer.append(common(), http()) == 1
    check_chain(tmp_path)


def test_V_09_no_audit_directory_no_start(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no audit directory"):
        make(tmp_path / "missing")


def test_V_10_a_file_moved_away_is_not_written_any_more(tmp_path: Path) -> None:
    writer = make(tmp_path)
    old = files(tmp_path)[0]
    old.rename(tmp_path / "taken")
    writer.maintain()
    writer.append(common(), http())
    assert [line["seq"] for line in lines(tmp_path)] == [1]


def test_the_room_is_kept_for_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make(tmp_path)
    real = os.statvfs(tmp_path)
    nearly_full = os.statvfs_result((*real[:3], 1, 1, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: nearly_full)
    writer.maintain()
    with pytest.raises(AuditError, match="reserve"):
        writer.append(common(), http())
    assert writer.append(common(), http(), keep=True) == 1
    monkeypatch.undo()
    assert writer.append(common(), http()) == 2


def test_V_03_a_sync_without_a_descriptor_left_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ChainWriter(tmp_path, "gate-1", clock=SteppedClock(), fsync="interval")

    def none_left(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    writer.maintain()
    assert writer.problem() == "sync failed: Too many open files"
    monkeypatch.undo()
    wait_until(lambda: writer.maintain() or writer.problem() is None)
    assert writer.append(common(), http())
    writer.close()


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_a_failed_sync_denies_until_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync) -> None:
    writer = ChainWriter(tmp_path, "gate-1", clock=SteppedClock(), fsync=fsync)
    synced = threading.Event()

    def broken(fd: int) -> None:
        synced.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    if fsync == "interval":
        writer.maintain()
        assert synced.wait(5)
        wait_until(lambda: writer.maintain() or writer.problem() is not None)
    with pytest.raises(AuditError):
        writer.append(common(), http())
    with pytest.raises(AuditError):
        writer.append(common(), http())
    assert writer.problem() is not None
    monkeypatch.undo()
    if fsync == "interval":
        wait_until(lambda: writer.maintain() or writer.problem() is None)
    assert writer.append(common(), http())
    assert writer.problem() is None
    check_chain(tmp_path)
    writer.close()


@pytest.mark.parametrize(("lines_written", "seconds", "due"), [(1, 0, False), (3, 0, True), (1, 10, True)])
def test_a_checkpoint_is_due_by_lines_or_by_time(tmp_path: Path, lines_written: int, seconds: int, due: bool) -> None:
    clock = SteppedClock()
    writer = ChainWriter(tmp_path, "gate-1", clock=clock, fsync="never", checkpoint_events=4, checkpoint_seconds=10)
    for _ in range(lines_written):
        writer.append(common(), http())
    clock.forward(seconds)
    assert (writer.checkpoint_due() == writer.current()) is due


def test_an_idle_chain_asks_for_no_checkpoint(tmp_path: Path) -> None:
    clock = SteppedClock()
    writer = ChainWriter(tmp_path, "gate-1", clock=clock, fsync="never")
    clock.forward(11)
    head = writer.checkpoint_due()
    assert head is not None
    writer.append(common("checkpoint"), http(), keep=True)
    writer.signed(head.seq)
    clock.forward(3600)
    assert writer.checkpoint_due() is None
    writer.append(common(), http())
    clock.forward(11)
    assert writer.checkpoint_due() is not None
