"""What is made of the shim's own word."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate_launcher.net.shimmed import INSIDE, fault_of, shim_bind, shimmed


def test_the_command_follows_the_shim_and_keeps_its_words() -> None:
    argv = shimmed(("sh", "-c", "exit 3", "--told", "x"))
    assert argv[:3] == ("python3", "-I", INSIDE)
    assert argv[argv.index("--") + 1 :] == ("sh", "-c", "exit 3", "--told", "x")


def test_the_bind_is_a_copy_of_one_file_that_needs_nothing_of_ours(tmp_path: Path) -> None:
    source = shim_bind(tmp_path).source
    assert source.parent == tmp_path
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(source), "--help"], capture_output=True, cwd="/", timeout=20, check=False
    )
    assert done.returncode == 0
    assert not source.is_symlink()


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (b"serving 8080\nended 7\n", ""),
        (b"serving 8080\n", "the shim was ended"),
        (b"failed no door\n", "the shim failed: no door"),
        (b"serving 8080\nfailed fell\n", "the shim failed: fell"),
        (b"", "did not start"),
        (None, "did not start"),
        (b"\xff\n", "the shim was ended"),
    ],
    ids=["ended", "killed", "no-start", "fell", "empty", "absent", "noise"],
)
def test_its_end_is_told_from_the_commands(told: bytes | None, fault: str) -> None:
    assert (fault in fault_of(told)) if fault else fault_of(told) == ""
