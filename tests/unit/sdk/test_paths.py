"""A model's path: opened beneath the workspace, or refused with a reason."""

import os
import threading
import time
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate.sdk import open_beneath


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "f").write_text("text")
    (folder / "out").symlink_to("/etc")
    (tmp_path / "secret").write_text("SECRET")
    os.mkfifo(folder / "pipe")
    return folder


def test_a_file_is_read_and_written(work: Path) -> None:
    with open(open_beneath(work, "sub/f"), "rb") as file:
        assert file.read() == b"text"
    with open(open_beneath(work, "sub/f", "write"), "wb") as file:
        file.write(b"new")
    with open(open_beneath(work, "sub/g", "create"), "wb") as file:
        file.write(b"made")
    assert [(work / "sub" / name).read_text() for name in "fg"] == ["new", "made"]


@pytest.mark.parametrize("mode", ["read", "write", "create"])
@pytest.mark.parametrize(
    ("path", "told"),
    [
        pytest.param("../secret", "leads out", id="up"),
        pytest.param("sub/../../secret", "leads out", id="up later"),
        pytest.param("/etc/passwd", "leads out", id="absolute"),
        pytest.param("out/passwd", "is a link", id="link out"),
        pytest.param("a\0b", "NUL", id="NUL"),
        pytest.param("", "refused", id="empty"),
    ],
)
def test_what_leads_out_is_refused(work: Path, path: str, told: str, mode: str) -> None:
    with pytest.raises(LaunchError, match=told):
        open_beneath(work, path, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize("path", ["sub", "pipe"])
def test_what_is_no_file_is_refused_without_waiting(work: Path, path: str, mode: str) -> None:
    with pytest.raises(LaunchError, match=r"no file|a folder"):
        open_beneath(work, path, mode)  # type: ignore[arg-type]


def test_create_takes_no_others_place(work: Path) -> None:
    with pytest.raises(LaunchError, match="exists"):
        open_beneath(work, "sub/f", "create")


def test_a_missing_workspace_is_told(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="workspace cannot be opened"):
        open_beneath(tmp_path / "none", "f")


def test_a_swapped_folder_never_leads_out(work: Path, tmp_path: Path) -> None:
    """S-09: the race that a checked string loses."""
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "f").write_text("SECRET")
    (tmp_path / "link").symlink_to(tmp_path / "evil")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (work / "sub").rename(tmp_path / "aside")
            (tmp_path / "link").rename(work / "sub")
            (work / "sub").rename(tmp_path / "link")
            (tmp_path / "aside").rename(work / "sub")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen, end = {"opened": 0, "refused": 0}, time.monotonic() + 60
    try:
        # How the two threads take turns is the machine's affair: until both ends of the race were met.
        while sum(seen.values()) < 3000 or (not all(seen.values()) and time.monotonic() < end):
            try:
                with open(open_beneath(work, "sub/f"), "rb") as file:
                    assert file.read() == b"text"
                seen["opened"] += 1
            except LaunchError:
                seen["refused"] += 1
    finally:
        over.set()
        swapping.join()
    assert all(seen.values()), seen
