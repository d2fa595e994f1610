import os
import subprocess
import time
from pathlib import Path

from tidegate_launcher.limits.process import kill_all, started_at


def _stat(folder: Path, pid: int, name: str) -> Path:
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S " + " ".join(map(str, range(4, 53))))
    return folder


def test_a_process_began_once() -> None:
    assert started_at(os.getpid()) == started_at(os.getpid())
    assert started_at(os.getpid()) is not None


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    assert started_at(7, _stat(tmp_path, 7, "a) R 1 (b")) == 22


def test_one_that_is_gone_began_never(tmp_path: Path) -> None:
    assert started_at(1, tmp_path) is None


def test_kills_all_and_waits_until_they_are_gone() -> None:
    processes = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    begun = time.monotonic()
    kill_all([process.pid for process in processes], 10)
    assert [process.wait(0) for process in processes] == [-9] * 3
    assert time.monotonic() - begun < 5


def test_one_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    kill_all([process.pid], 1)


def test_waits_no_longer_than_told() -> None:
    begun = time.monotonic()
    kill_all([], 5)
    assert time.monotonic() - begun < 1
