"""Is the log whole? Each way to break one, and the line that must be named."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.audit.making import SignedLog, allow, files, forge, rewrite, written
from tidegate.audit import verify as module
from tidegate.audit.event import Head
from tidegate.audit.recorder import Recorder
from tidegate.audit.segment import segment_name
from tidegate.audit.verify import Report, verify
from tidegate.audit.writer import ChainWriter

GATE = "gate-1/000000000000.jsonl"


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0)


def check(log: SignedLog) -> Report:
    return verify(log.directory, log.key.public_key())


def wheres(report: Report) -> list[str]:
    return [problem.where for problem in report.problems]


def test_a_whole_log_is_whole(tmp_path: Path) -> None:
    log = SignedLog(tmp_path, segment_bytes=2500)
    recorder = written(log)
    recorder.close()
    report = check(log)
    assert report.problems == []
    keeper, gate = report.chains
    assert (gate.chain, gate.role, gate.lines, gate.signed) == ("gate-1", "gate", 15, 7)
    assert (keeper.role, keeper.lines, keeper.signed) == ("keeper", 4, 3)


def edit(path: Path) -> None:
    rewrite(path, lambda found: [line.replace(b"/before/2", b"/before/9") for line in found])


def delete(path: Path) -> None:
    rewrite(path, lambda found: found[:3] + found[4:])


def swap(path: Path) -> None:
    rewrite(path, lambda found: [*found[:3], found[4], found[3], *found[5:]])


def repeat(path: Path) -> None:
    rewrite(path, lambda found: [*found[:4], found[3], *found[4:]])


def garble(path: Path) -> None:
    rewrite(path, lambda found: [*found[:3], b"not json", *found[4:]])


def behead(path: Path) -> None:
    rewrite(path, lambda found: found[1:])


def cut_in_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def cut_below_the_signature(path: Path) -> None:
    rewrite(path, lambda found: found[:5])


def forge_after(path: Path) -> None:
    forge(path, b"/before/2", b"/innocent")


def remove_chain(path: Path) -> None:
    shutil.rmtree(path.parent)


def empty_chain(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("attack", "where"),
    [
        pytest.param(edit, f"{GATE}:4", id="edited"),
        pytest.param(delete, f"{GATE}:4", id="taken out"),
        pytest.param(swap, f"{GATE}:4", id="reordered"),
        pytest.param(repeat, f"{GATE}:5", id="repeated"),
        pytest.param(garble, f"{GATE}:4", id="garbled"),
        pytest.param(behead, f"{GATE}:1", id="the beginning is lost"),
        pytest.param(cut_in_a_line, f"{GATE}:14", id="cut in a line"),
        pytest.param(cut_below_the_signature, f"{GATE}:5", id="cut below its last signature"),
        pytest.param(forge_after, f"{GATE}:8", id="rewritten with new hashes"),
        pytest.param(remove_chain, "gate-1/", id="the chain is gone"),
        pytest.param(empty_chain, "gate-1/", id="the chain is emptied"),
    ],
)
def test_V_10_each_change_is_found_and_its_line_named(
    tmp_path: Path, attack: Callable[[Path], None], where: str
) -> None:
    log = SignedLog(tmp_path)
    written(log)
    assert check(log).ok
    attack(tmp_path / GATE)
    assert wheres(check(log)) == [where]


@settings(max_examples=60)
@given(data=st.data())
def test_any_changed_byte_under_a_signature_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = SignedLog(tmp_path_factory.mktemp("log"))
    written(log, requests=3)
    path = log.directory / GATE
    raw = path.read_bytes()
    signed = sum(len(line) + 1 for line in raw.splitlines()[:4])
    at = data.draw(st.integers(0, signed - 1))
    changed = data.draw(st.integers(0, 255).filter(lambda byte: byte != raw[at]))
    path.write_bytes(raw[:at] + bytes([changed]) + raw[at + 1 :])
    assert not check(log).ok


def test_a_lost_segment_is_found(tmp_path: Path) -> None:
    log = SignedLog(tmp_path, segment_bytes=2000)
    written(log)
    lost = files(tmp_path / "gate-1")[1]
    after = files(tmp_path / "gate-1")[2]
    lost.unlink()
    assert wheres(check(log)) == [f"gate-1/{after.name}:1"]


def test_a_renamed_segment_is_found(tmp_path: Path) -> None:
    log = SignedLog(tmp_path, segment_bytes=2000)
    written(log)
    last = files(tmp_path / "gate-1")[-1]
    last.rename(last.with_name(segment_name(900)))
    assert wheres(check(log)) == [f"gate-1/{segment_name(900)}:1"]


def test_a_made_up_chain_is_found(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    written(log)
    stranger = Recorder(ChainWriter(tmp_path, "gate-2", clock=log.clock, fsync="never"))
    report = check(log)  # nothing but a start mark: a writer that died before the keeper knew it
    assert (report.ok, [note.where for note in report.notes]) == (True, ["gate-2/"])
    allow(stranger)
    assert wheres(check(log)) == ["gate-2/"]


def test_a_worker_cannot_pose_as_a_keeper(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    allow(recorder)
    log.seal()
    assert check(log).ok
    forge(tmp_path / GATE, b'"role":"gate"', b'"role":"keeper"')
    assert wheres(check(log)) == [f"{GATE}:1"]


def test_a_booked_head_holds_even_without_a_checkpoint_in_the_chain(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    allow(recorder, path="/before/2")
    log.book("head", recorder.head())
    allow(recorder)
    log.seal()
    assert check(log).ok
    forge(tmp_path / GATE, b"/before/2", b"/innocent")
    (problem,) = check(log).problems
    assert "line 1 of the chain is not the one" in problem.what


@pytest.mark.parametrize("missing", ["all of it", "its signature"])
def test_a_log_without_a_keepers_signed_chain_is_not_whole(tmp_path: Path, missing: str) -> None:
    log = SignedLog(tmp_path)
    written(log)
    keeper = files(tmp_path / "keeper-1")[0]
    if missing == "all of it":
        shutil.rmtree(keeper.parent)
    else:
        rewrite(keeper, lambda found: found[:-1])
    assert not check(log).ok


def test_another_key_verifies_nothing(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    written(log)
    log.key = Ed25519PrivateKey.generate()
    assert not check(log).ok


def test_a_checkpoint_of_another_chain_is_refused(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    head = recorder.head()
    assert recorder.checkpoint(head, log.note(Head("gate-9", head.seq, head.head)))
    assert wheres(check(log)) == [f"{GATE}:15"]


def test_a_piece_told_by_the_next_segment_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    tear(log, recorder, monkeypatch)
    allow(recorder)
    assert check(log).ok
    first, second = files(tmp_path / "gate-1")
    first.write_bytes(first.read_bytes()[:-1])
    assert wheres(check(log)) == [f"{GATE}:15"]
    second.unlink()
    assert wheres(check(log)) == [f"{GATE}:15"]


def test_a_killed_writers_last_piece_is_in_order_once_it_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    tear(log, recorder, monkeypatch)
    assert wheres(check(log)) == [f"{GATE}:15"]
    log.book("dead", recorder.head())
    report = check(log)
    assert (report.ok, [note.where for note in report.notes]) == (True, [f"{GATE}:15"])


def tear(log: SignedLog, recorder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a piece of a line at the end of the gate's chain, as a full append-only file does."""
    import os

    real = os.write

    def short(fd: int, data: bytes) -> int:
        return real(fd, data[:50])

    def refused(fd: int, length: int) -> None:
        raise PermissionError(1, "append only")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        patch.setattr(os, "ftruncate", refused)
        assert allow(recorder) is not None  # type: ignore[arg-type]


