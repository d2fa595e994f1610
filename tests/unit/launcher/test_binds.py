"""What of ours may be seen in a sandbox, and where: for whatever boundary."""

import os
import socket
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.binds import bound
from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import DOOR, Bind, Job, Net


def _bound(source: Path, target: str = "/in") -> tuple[tuple[Path, str], ...]:
    job = Job(id="j", argv=("true",), root=Path("/root"), binds=(Bind(source=source, target=target),))
    return bound(job, Ground(scratch=Path("/scratch")))


def _door(net: Net, door: Path | None) -> tuple[tuple[Path, str], ...]:
    return bound(Job(id="j", argv=("true",), root=Path("/root"), net=net), Ground(scratch=Path("/scratch"), door=door))


def test_a_file_and_a_folder_are_bound_where_they_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert _bound(tmp_path / "file", "/etc/hosts") == ((tmp_path / "file", "/etc/hosts"),)
    assert _bound(tmp_path, "/opt/./x/") == ((tmp_path, "/opt/x"),)


@pytest.mark.parametrize("net", ["uds", "none", "veth"])
def test_S_24_the_door_is_bound_with_uds_and_only_then(net: Net) -> None:
    assert _door(net, Path("/door")) == (((Path("/door"), DOOR),) if net == "uds" else ())


def test_without_a_door_uds_is_refused() -> None:
    with pytest.raises(LaunchError, match="no socket was made for this sandbox"):
        _door("uds", None)


def test_S_01_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        for source in (tmp_path / "docker.sock", tmp_path):
            with pytest.raises(LaunchError, match=r"socket|regular"):
                _bound(source)


def test_S_01_a_pipe_deep_inside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    with pytest.raises(LaunchError, match="pipe"):
        _bound(tmp_path)


def test_S_08_a_link_as_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(LaunchError, match="only a regular file or a folder"):
        _bound(tmp_path / "link")


def test_a_link_inside_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/run/host.sock")
    assert _bound(tmp_path) == ((tmp_path, "/in"),)


@pytest.mark.parametrize("source", ["/nowhere/at/all", "relative", "/dev/null"])
def test_what_is_no_file_or_folder_is_refused(source: str) -> None:
    with pytest.raises(LaunchError, match=r"only a regular file|a path from /"):
        _bound(Path(source))


@pytest.mark.parametrize(
    "target",
    ["/", "//", "/proc", "/proc/sys", "//proc/x", "/sys/x", "/dev", "/dev/shm", "/dev/x", "/tmp", "//tmp", "/tmp/",
     "/work", "/run", "/run/tidegate", "/./work", "relative", "", "/in/../work", "/opt/../proc"],
)  # fmt: skip
def test_a_target_that_would_hide_the_sandboxs_own_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(LaunchError, match=r"would hide|a path inside"):
        _bound(tmp_path, target)


@pytest.mark.parametrize("target", ["/work/in", "/tidegate", "/etc/hosts", "/run/other"])
def test_any_other_target_is_taken(tmp_path: Path, target: str) -> None:
    assert _bound(tmp_path, target) == ((tmp_path, target),)
