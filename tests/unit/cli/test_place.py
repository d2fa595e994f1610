"""Where commands look for things, and what they say where there is nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli import place
from tidegate.cli.main import cli
from tidegate.config.load import load
from tidegate.errors import ConfigError, TidegateError
from tidegate_launcher import privilege


@pytest.mark.parametrize(
    "words",
    [
        ("up",),
        ("up", "--detach"),
        ("policy", "check"),
        ("policy", "explain", "GET", "https://x.test/"),
        ("policy", "test", "tests.yaml"),
        ("policy", "lock"),
        ("wall", "up", "--device", "lo", "--sandbox", "10.77.0.2"),
        ("wall", "up", "--sandbox", "10.77.0.2"),
        ("wall", "gate"),
        ("wall", "shared"),
    ],
    ids=" ".join,
)
def test_no_configuration_is_told_in_one_wording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    monkeypatch.setattr("tidegate.config.location.PLACES", (Path("tidegate.yaml"),))
    status = tmp_path / "status"
    status.write_text("CapEff: 000001ffffffffff\n")
    monkeypatch.setattr(privilege, "_STATUS", status)
    (tmp_path / "tests.yaml").write_text("[]")
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ConfigError)
    fault = done.exception
    assert (fault.what, fault.where) == ("there is no configuration", "tidegate.yaml")
    assert fault.hint.startswith("write one (docs/tutorial), or ")
    assert ("name FILE" if "check" in words else "give --config FILE") in fault.hint


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the system's, and a user whose own is empty."""
    monkeypatch.chdir(tmp_path)
    for name in ("TIDEGATE_CONFIG", "TIDEGATE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(place, "SYSTEM_STATE", tmp_path / "system")
    (tmp_path / "system" / "gate").mkdir(parents=True)
    return tmp_path / "system"


@pytest.mark.parametrize("made", ["admin.sock", "gate/admin.sock"])
@pytest.mark.parametrize(
    "words",
    [
        ("health",),
        ("health", "--only", "gate"),
        ("session", "list"),
        ("session", "new", "--policy", "p"),
        ("harness", "list"),
        ("env",),
        ("ca", "show"),
        ("audit", "key"),
        ("log",),
    ],
    ids=" ".join,
)
def test_a_gate_in_the_systems_folder_is_told_to_who_looks_elsewhere(
    systems: Path, tmp_path: Path, words: tuple[str, ...], made: str
) -> None:
    at = 1 if words[0] in ("health", "env", "log") else 2
    given = [*words[:at], "--state-dir", str(tmp_path / "own"), *words[at:]]
    hint = f"a gate has its state in {systems}: give --state-dir {systems}"
    (tmp_path / "own" / "audit").mkdir(parents=True)
    nowhere = CliRunner().invoke(cli, given).exception
    assert isinstance(nowhere, TidegateError)
    assert hint not in nowhere.hint
    (systems / made).touch()
    told = CliRunner().invoke(cli, given).exception
    assert isinstance(told, TidegateError)
    assert hint in told.hint
    assert told.what == nowhere.what
    if words[0] in ("health", "session", "harness", "env"):
        assert told.what == "no gate is running there"


def test_the_systems_folder_is_where_a_gate_of_root_has_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert load(None, environ={}, flags={}).state_dir == str(place.SYSTEM_STATE)
