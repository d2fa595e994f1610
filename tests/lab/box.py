"""A sandbox for tests: a job with what most of them want, and what a process' sandboxes have left on the machine."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.result import Result

__all__ = ["PATH", "Box", "leftovers"]

PATH = ("PATH", "/usr/bin:/bin")


@dataclasses.dataclass(frozen=True)
class Box:
    """Runs commands, each in a sandbox of its own."""

    root: Path
    boundary: GVisor = dataclasses.field(default_factory=GVisor)

    def run(self, *argv: str, **more: Any) -> Result:
        """Run a command; `limits` are as `Limits` takes them, the rest is the job's, the ground's or the run's."""
        run = {key: more.pop(key) for key in ("stdin", "sink", "collect", "cancel") if key in more}
        ground = {key: more.pop(key) for key in ("namespace", "door") if key in more}
        with self.scratch() as scratch:
            job = self.job(*argv, **more)
            result = self.boundary.run(job, Ground(scratch=scratch, **ground), **run)
            assert list(scratch.iterdir()) == []
        return result

    def python(self, code: str, **more: Any) -> Result:
        """Run a program of Python's."""
        return self.run("python3", "-c", code, **more)

    def shell(self, code: str, **more: Any) -> Result:
        """Run a program of the shell's."""
        return self.run("sh", "-c", code, **more)

    def job(self, *argv: str, limits: dict[str, Any] | None = None, **more: Any) -> Job:
        """Return a job in this root."""
        environment: Sequence[tuple[str, str]] = more.pop("environment", ())
        return Job(
            id="test",
            argv=argv,
            root=self.root,
            environment=(PATH, *environment),
            limits=Limits(**{"seconds": 20, **(limits or {})}),
            **more,
        )

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder for one launch."""
        with tempfile.TemporaryDirectory(prefix=f"tg-scratch-{os.getpid()}-", dir="/tmp") as folder:
            yield Path(folder)


def leftovers(pid: int | None = None) -> list[str]:
    """Return what the sandboxes of a process (this one) have left: groups, mounts, processes that name its folders."""
    owner = pid or os.getpid()
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/tidegate/*-*-*-*") if f"-{owner}-" in path.name]
    folder = f"/tg-scratch-{owner}-"
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder in line]
    return groups + mounts + list(_processes(folder.encode()))


def _processes(folder: bytes) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if folder in command:
                yield f"{path.name}: {command.decode('utf-8', 'replace')}"
