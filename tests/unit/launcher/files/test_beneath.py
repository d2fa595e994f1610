"""Opening beneath a folder: the kernel refuses what leads out, whatever the path says."""

import errno
import os
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.files import beneath
from tidegate_launcher.files.beneath import open_beneath, open_plain, reopen


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "f").write_text("f")
    (folder / "link").symlink_to("sub")
    (folder / "out").symlink_to("/etc")
    return folder


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("../work/sub/f", errno.EXDEV, id="up"),
        pytest.param("sub/../../work", errno.EXDEV, id="up later"),
        pytest.param("/etc/passwd", errno.EXDEV, id="absolute"),
        pytest.param("link/f", errno.ELOOP, id="link within"),
        pytest.param("out/passwd", errno.ELOOP, id="link out"),
        pytest.param("sub/f\0x", errno.EINVAL, id="NUL"),
        pytest.param("nothing", errno.ENOENT, id="not there"),
    ],
)
def test_what_leads_out_is_not_opened(work: Path, path: str, code: int) -> None:
    folder = os.open(work, os.O_PATH)
    try:
        with pytest.raises(OSError, match=r".*") as caught:
            open_beneath(folder, path)
        assert caught.value.errno == code
    finally:
        os.close(folder)


def test_the_links_of_proc_are_not_followed(tmp_path: Path) -> None:
    with open(tmp_path / "f", "w") as file, pytest.raises(OSError, match=r".*") as caught:
        open_plain(f"/proc/self/fd/{file.fileno()}")
    assert caught.value.errno == errno.ELOOP


def test_what_was_looked_at_is_what_is_read(work: Path) -> None:
    folder = os.open(work, os.O_PATH)
    found = open_beneath(folder, "sub/f", os.O_PATH)
    (work / "sub" / "f").rename(work / "old")
    (work / "sub" / "f").write_text("another")
    with open(reopen(found, os.O_RDONLY)) as file:
        assert file.read() == "f"
    assert not os.get_inheritable(found)
    os.close(found)
    os.close(folder)


def test_a_kernel_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "_OPENAT2", 1000)  # no such call
    with pytest.raises(LaunchError, match=r"openat2.*Linux 5\.6"):
        open_plain("/")
