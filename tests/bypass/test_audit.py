"""V-09 to V-12 against the writer itself: a full disk, lost lines, injected text, clocks that jump."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import NoReturn

import pytest

from tests.unit.audit.making import (
    ALICE,
    SignedLog,
    SteppedClock,
    allow,
    conn,
    deny,
    files,
    last_head,
    lines,
    rewrite,
    written,
)
from tidegate.audit.event import Dns, Http
from tidegate.audit.recorder import Recorder
from tidegate.audit.redact import Redactor, loggable
from tidegate.audit.verify import verify
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict

_DISK_BYTES = 256 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk; the RLIMIT_FSIZE tests of the writer cover the rest")
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "audit", str(where)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this kernel or container lets root mount nothing")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(file: RawIOBase) -> NoReturn:
    """Write until the disk refuses."""
    while True:
        file.write(b"x" * 512)


def test_V_09_a_full_disk_denies_keeps_room_for_ends_and_resumes_by_itself(small_disk: Path) -> None:
    log = SignedLog(small_disk)
    recorder = log.gate()
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (_DISK_BYTES // 2))
    answers = []
    while not answers or answers[-1] is None:
        answers.append(allow(recorder, path=f"/{len(answers)}"))
        log.clock.forward(0.1)
        recorder.tick(log.clock.boot())
    assert answers[-1] is Reason.AUDIT_UNAVAILABLE
    assert recorder.problem() is not None
    # The reserve: what began can still end, and an incident can be told.
    recorder.conn_end(ALICE, "c" * 16, conn(), verdict=Verdict.ALLOW)
    recorder.incident(ALICE, "c" * 16, "metadata", reason=Reason.METADATA)
    assert [line["type"] for line in lines(small_disk / "gate-1")][-2:] == ["conn", "incident"]
    # Then not even that: the last piece is full.
    with (small_disk / "more").open("wb", buffering=0) as more, pytest.raises(OSError, match="space"):
        fill(more)
    before = lines(small_disk / "gate-1")
    for _ in range(50):
        recorder.conn_end(ALICE, "c" * 16, conn(), verdict=Verdict.ALLOW)
    assert [allow(recorder) for _ in range(3)] == [Reason.AUDIT_UNAVAILABLE] * 3
    assert all(path.read_bytes().endswith(b"\n") for path in files(small_disk / "gate-1"))
    assert lines(small_disk / "gate-1")[: len(before)] == before
    # Room again.
    (small_disk / "more").unlink()
    ballast.unlink()
    log.clock.forward(1)
    recorder.tick(log.clock.boot())
    assert recorder.problem() is None
    assert allow(recorder) is None
    assert [line for line in lines(small_disk / "gate-1") if line["reason"] == "audit_unavailable"]
    log.checkpoint(recorder)
    log.seal()
    assert verify(small_disk, log.key.public_key()).problems == []


_WRITER = """
import sys
from pathlib import Path
from tests.unit.audit.making import ALICE, allow
from tidegate.audit.recorder import Recorder
from tidegate.audit.writer import ChainWriter
recorder = Recorder(ChainWriter(Path(sys.argv[1]), "gate-9", fsync="never", segment_bytes=20_000))
while allow(recorder) is None:
    print(recorder.head().seq, flush=True)
