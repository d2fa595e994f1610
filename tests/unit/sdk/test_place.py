"""The gate that is meant when none is named."""

from pathlib import Path

import pytest

from tidegate.sdk.place import audit_folder, state_folder


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TIDEGATE_STATE_DIR", raising=False)
    path = tmp_path / "tidegate.yaml"
    path.write_text(f"version: 1\nstate_dir: {tmp_path}/of-file\naudit: {{dir: {tmp_path}/log}}\n")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(path))
    return path


def test_is_the_files(file: Path, tmp_path: Path) -> None:
    assert (state_folder(), audit_folder()) == (tmp_path / "of-file", tmp_path / "log")


def test_is_the_environments_before_the_files(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path / "of-environment"))
    assert (state_folder(), audit_folder()) == (tmp_path / "of-environment", tmp_path / "log")


def test_is_the_given_one_before_all(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path / "of-environment"))
    given = tmp_path / "given"
    assert (state_folder(given), audit_folder(given)) == (given, given / "audit")
