import os
import stat
import subprocess
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.gvisor.stage import make_stage, place, wrapped
from tidegate_launcher.job import Limits
from tidegate_launcher.stage import Cue, put


def test_S_06_its_folders_are_ours_alone(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)
    for folder in (stage.folder, stage.state, stage.bundle):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_S_28_a_second_one_in_the_same_scratch_is_an_error(tmp_path: Path) -> None:
    make_stage(tmp_path)
    with pytest.raises(LaunchError, match="File exists"):
        make_stage(tmp_path)


@pytest.mark.parametrize("name", ["a,b", "a:b", "a\\b", 'a"b', "a\nb"])
def test_a_name_that_would_be_read_as_mount_options_is_refused(tmp_path: Path, name: str) -> None:
    odd = tmp_path / name
    odd.mkdir()
    with pytest.raises(LaunchError, match="cannot be mounted"):
        make_stage(odd)
    with pytest.raises(LaunchError, match="cannot be mounted"):
        place(make_stage(tmp_path), odd, Limits(), hide=False)


def test_what_is_started_dies_with_its_starter_and_gets_values_as_arguments(tmp_path: Path) -> None:
    hostile = tmp_path / "$(touch x) ; 'y'"
    hostile.mkdir()
    with place(make_stage(tmp_path), hostile, Limits(), hide=True) as space:
        command = wrapped(make_stage(hostile), space, groups=(Path("/g"),), command=["runsc", "run"])
    assert command[1:4] == ["--pdeathsig", "KILL", "--"]
    script = command[command.index("-c") + 1]
    assert "touch x" not in script
    assert str(hostile / "gvisor") in command
    assert command[-2:] == ["runsc", "run"]


def test_ready_is_heard_and_go_is_given(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)
    cue = Cue(stage)
    script = 'echo ready >"$0/ready"; read -r go <"$0/go"; test "$go" = go'
    with subprocess.Popen(["sh", "-c", script, str(stage.folder)]) as process:
        pidfd = os.pidfd_open(process.pid)
        assert cue.wait(pidfd, 10)
        cue.go()
        assert process.wait(10) == 0
    os.close(pidfd)
    cue.close()


@pytest.mark.parametrize(("script", "seconds"), [("exit 1", 10), ("sleep 30", 0.2)], ids=["ends", "hangs"])
def test_what_never_gets_ready_is_not_waited_for(tmp_path: Path, script: str, seconds: float) -> None:
    cue = Cue(make_stage(tmp_path))
    with subprocess.Popen(["sh", "-c", f"exec {script}" if "sleep" in script else script]) as process:
        pidfd = os.pidfd_open(process.pid)
        assert not cue.wait(pidfd, seconds)
        process.kill()
    os.close(pidfd)
    cue.close()


def test_a_file_that_has_no_room_is_a_fault_of_the_launchs(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no place for a sandbox"):
        put(tmp_path / "no" / "config.json", b"{}")
