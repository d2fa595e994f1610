"""Folders of launches: gone with their launch, or with the next when their launcher was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.limits.process import started_at
from tidegate_launcher.place import LaunchPlace

ONE = "0" * 32


def name(*, space: int | None = None, pid: int, born: int, one: str = ONE) -> str:
    space = Path("/proc/self/ns/pid").stat().st_ino if space is None else space
    return f"{space}-{pid}-{born}-{one}"


def test_a_folder_is_ours_alone_and_goes_with_what_is_in_it(tmp_path: Path) -> None:
    place = tmp_path / "run" / "launch"
    with LaunchPlace(place).folder(ONE) as folder:
        assert folder.stat().st_mode & 0o777 == place.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("x")
    assert list(place.iterdir()) == []


def test_a_folder_goes_with_a_launch_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LaunchPlace(tmp_path / "p").folder(ONE):
        raise ZeroDivisionError
    assert list((tmp_path / "p").iterdir()) == []


def test_S_28_a_second_launch_of_one_name_is_an_error(tmp_path: Path) -> None:
    place = LaunchPlace(tmp_path / "p")
    with place.folder(ONE), pytest.raises(LaunchError, match="has no folder"), place.folder(ONE):
        pass


@pytest.mark.parametrize("how", ["open to others", "a link"])
def test_a_place_that_others_have_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "p"
    if how == "a link":
        (tmp_path / "real").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "real")
    else:
        path.mkdir()
        path.chmod(0o755)
    with pytest.raises(LaunchError, match="not ours alone"), LaunchPlace(path).folder(ONE):
        pass


def test_a_folder_that_stays_is_told(tmp_path: Path) -> None:
    def nothing_is_removed(path: Path, **_: object) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.rmtree", nothing_is_removed)
        with pytest.raises(LaunchError, match="stays"), LaunchPlace(tmp_path).folder(ONE):
            pass
        gone = subprocess.Popen(["true"])
        gone.wait()
        (tmp_path / name(pid=gone.pid, born=1)).mkdir()
        assert LaunchPlace(tmp_path).sweep() == []


def test_a_sweep_takes_what_the_dead_have_left_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    born = started_at(ended.pid)
    ended.wait()
    assert born is not None
    pid, now = os.getpid(), started_at(os.getpid())
    assert now is not None
    dead = [name(pid=ended.pid, born=born), name(pid=pid, born=now - 1)]  # the second: our number, before us
    kept = [name(pid=pid, born=now), "a-b-c-d", name(pid=1, born=0, one="x")]
    for each in (*dead, *kept):
        (tmp_path / each / "boundary").mkdir(parents=True)
    assert LaunchPlace(tmp_path).sweep() == sorted(dead)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)


def test_a_place_that_is_not_there_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert LaunchPlace(tmp_path / "none").sweep() == []


_OF_USER = """
import os
from tidegate.errors import LaunchError
from tidegate_launcher.place import LaunchPlace
os.setuid(65534)
try:
    print(LaunchPlace.of_this_user()._path)
except LaunchError as fault:
    print(fault)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("runtime", "said"),
    [("/run/user/9", "/run/user/9/tidegate-launch"), ("relative", "XDG_RUNTIME_DIR"), ("", "XDG_RUNTIME_DIR")],
)
def test_a_user_has_a_place_of_its_own_or_is_told_what_to_set(runtime: str, said: str) -> None:
    environ = {**os.environ, "XDG_RUNTIME_DIR": runtime}
    command = [sys.executable, "-c", _OF_USER]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert said in done.stdout, done.stderr
