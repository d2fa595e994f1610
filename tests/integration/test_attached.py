"""What a boundary has started ends with its launcher, also where it has lost its tie to it on its way."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.doors import within
from tests.lab.folder import open_folder
from tests.lab.gate import environment
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.attached import attached
from tidegate_launcher.stage import make_stage

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no sandboxes: {why_no_gvisor()}")

# A launcher whose program becomes another user, by which the kernel forgets whom it was to die with.
_LAUNCHER = """
import sys, time
from pathlib import Path
from tidegate_launcher.attached import attached, grouped
from tidegate_launcher.gvisor.stage import make_stage, place, wrapped
from tidegate_launcher.job import Limits
from tidegate_launcher.limits.hierarchy import find_hierarchy

scratch, mark = Path(sys.argv[1]), sys.argv[2]
(scratch / "root").mkdir()
limits = Limits(seconds=60)
stage = make_stage(scratch)
space = place(stage, scratch / "root", limits, hide=False)
with grouped(limits, find_hierarchy(), extra_bytes=0) as group:
    command = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sleep", mark]
    command = wrapped(stage, space, groups=group.doors(), command=command)
    with attached(command, stage, group, None):
        print("let go", flush=True)
        time.sleep(60)
"""


def _runs(mark: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"/bin/sleep\0{mark}\0".encode():
                return True
    return False


def test_a_launcher_that_is_killed_takes_along_what_has_become_another_users() -> None:
    mark = f"36.{os.getpid()}"
    with open_folder(mode=0o700) as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(folder), mark], stdout=subprocess.PIPE, text=True, env=environment()
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "let go\n"
            assert within(5, lambda: _runs(mark))
            process.kill()
        assert within(5, lambda: not _runs(mark))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", "its end was -9"),
        ("echo why >&2; exit 1", "why"),
        # It says that its place stands, and ends: what is opened there next is not there.
        ("echo ready >ready", "No such file"),
    ],
    ids=["killed", "failed", "ready and gone"],
)
def test_one_that_ends_before_it_is_let_go_is_a_fault_that_says_how(script: str, said: str) -> None:
    with open_folder() as folder:
        stage = make_stage(folder, "lost")
        command = ["/bin/sh", "-c", f"cd {stage.folder}; {script}"]
        with pytest.raises(LaunchError, match=said), attached(command, stage, None, None):
            pass
