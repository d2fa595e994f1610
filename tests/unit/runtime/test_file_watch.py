"""A changed configuration is noticed on disk."""

import os
from pathlib import Path

import pytest

from tidegate.runtime.file_watch import FileWatch


def _write(path: Path) -> None:
    path.write_text("version: 1\nworkers: 1\n")


def _replace(path: Path) -> None:
    other = path.with_name("fresh")
    other.write_text("version: 1\nworkers: 0\n")
    os.utime(other, ns=(1, 1))
    other.replace(path)


def _lock(path: Path) -> None:
    path.with_name("tidegate.lock").write_text("x")


def _remove(path: Path) -> None:
    path.unlink()


def _relink(path: Path) -> None:
    # As volumes with `..data` do it: the file's own entry stays, what it leads to is another.
    data = path.with_name("data-2.yaml")
    data.write_text("version: 1\nworkers: 2\n")
    link = path.with_name("link.new")
    link.symlink_to(data)
    link.replace(path)


def watching(path: Path) -> FileWatch:
    watch = FileWatch([path])
    assert watch.changed(), "what was read may be another file by the first look"
    return watch


@pytest.mark.parametrize("act", [_write, _replace, _lock, _remove, _relink])
def test_the_watch_sees_each_way_a_file_changes_once(tmp_path: Path, act: object) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("version: 1\nworkers: 9\n")
    watch = watching(path)
    assert not watch.changed()
    act(path)  # type: ignore[operator]
    assert watch.changed()
    assert not watch.changed()


def test_the_watch_does_not_care_for_other_files(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("version: 1\n")
    watch = watching(path)
    (tmp_path / "notes.txt").write_text("x")
    assert not watch.changed()


def test_the_watch_follows_a_file_of_any_name_in_any_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "tidegate.yaml", tmp_path / "b" / "policy.conf"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text("x")
    watch = watching(first)
    second.write_text("xy")
    assert not watch.changed()
    watch.follow([first, second])
    assert watch.changed(), "it may have changed between the load and now"
    assert not watch.changed()
    second.write_text("xyz")
    assert watch.changed()
    watch.follow([first])
    watch.changed()
    second.write_text("z")
    assert not watch.changed()


def test_a_folder_that_is_gone_for_a_moment_is_no_fault(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "tidegate.yaml").write_text("version: 1\n")
    watch = watching(folder / "tidegate.yaml")
    folder.rename(tmp_path / "old")
    assert watch.changed()
    (tmp_path / "old").rename(folder)
    assert watch.changed()
