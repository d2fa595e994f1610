"""A launcher that a test kills while its sandbox is made, or runs; and what shows that nothing of it is left.

with doomed(root, "gvisor") as launcher:
    assert line(launcher) == b"up\\n"  # its command runs
    launcher.kill()
    assert within(10, lambda: members(launcher.pid) == [])
    assert within(10, swept(launcher.pid)), leftovers(launcher.pid)
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab.box import leftovers
from tests.lab.gate import environment
from tidegate_launcher.boundaries import BoundaryName
from tidegate_launcher.limits.cgroup import sweep_cgroups

__all__ = ["doomed", "held", "line", "members", "swept"]

_LAUNCHER = """
import sys
from pathlib import Path
from tests.lab.box import Box
from tidegate_launcher.boundaries import boundary_of
box = Box(Path(sys.argv[1]), boundary_of(sys.argv[2], unsafe=True))
box.boundary.capabilities()
print("here", flush=True)
box.shell("setsid sleep 600 & echo up; sleep 600", sink=lambda name, data: print(data.decode(), flush=True))
"""


@contextlib.contextmanager
def doomed(root: Path, boundary: BoundaryName) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a launcher about to launch; what it leaves of its scratch goes at the end."""
    command = [sys.executable, "-c", _LAUNCHER, str(root), boundary]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as launcher:
        try:
            assert line(launcher) == b"here\n"
            yield launcher
        finally:
            launcher.kill()
    for path in Path("/tmp").glob(f"tg-scratch-{launcher.pid}-*"):
        shutil.rmtree(path)


def line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line that a process says."""
    assert process.stdout is not None
    return process.stdout.readline()


def members(pid: int) -> list[str]:
    """Return the members of each control group of a launcher's, at any depth, that has some."""
    groups = [path for path in Path("/sys/fs/cgroup").glob("**/tidegate/*") if f"-{pid}-" in path.name]
    return [text for path in groups for door in path.glob("**/cgroup.procs") if (text := door.read_text())]


def swept(pid: int) -> Callable[[], bool]:
    """Return what sweeps, and tells whether nothing of a launcher's is left."""

    def clean() -> bool:
        sweep_cgroups()
        return leftovers(pid) == []

    return clean


def held() -> tuple[int, int, set[str]]:
    """Return what this process holds: descriptors, threads, mounts."""
    threads = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/fd")), threads, set(Path("/proc/self/mountinfo").read_text().splitlines())