def test_a_dead_chain_may_be_missing_only_if_it_never_had_a_line(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    written(log)
    log.book("born", Head("gate-2", -1, "0" * 64))
    assert wheres(check(log)) == ["gate-2/"]
    log.book("dead", Head("gate-2", -1, "0" * 64))
    assert check(log).ok
    log.book("dead", Head("gate-2", 3, "1" * 64))
    assert wheres(check(log)) == ["gate-2/"]


def test_a_keeper_that_came_after_vouches_for_the_one_before(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    written(log)
    old = log.keeper.current()
    log.clock.forward(60)
    log.keeper = ChainWriter(tmp_path, "keeper-2", clock=log.clock, role="keeper", fsync="never")
    log.seal()
    assert wheres(check(log)) == ["keeper-1/"]
    log.book("dead", old)
    assert check(log).ok
    shutil.rmtree(tmp_path / "keeper-1")
    assert "keeper-1/" in wheres(check(log))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_regular_file_holds_no_verification(tmp_path: Path, kind: str) -> None:
    log = SignedLog(tmp_path)
    written(log)
    (tmp_path / "gate-9").mkdir()
    at = tmp_path / "gate-9" / "000000000000.jsonl"
    os.mkfifo(at) if kind == "pipe" else at.symlink_to(files(tmp_path)[0])
    assert f"gate-9/{at.name}" in wheres(check(log))


def test_a_chain_that_no_keeper_announced_is_named_so(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    written(log)
    allow(Recorder(ChainWriter(tmp_path, "gate-0-0123456789ab", fsync="never")))
    (problem,) = check(log).problems
    assert problem.where == "gate-0-0123456789ab/"
    assert problem.what.startswith("unannounced")
