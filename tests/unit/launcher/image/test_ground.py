"""The places to mount on: there, and no link, whatever an image has put in their way."""

import os
import stat
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import Row, file, folder, link, tar, unpacked
from tidegate_launcher.image.ground import MOUNT_FILES, MOUNT_FOLDERS


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([file("f")], id="nothing there"),
        pytest.param([folder("proc"), folder("etc"), file("etc/hosts", b"x")], id="there"),
        pytest.param([link(name, "/outside") for name in MOUNT_FOLDERS], id="links"),
        pytest.param([file(name) for name in MOUNT_FOLDERS], id="files"),
        pytest.param([folder("etc"), *(link(name, "../../outside") for name in MOUNT_FILES)], id="links as files"),
        pytest.param([folder("etc"), *(file(f"{name}/below") for name in MOUNT_FILES)], id="folders as files"),
    ],
)
def test_every_place_is_what_a_mount_needs(tmp_path: Path, rows: list[Row]) -> None:
    unpacked(tar(rows), tmp_path / "s", prepared=True)
    root = tmp_path / "s" / "root"
    assert all(stat.S_ISDIR(os.lstat(root / name).st_mode) for name in MOUNT_FOLDERS)
    assert all(stat.S_ISREG(os.lstat(root / name).st_mode) for name in MOUNT_FILES)
    assert not (root / "outside").exists()
