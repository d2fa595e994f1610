"""Which runsc gVisor uses, with stubs in its place. What it does with one: `tests/integration/test_gvisor.py`."""

import os
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.gvisor.boundary import GVisor


def _stub(folder: Path, release: str) -> None:
    program = folder / "runsc"
    program.write_text(
        f'#!/bin/sh\ncase $1 in --version) echo "runsc version release-{release}.0";; *) exit 42;; esac\n'
    )
    program.chmod(0o755)


def _boundary(folder: Path) -> GVisor:
    return GVisor({"TIDEGATE_RUNSC": str(folder / "runsc"), "TIDEGATE_CACHE": str(folder / "cache")})


def test_a_runsc_that_is_replaced_meanwhile_is_looked_at_anew(tmp_path: Path) -> None:
    boundary = _boundary(tmp_path)
    _stub(tmp_path, "20250101")
    assert boundary.runtime().release == 20250101
    (tmp_path / "runsc").unlink()
    _stub(tmp_path, "20260101")
    assert boundary.runtime().release == 20260101


def test_S_26_an_old_one_in_its_place_is_refused(tmp_path: Path) -> None:
    boundary = _boundary(tmp_path)
    _stub(tmp_path, "20250101")
    boundary.runtime()
    (tmp_path / "runsc").unlink()
    _stub(tmp_path, "20221219")
    with pytest.raises(LaunchError, match="oldest taken"):
        boundary.runtime()


def test_without_root_it_says_that_it_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stub(tmp_path, "20250101")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LaunchError, match="need root"):
        _boundary(tmp_path).capabilities()