"""


def test_V_10_a_killed_writer_loses_nothing_that_it_had_answered_for(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    log.book("born", log.keeper.current()._replace(chain="gate-9", seq=-1, head="0" * 64))
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as writer:
        assert writer.stdout is not None
        answered = [int(writer.stdout.readline()) for _ in range(300)][-1]
        writer.kill()
        answered = max([answered, *map(int, writer.stdout.read().split()[:-1])])
    last = last_head(tmp_path / "gate-9")
    assert last.seq >= answered
    log.book("dead", last)
    log.seal()
    assert verify(tmp_path, log.key.public_key()).problems == []


@pytest.mark.parametrize("how", ["copied and emptied", "moved", "deleted"])
def test_V_10_rotation_by_others_leaves_a_mark_that_verify_names(tmp_path: Path, how: str) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    (segment,) = files(tmp_path / "gate-1")
    if how == "copied and emptied":
        os.truncate(segment, 0)
    elif how == "moved":
        segment.rename(segment.with_suffix(".jsonl.1"))
    else:
        segment.unlink()
    recorder.tick(log.clock.boot())
    assert allow(recorder) is None
    report = verify(tmp_path, log.key.public_key())
    (problem,) = report.problems
    assert problem.where.startswith("gate-1/0")
    assert "lines are missing" in problem.what


def test_V_10_the_end_of_a_dead_chain_cannot_be_cut_without_a_mark(tmp_path: Path) -> None:
    log = SignedLog(tmp_path)
    recorder = written(log)
    log.book("dead", recorder.head())
    log.seal()
    assert verify(tmp_path, log.key.public_key()).ok
    rewrite(files(tmp_path / "gate-1")[0], lambda found: found[:-1])
    assert not verify(tmp_path, log.key.public_key()).ok


_HOSTILE = [
    pytest.param(b'x\r\n{"v":1,"verdict":"allow"}\r\n', id="a record of his own"),
    pytest.param(b"\x1b]0;owned\x07\x1b[2J", id="terminal sequences"),
    pytest.param(b"\xff\xfe\x00\x80", id="no utf-8"),
    pytest.param(b'","verdict":"allow","x":"', id="quotes"),
    pytest.param(b"\\u0022,\\", id="backslashes"),
    pytest.param("a\u202egpj.exe\u2028\u2029\x85".encode(), id="bidi and separators"),
    pytest.param(b"a" * 1_000_000, id="a megabyte"),
    pytest.param(b"\x00" * 1_000_000, id="a megabyte of NUL"),
    pytest.param(b'"' * 1_000_000, id="a megabyte of quotes"),
]


@pytest.mark.parametrize("text", _HOSTILE)
def test_V_11_hostile_text_is_one_capped_line_in_every_field(tmp_path: Path, text: bytes) -> None:
    recorder = Recorder(ChainWriter(tmp_path, "gate-1", clock=SteppedClock(), fsync="never"))
    redactor = Redactor(b"key")
    shown = loggable(text)
    request = Http(
        version=shown, method=shown, scheme=shown, host=shown, path=loggable(text, 1024),
        query=redactor.query(text.decode("utf-8", "surrogateescape")), location=redactor.url(text),
    )  # fmt: skip
    deny_ = {"verdict": Verdict.DENY, "reason": Reason.MALFORMED_HOST}
    assert recorder.http_decision(ALICE, "f", request, **deny_) is None  # type: ignore[arg-type]
    assert recorder.conn_decision(ALICE, "f", conn(shown), **deny_) is None  # type: ignore[arg-type]
    assert recorder.event(ALICE, "f", Dns(name=shown, rrtype=shown), **deny_) is None  # type: ignore[arg-type]
    recorder.incident(ALICE, "f", "metadata", host=shown, detail=loggable(text))
    raw = files(tmp_path)[0].read_bytes()
    assert raw.count(b"\n") == 5
    assert len(raw) < 16_000
    for line in raw.decode().splitlines():  # splits at U+2028 and U+0085 as well
        assert line.isprintable()
        assert json.loads(line)["verdict"] != "allow"


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86400.0, -86400.0])
def test_V_12_a_clock_jump_changes_no_limit_and_stands_in_the_log(tmp_path: Path, jump: float) -> None:
    log = SignedLog(tmp_path)
    recorder = log.gate()
    for _ in range(15):
        deny(recorder)
    log.clock.wall_now += jump
    for _ in range(15):
        deny(recorder)
    recorder.tick(log.clock.boot())
    found = [line for line in lines(tmp_path / "gate-1") if line["type"] == "http"]
    assert [line["count"] for line in found] == [None] * 20 + [10]  # one second is one second
    before, after = found[14], found[15]
    assert before["mono_ns"] == after["mono_ns"]
    assert (str(after["ts"]) > str(before["ts"])) is (jump > 0)
    log.checkpoint(recorder)
    assert recorder.checkpoint_due() is None
    log.seal()
    assert verify(tmp_path, log.key.public_key()).ok
