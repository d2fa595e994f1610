"""The set-up of runsc, with stubs in place of the machine's runsc and apt-get."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_DEBIAN = "ID=debian" in Path("/etc/os-release").read_text()

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not _DEBIAN or not (ROOT / ".venv").exists(),
    reason="the set-up of gVisor needs root, Debian and a .venv",
)


def _program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def _runsc(folder: Path, *, release: str = "20250101") -> Path:
    return _program(
        folder, "runsc", f'case "$*" in --version) echo "runsc version release-{release}.0";; *) exit 42;; esac'
    )


def _set_up(cache: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "tools/gvisor.sh", "runsc"],
        cwd=ROOT,
        env={"PATH": f"{path}:/usr/sbin:/usr/bin:/sbin:/bin", "TIDEGATE_CACHE": str(cache), "HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _record(cache: Path) -> dict[str, str | int]:
    found: dict[str, str | int] = json.loads((cache / "engine" / "runsc.json").read_text())
    return found


def test_the_runsc_of_path_is_taken_and_recorded_by_version_and_hash(tmp_path: Path) -> None:
    program = _runsc(tmp_path / "bin")
    done = _set_up(tmp_path / "cache", program.parent)
    assert (done.returncode, done.stderr) == (0, "")
    record = _record(tmp_path / "cache")
    assert (record["path"], record["source"], record["release"]) == (str(program), "PATH", 20250101)
    assert len(str(record["sha256"])) == 64
    assert (tmp_path / "cache" / "engine" / "bin" / "runsc").resolve() == program


def test_one_that_is_too_old_is_passed_over_and_what_cannot_be_fetched_is_said(tmp_path: Path) -> None:
    folder = _runsc(tmp_path / "bin", release="20221219").parent
    _program(folder, "apt-get", 'echo "E: no archive here"; exit 100')
    done = _set_up(tmp_path / "cache", folder)
    assert done.returncode == 1
    assert "the oldest taken is 20240729" in done.stderr
    assert "E: no archive here" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("! no suite of Debian's has a runsc that runs here")
    assert not (tmp_path / "cache" / "engine" / "runsc.json").exists()


def test_what_was_fetched_before_is_kept_where_path_has_none(tmp_path: Path) -> None:
    fetched = tmp_path / "cache" / "engine" / "bin"
    fetched.mkdir(parents=True)
    _runsc(fetched)
    (fetched.parent / "runsc.source").write_text("runsc_1-2_any\n")
    _program(tmp_path / "bin", "apt-get", "exit 100")
    done = _set_up(tmp_path / "cache", tmp_path / "bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert _record(tmp_path / "cache")["source"] == "runsc_1-2_any"
