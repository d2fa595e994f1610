"""A program of the machine's: found where Debian has it, asked within a time, and gone with what it started."""

import os
import time
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher import program
from tidegate_launcher.program import asked, find_program, version_of


def test_one_that_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SYSTEM_PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"there is no mke2fs .*install the package e2fsprogs"):
        find_program("mke2fs", package="e2fsprogs")


def test_it_is_not_looked_for_where_the_user_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("sh").startswith(("/usr/bin/", "/bin/"))


def test_code_and_both_streams_are_told_and_the_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert asked(["/bin/sh", "-c", "echo out; echo err$SECRET >&2; pwd; exit 3"], 10) == (3, "out\nerr\n/\n")


def test_what_runs_out_of_time_is_ended_with_what_it_started(tmp_path: Path) -> None:
    begun = time.monotonic()
    code, _ = asked(["/bin/sh", "-c", f"sleep 1000 & echo $! >{tmp_path}/pid; wait"], 0.5)
    assert (code, time.monotonic() - begun < 10) == (None, True)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split():
        assert time.monotonic() < end


def test_one_that_does_not_start_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"none does not start: No such file.*what to do"):
        asked([str(tmp_path / "none")], 1, hint="what to do")


@pytest.mark.parametrize(("code", "said"), [("exit 3", "but ends with 3"), ("sleep 1000", "in time")])
def test_one_that_says_no_version_is_refused(tmp_path: Path, code: str, said: str) -> None:
    path = tmp_path / "odd"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    with pytest.raises(LaunchError, match=f"Odd does not say its version {said}"):
        version_of(str(path), name="Odd", seconds=0.5)
