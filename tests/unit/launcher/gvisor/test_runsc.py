"""Finding and judging a runsc, with stubs of the test's own in its place."""

import os
import time
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.gvisor.runsc import Runtime, find_runsc, inspect_runsc, parse_version

_SAYS = 'echo "runsc version release-20250101.0"'
_WORKS = "exit 42"


def _stub(folder: Path, *, version: str = _SAYS, run: str = _WORKS) -> Path:
    """Write a runsc that answers to --version, and to everything else as told; it keeps count of its calls."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "runsc"
    program.write_text(f'#!/bin/sh\necho "$*" >>{folder}/calls\ncase "$*" in --version) {version};; *) {run};; esac\n')
    program.chmod(0o755)
    return program


def _calls(program: Path) -> list[str]:
    file = program.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


def _inspect(program: Path, cache: Path, seconds: float = 5) -> Runtime:
    return inspect_runsc(program, {"TIDEGATE_CACHE": str(cache)}, seconds=seconds)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("runsc version 0.0~20240729.0\nspec: 1.2.0\n", 20240729),
        ("runsc version release-20250101.0\nspec: 1.2.0\n", 20250101),
        ("runsc version release-20250101.0-12-gabcdef012345\n", 20250101),
        ("runsc version 0.0~20221219.0\n", 20221219),
    ],
)
def test_reads_the_versions_that_there_are(text: str, release: int) -> None:
    assert parse_version(text) == release


@pytest.mark.parametrize("text", ["", "runc version 1.1.5", "runsc version VERSION_MISSING", "release-20250101.0"])
def test_S_26_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="no version"):
        parse_version(text)


class TestFinding:
    def test_one_that_is_named_is_the_one(self, tmp_path: Path) -> None:
        named, other = _stub(tmp_path / "a"), _stub(tmp_path / "b")
        assert find_runsc({"TIDEGATE_RUNSC": str(named), "PATH": str(other.parent)}) == named

    def test_S_11_one_that_is_named_and_not_there_is_not_replaced_by_another(self, tmp_path: Path) -> None:
        other = _stub(tmp_path / "b")
        with pytest.raises(LaunchError, match="no program there"):
            find_runsc({"TIDEGATE_RUNSC": str(tmp_path / "none"), "PATH": str(other.parent)})

    def test_path_is_before_what_the_set_up_fetched(self, tmp_path: Path) -> None:
        fetched, installed = _stub(tmp_path / "cache" / "engine" / "bin"), _stub(tmp_path / "b")
        environ = {"TIDEGATE_CACHE": str(tmp_path / "cache"), "PATH": str(installed.parent)}
        assert find_runsc(environ) == installed
        assert find_runsc({**environ, "PATH": "/nowhere"}) == fetched

    @pytest.mark.parametrize("path", [".", "", "bin:/nowhere", ":/nowhere"])
    def test_what_lies_in_the_current_folder_is_not_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        for folder in (tmp_path, tmp_path / "bin"):
            _stub(folder)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("tidegate_launcher.gvisor.runsc.SYSTEM_PATH", "/nowhere")
        with pytest.raises(LaunchError, match="no runsc on this machine"):
            find_runsc({"PATH": path, "TIDEGATE_CACHE": "none"})

    def test_S_11_with_none_there_is_no_other_runtime(self, tmp_path: Path) -> None:
        (tmp_path / "runc").touch(0o755)
        with pytest.raises(LaunchError, match="no runsc on this machine"):
            find_runsc({"PATH": str(tmp_path), "HOME": str(tmp_path)})


class TestJudging:
    def test_S_26_an_old_one_is_refused_before_it_runs_anything(self, tmp_path: Path) -> None:
        program = _stub(tmp_path / "a", version='echo "runsc version 0.0~20221219.0"')
        with pytest.raises(LaunchError, match=r"20221219.*oldest taken is 20240729"):
            _inspect(program, tmp_path)
        assert _calls(program) == ["--version"]

    def test_the_first_platform_that_works_is_taken(self, tmp_path: Path) -> None:
        program = _stub(tmp_path / "a", run='case "$*" in *--platform=ptrace*) exit 42;; *) exit 1;; esac')
        assert _inspect(program, tmp_path).platform == "ptrace"

    def test_a_platform_that_hangs_is_passed_over_in_time(self, tmp_path: Path) -> None:
        program = _stub(tmp_path / "a", run='case "$*" in *systrap*) sleep 1000;; *) exit 42;; esac')
        begun = time.monotonic()
        assert _inspect(program, tmp_path, seconds=0.5).platform == "ptrace"
        assert time.monotonic() - begun < 10

    def test_one_that_hangs_at_once_is_refused_in_time(self, tmp_path: Path) -> None:
        begun = time.monotonic()
        with pytest.raises(LaunchError, match="did not say its version in time"):
            _inspect(_stub(tmp_path / "a", version="sleep 1000"), tmp_path, seconds=0.5)
        assert time.monotonic() - begun < 10

    def test_without_a_platform_each_failure_is_told(self, tmp_path: Path) -> None:
        program = _stub(tmp_path / "a", run="echo no such device; exit 128")
        with pytest.raises(LaunchError, match=r"systrap: no such device; ptrace: .*; kvm: "):
            _inspect(program, tmp_path)

    def test_one_that_pretends_to_work_and_runs_nothing_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LaunchError, match="starts no sandbox"):
            _inspect(_stub(tmp_path / "a", run="exit 0"), tmp_path)

    def test_what_cannot_be_started_is_told(self, tmp_path: Path) -> None:
        program = tmp_path / "runsc"
        program.write_bytes(b"\x7fELF")
        program.chmod(0o755)
        with pytest.raises(LaunchError, match="does not start"):
            _inspect(program, tmp_path)


class TestMemory:
    def test_the_same_file_is_asked_once(self, tmp_path: Path) -> None:
        program = _stub(tmp_path / "a")
        first = _inspect(program, tmp_path)
        count = len(_calls(program))
        assert _inspect(program, tmp_path) == first
        assert len(_calls(program)) == count
        assert len(first.sha256) == 64

    def test_another_file_in_its_place_is_asked_anew(self, tmp_path: Path) -> None:
        first = _inspect(_stub(tmp_path / "a"), tmp_path)
        other = _stub(tmp_path / "a", version='echo "runsc version release-20260101.0"')
        assert _inspect(other, tmp_path).release == 20260101
        assert _inspect(other, tmp_path).sha256 != first.sha256

    @pytest.mark.parametrize("spoil", ["writable", "broken", "link"])
    def test_what_others_could_have_written_is_not_believed(self, tmp_path: Path, spoil: str) -> None:
        program, memory = _stub(tmp_path / "a"), tmp_path / "runsc.json"
        _inspect(program, tmp_path)
        count = len(_calls(program))
        if spoil == "writable":
            memory.chmod(0o666)
        elif spoil == "broken":
            memory.write_text('{"file": 7')
        else:
            memory.rename(tmp_path / "other")
            memory.symlink_to(tmp_path / "other")
        _inspect(program, tmp_path)
        assert len(_calls(program)) > count

    def test_a_memory_that_cannot_be_kept_is_done_without(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert _inspect(_stub(tmp_path / "a"), tmp_path / "file").platform == "systrap"

    def test_leaves_nothing_but_one_file(self, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        _inspect(_stub(tmp_path / "a"), cache)
        assert os.listdir(cache) == ["runsc.json"]
