"""A root as a disk: made once by the real mke2fs, beside the root, whole or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.microvm import disk
from tidegate_launcher.microvm.disk import open_disk

pytestmark = pytest.mark.skipif(shutil.which("debugfs", path="/usr/sbin:/sbin") is None, reason="no e2fsprogs here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "name").write_text("one")
    (tmp_path / "root" / "link").symlink_to("etc/name")
    return tmp_path / "root"


def _said(root: Path, question: str) -> str:
    """Return what debugfs, which mounts nothing, says of the disk."""
    os.close(open_disk(root))
    image = next(root.parent.glob("*.ext4"))
    command = ["debugfs", "-R", question, str(image)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/sbin:/sbin"}).stdout


def _inode(root: Path) -> int:
    found = open_disk(root)
    try:
        return os.fstat(found).st_ino
    finally:
        os.close(found)


def test_it_holds_what_the_root_holds(root: Path) -> None:
    assert _said(root, "cat /etc/name") == "one"
    assert 'link dest: "etc/name"' in _said(root, "stat /link")


def test_it_is_made_once_and_by_its_owner_alone(root: Path) -> None:
    first = _inode(root)
    assert _inode(root) == first
    image = next(root.parent.glob("*.ext4"))
    assert image.stat().st_mode & 0o777 == 0o600
    image.chmod(0o666)
    assert _inode(root) != first


def test_a_root_of_another_time_makes_it_anew(root: Path) -> None:
    first = _inode(root)
    (root / "etc" / "name").write_text("two")
    os.utime(root, (1 << 33, 1 << 33))  # as an image may have it
    assert _inode(root) != first
    assert _said(root, "cat /etc/name") == "two"


def test_of_one_that_cannot_be_made_nothing_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_SPARE_BYTES", -(10**6))
    monkeypatch.setattr(disk, "_SPARE", 0)
    (root / "large").write_bytes(bytes(10**6))
    with pytest.raises((LaunchError, OSError)):
        open_disk(root)
    assert [path.name for path in root.parent.iterdir()] == ["root"]


def test_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no such root"):
        open_disk(tmp_path / "no")
