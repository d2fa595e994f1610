"""An archive for the kernel: what goes in is what it says, entry by entry."""

import io
import os
import stat
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.microvm.cpio import Archive


def _read(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Return mode and bytes by name, as the kernel reads them (initramfs buffer format)."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + length]
        at += -(-(110 + length) // 4) * 4
        if name == b"TRAILER!!!\0":
            assert at == len(data)
            return found
        found[os.fsdecode(name[:-1])] = mode, data[at : at + size]
        at += -(-size // 4) * 4


def _tree(source: Path) -> dict[str, tuple[int, bytes]]:
    file = io.BytesIO()
    archive = Archive(file)
    archive.tree("given/0", source)
    archive.close()
    return _read(file.getvalue())


@pytest.mark.parametrize("size", range(5))
def test_folders_files_and_links_are_read_as_they_were_written(size: int) -> None:
    file = io.BytesIO()
    archive = Archive(file)
    archive.folder("a")
    archive.data("a/b", b"x" * size, mode=0o755)
    archive.link("a/c", "../d")
    archive.close()
    assert _read(file.getvalue()) == {
        "a": (stat.S_IFDIR | 0o755, b""),
        "a/b": (stat.S_IFREG | 0o755, b"x" * size),
        "a/c": (stat.S_IFLNK | 0o777, b"../d"),
    }


def test_a_tree_keeps_modes_links_and_any_name(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir(0o755)
    (source / "od\nd").write_bytes(b"1")
    (source / "od\nd").chmod(0o444)
    (source / "link").symlink_to("/etc/passwd")
    assert _tree(source) == {
        "given/0": (stat.S_IFDIR | 0o755, b""),
        "given/0/link": (stat.S_IFLNK | 0o777, b"/etc/passwd"),
        "given/0/od\nd": (stat.S_IFREG | 0o444, b"1"),
    }


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LaunchError, match="neither file nor folder"):
        _tree(tmp_path)
