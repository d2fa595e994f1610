"""`tidegate run` as a process of its own, beside a gate that has an image.

with gate(config) as running:
    tool = Launching(running)
    tool.import_root()
    done = tool.run("python3", "-c", "print(1)", options=["--policy", "default"])
    told = tool.told("true")                    # with -o json
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab.gate import Gate, environment, tidegate_command
from tests.lab.roots import root_archive

__all__ = ["Launching", "left_by"]

PLACE = Path("/run/tidegate-launch")


class Launching:
    """Starts launches at one gate; each may take its `timeout` of seconds."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.environment = environment({"TIDEGATE_CONFIG": str(gate.config_file)})

    def import_root(self) -> None:
        """Import the lab's root as the image that is run in by default."""
        self.gate.cli("image", "import", str(root_archive()), "--name", "minimal", timeout=120)

    def run(
        self, *argv: str, options: Sequence[str] = (), stdin: bytes = b"", timeout: float = 60, **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end; `more` is added to our own environment."""
        return subprocess.run(
            self.command(*argv, options=options), env=self.environment | more, cwd=self.gate.folder, input=stdin,
            capture_output=True, timeout=timeout, check=False,
        )  # fmt: skip

    def told(self, *argv: str, options: Sequence[str] = (), code: int = 0, **more: Any) -> dict[str, Any]:
        """Run a command with -o json, and return the object; `code` is our own exit code."""
        done = self.run(*argv, options=["-o", "json", *options], **more)
        assert done.returncode == code, done.stderr.decode()
        return dict(json.loads(done.stdout))

    @contextlib.contextmanager
    def started(self, *argv: str, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command with pipes around it; it is killed at the end of the block."""
        process = subprocess.Popen(
            self.command(*argv, options=options), env=self.environment, cwd=self.gate.folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            try:
                yield process
            finally:
                process.kill()

    def command(self, *argv: str, options: Sequence[str] = ()) -> list[str]:
        """Return the argument list of a launch."""
        return tidegate_command("run", *options, "--", *argv)


def left_by(pids: set[int]) -> list[str]:
    """Return what launchers of these numbers have left on this machine: folders, mounts, groups, processes."""

    def theirs(name: str) -> bool:
        return any(f"-{pid}-" in name for pid in pids)

    folders = [str(path) for path in PLACE.glob("*") if theirs(path.name)]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/tidegate/*-*-*-*") if theirs(path.name)]
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(PLACE) in line and theirs(line)
    ]
    return folders + groups + mounts + [words for words in _commands() if str(PLACE) in words and theirs(words)]


def _commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield f"{path.name}: {os.fsdecode((path / 'cmdline').read_bytes())}"
