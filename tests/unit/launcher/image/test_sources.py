"""Where archives come from: files, folders, stdin and an engine's own command."""

import os
import tarfile
from pathlib import Path

import pytest

from tests.unit.launcher.image.making import file, oci, own, saved, tar
from tidegate.errors import LaunchError
from tidegate_launcher.image.importer import import_image
from tidegate_launcher.image.sources import source_of
from tidegate_launcher.image.store import Store

LAYER = tar([file("f", b"x")])


def rooted(tmp_path: Path, given: str) -> dict[str, str]:
    return own(import_image(Store(tmp_path / "images"), source_of(given), called=given)[0].root)


@pytest.mark.parametrize("data", [LAYER, oci([LAYER]), saved([LAYER])], ids=["tar", "oci", "docker save"])
def test_a_file_is_what_it_holds(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "archive").write_bytes(data)
    assert rooted(tmp_path, str(tmp_path / "archive")) == {"f": "x"}


def layout(tmp_path: Path) -> Path:
    (tmp_path / "archive").write_bytes(oci([LAYER]))
    with tarfile.open(tmp_path / "archive") as archive:
        archive.extractall(tmp_path / "layout", filter="data")
    return tmp_path / "layout"


def test_a_folder_is_an_oci_layout(tmp_path: Path) -> None:
    assert rooted(tmp_path, str(layout(tmp_path))) == {"f": "x"}


def test_a_link_in_a_layout_is_not_followed(tmp_path: Path) -> None:
    folder = layout(tmp_path)
    blob = next((folder / "blobs" / "sha256").iterdir())
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="cannot be opened"):
        rooted(tmp_path, str(folder))


def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a command in the way that stands for an engine's, whose daemon a unit test has none of."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_an_engine_saves_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive").write_bytes(saved([LAYER]))
    engine(tmp_path, monkeypatch, f'[ "$*" = "save a/b:1" ] && cat {tmp_path / "archive"}')
    assert rooted(tmp_path, "docker:a/b:1") == {"f": "x"}


def test_an_engine_that_fails_is_told_in_its_words_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "archive").write_bytes(saved([LAYER]))
    engine(tmp_path, monkeypatch, f"cat {tmp_path / 'archive'}; echo 'no such image' >&2; exit 1")
    with pytest.raises(LaunchError, match="no such image"):
        rooted(tmp_path, "docker:a/b:1")
    assert Store(tmp_path / "images").list() == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param("docker:--help", "no name of an image", id="option for a name"),
        pytest.param("docker:", "no name of an image", id="no name"),
        pytest.param("nerdctl:x", "there is no nerdctl", id="no engine"),
        pytest.param("/nothing/there", "cannot be opened", id="no file"),
        pytest.param("/dev/zero", "no file", id="device"),
        pytest.param("/etc", "no OCI layout", id="any folder"),
    ],
)
def test_what_is_no_source_is_told(tmp_path: Path, given: str, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        rooted(tmp_path, given)
