"""How a sandbox of gVisor ends, and what refuses to begin: a runsc that hangs or lies, a launcher that dies."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.box import Box, leftovers
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.gvisor.driver import run_sandbox
from tidegate_launcher.gvisor.runsc import Runtime
from tidegate_launcher.limits.cgroup import Cgroup, sweep_cgroups
from tidegate_launcher.result import Outcome, Result

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root)


def _stub(folder: Path, script: str) -> Runtime:
    """Return a runsc of the test's own."""
    program = folder / "runsc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Runtime(path=program, release=20240729, sha256="", platform="systrap", hide_sysctl=False)


def _run(box: Box, runtime: Runtime, seconds: float = 1) -> Result:
    with box.scratch() as scratch:
        result = run_sandbox(runtime, box.job("true", limits={"seconds": seconds}), Ground(scratch=scratch))
        assert list(scratch.iterdir()) == []
    return result


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("exec sleep 1000", id="sleeps"),
        pytest.param("trap '' TERM INT HUP; while :; do sleep 1000; done", id="deaf"),
        pytest.param("sleep 1000 & sleep 1000 & setsid sleep 1000 & wait", id="with-children"),
        pytest.param("kill -STOP $$", id="stopped"),
        pytest.param("(sleep 1000 &) ; exec setsid -f sleep 1000", id="leaves-children-with-the-pipes"),
    ],
)
def test_a_runsc_that_hangs_for_good_does_not_hang_us(box: Box, tmp_path: Path, script: str) -> None:
    begun = time.monotonic()
    result = _run(box, _stub(tmp_path, script))
    assert time.monotonic() - begun < 8
    assert result.outcome in (Outcome.TIMEOUT, Outcome.EXITED)
    assert leftovers() == []


_SAY = "for a; do case $a in {option}=*) echo '{text}' >${{a#*=}};; esac; done; exit {code}"


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (_SAY.format(option="--log", text='{"level":"error","msg":"no such platform"}', code=128), "no such platform"),
        (_SAY.format(option="--panic-log", text="panic: boom", code=2), "boom"),
    ],
    ids=["says why", "falls"],
)
def test_a_runsc_that_fails_is_a_launch_error(box: Box, tmp_path: Path, script: str, detail: str) -> None:
    result = _run(box, _stub(tmp_path, script))
    assert (result.outcome, result.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert detail in result.detail


def test_S_15_more_tasks_than_the_host_allows_are_told(box: Box, tmp_path: Path) -> None:
    runtime = _stub(tmp_path, "i=0; while [ $i -lt 1000 ]; do sleep 100 & i=$((i+1)); done; wait")
    with box.scratch() as scratch:
        result = run_sandbox(runtime, box.job("true", limits={"pids": 8}), Ground(scratch=scratch))
    assert result.outcome is Outcome.PIDS
    assert result.counters.pids_refused > 0
    assert leftovers() == []


def test_S_11_a_runsc_that_cannot_be_started_is_a_launch_error_and_no_other_is_tried(box: Box, tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_bytes(b"\x7fELF, but not really")
    program.chmod(0o755)
    result = _run(box, Runtime(path=program, release=20240729, sha256="", platform="systrap", hide_sysctl=False))
    assert result.outcome in (Outcome.LAUNCH_ERROR, Outcome.EXITED)
    assert result.exit_code != 0


def test_a_root_that_is_not_there_refuses_the_launch(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no such root"):
        Box(tmp_path / "none").run("true")
    assert leftovers() == []


def test_a_place_that_cannot_be_made_refuses_the_launch_and_says_why(box: Box, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"place was not made: .*mount"):
        Box(Path("/proc/self")).run("true")
    assert leftovers() == []


def test_S_16_a_sandbox_outside_of_its_group_is_not_let_go(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "started"
    monkeypatch.setattr(Cgroup, "doors", lambda self: ())
    with pytest.raises(LaunchError, match="not in its memory group"):
        _run(box, _stub(tmp_path, f"touch {mark}"))
    assert not mark.exists()


def test_S_28_two_launches_in_one_scratch_are_an_error(box: Box) -> None:
    with box.scratch() as scratch:
        (scratch / "gvisor").mkdir()
        with pytest.raises(LaunchError, match="File exists"):
            box.boundary.run(box.job("true"), Ground(scratch=scratch))


def test_many_at_once_do_not_disturb_each_other(box: Box) -> None:
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda number: box.shell(f"echo {number}; exit {number}"), range(12)))
    assert [(result.untrusted_stdout, result.exit_code) for result in results] == [
        (f"{number}\n".encode(), number) for number in range(12)
    ]
    assert leftovers() == []


def test_an_error_of_the_callers_own_leaves_nothing(box: Box) -> None:
    def sink(_name: str, _data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        box.shell("echo x; sleep 60", sink=sink)
    assert leftovers() == []


_LAUNCHER = """
import sys, tempfile
from pathlib import Path
from tests.lab.box import Box
Box(Path(sys.argv[1])).shell("echo up; sleep 600", sink=lambda name, data: print(data.decode(), flush=True))
"""


def test_S_19_a_launcher_that_is_killed_takes_its_sandbox_with_it(box: Box) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", _LAUNCHER, str(box.root)], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"up\n"
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(10)
    # The kernel kills; what is left is a folder of the group, empty, which the next launcher takes away.
    assert _until_empty(launcher.pid)
    assert any(f"-{launcher.pid}-" in name for name in sweep_cgroups())
    assert leftovers(launcher.pid) == []


def test_S_19_a_sweep_leaves_the_groups_of_the_living(box: Box) -> None:
    group = Cgroup.create(box.job("true").limits)
    try:
        assert group.name not in sweep_cgroups()
        assert group.members() == set()
        assert all(door.exists() for door in group.doors())
    finally:
        assert group.remove()


def test_S_11_without_runsc_nothing_else_is_taken(box: Box, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with pytest.raises(LaunchError, match="no runsc"):
        GVisor(environ).capabilities()


def _until_empty(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        groups = {path for path in Path("/sys/fs/cgroup").glob("**/tidegate/*") if f"-{pid}-" in path.name}
        if groups and not any((path / "cgroup.procs").read_text() for path in groups):
            return True
        os.sched_yield()
    return False
