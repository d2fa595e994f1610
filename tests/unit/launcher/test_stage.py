"""How the script of a place begins."""

import subprocess
from pathlib import Path

from tidegate_launcher.program import find_program
from tidegate_launcher.stage import JOIN, joining


def test_who_is_no_longer_its_launchers_child_does_nothing(tmp_path: Path) -> None:
    """The tie that ends it with its launcher is its own work: a launcher killed before that would leave it waiting."""
    members = tmp_path / "cgroup.procs"
    command = [find_program("sh"), "-c", JOIN + 'echo "$@"', *joining((members,)), "on"]
    adopted = [find_program("sh"), "-c", '"$@"; exit $?', "sh", *command]
    done = subprocess.run(adopted, capture_output=True, timeout=10, check=False)
    assert done.returncode != 0
    assert done.stdout == b""
    assert not members.exists()
    assert subprocess.run(command, capture_output=True, timeout=10, check=True).stdout == b"on\n"
    assert members.exists()
