"""What may be mounted in a sandbox of bubblewrap's, and where."""

import socket
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.bubblewrap.boundary import parse_version
from tidegate_launcher.bubblewrap.place import bound
from tidegate_launcher.job import DOOR, Bind, Job, Net


def _job(root: Path, *binds: Bind, net: Net = "none") -> Job:
    return Job(id="test", argv=("true",), root=root, binds=binds, net=net)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    return tmp_path / "root"


def test_a_file_and_a_folder_are_bound_where_they_were_asked_for(root: Path, tmp_path: Path) -> None:
    binds = (Bind(source=tmp_path / "file", target="/etc/hosts"), Bind(source=tmp_path, target="/opt/x/../y"))
    pairs = bound(_job(root, *binds), Ground(scratch=tmp_path))
    assert pairs == ((tmp_path / "file", "/etc/hosts"), (tmp_path, "/opt/y"))


def test_the_door_is_a_folder_of_the_ground(root: Path, tmp_path: Path) -> None:
    assert bound(_job(root, net="uds"), Ground(scratch=tmp_path, door=tmp_path)) == ((tmp_path, DOOR),)
    with pytest.raises(LaunchError, match="no socket was made"):
        bound(_job(root, net="uds"), Ground(scratch=tmp_path))


@pytest.mark.parametrize(
    "target", ["/", "/work", "/tmp", "/proc/x", "/dev/shm", "relative", "/opt/../proc", "//proc/x"],
    ids=["root", "work", "tmp", "proc", "shm", "relative", "dots", "two-slashes"],
)  # fmt: skip
def test_a_bind_hides_no_part_of_the_sandbox(root: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(LaunchError, match="hide a part"):
        bound(_job(root, Bind(source=tmp_path / "file", target=target)), Ground(scratch=tmp_path))


@pytest.mark.parametrize("kind", ["link", "socket", "absent"])
def test_only_files_and_folders_are_bound(root: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(LaunchError, match="only a regular file or a folder"):
            bound(_job(root, Bind(source=tmp_path / kind, target="/opt/x")), Ground(scratch=tmp_path))


@pytest.mark.parametrize(("link", "target"), [("work", ""), ("opt", "/opt/x")], ids=["of-ours", "of-a-bind"])
def test_a_point_that_a_link_of_the_root_leads_away_from_is_refused(
    root: Path, tmp_path: Path, link: str, target: str
) -> None:
    (root / link).symlink_to("/etc")
    binds = (Bind(source=tmp_path / "file", target=target),) if target else ()
    with pytest.raises(LaunchError, match="follow a link"):
        bound(_job(root, *binds), Ground(scratch=tmp_path))


def test_a_version_is_read_and_nothing_else_is_taken_for_one() -> None:
    assert parse_version("bubblewrap 0.11.0\n") == (0, 11)
    with pytest.raises(LaunchError, match="no version"):
        parse_version("bwrap: what?")
