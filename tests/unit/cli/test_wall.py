"""`tidegate wall`: what it says of a sandbox that it cannot hold, and to whom may not."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli.wall_watch import wall
from tidegate.errors import LaunchError
from tidegate_launcher import privilege

USES = {
    "up": ("--device", "tg-none", "--sandbox", "203.0.113.77"),
    "gate": (),
    "shared": (),
    "down": ("--gate",),
    "show": ("--gate",),
    "check": ("--gate",),
    "watch": ("--gate",),
}
"""Each command, called rightly."""


@pytest.fixture(autouse=True)
def rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's account of what this process may: all of it, whoever runs the tests."""
    path = tmp_path / "status"
    path.write_text("Name:\ttidegate\nCapEff:\t000001ffffffffff\n")
    monkeypatch.setattr(privilege, "_STATUS", path)
    return path


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tidegate.yaml"
    path.write_text('version: 1\nlisten: {http: "10.77.0.1:8080"}\npolicies: {p: {}}\n')
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(("up", "--sandbox", "203.0.113.77"), "not behind one device", id="nobody's neighbour"),
        pytest.param(("up", "--sandbox", "203.0.113.77", "--device", "tg-none"), "no device tg-none", id="no device"),
        pytest.param(("shared",), "no listener on loopback", id="nothing on loopback"),
    ],
)
def test_what_cannot_be_held_is_said(config: str, arguments: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(wall, [*arguments, "--config", config])
    assert isinstance(done.exception, LaunchError)
    assert told in str(done.exception)


@pytest.mark.parametrize("arguments", [("check",), ("show", "--gate", "--shared"), ("up", "--sandbox", "nonsense")])
def test_wrong_usage(arguments: tuple[str, ...], config: str) -> None:
    more = ["--config", config] if arguments[0] == "up" else []
    assert CliRunner().invoke(wall, [*arguments, *more]).exit_code == 2


@pytest.mark.parametrize("name", sorted(wall.commands))
def test_without_the_right_every_command_says_first_that_it_needs_it(
    rights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before the configuration, of which there is none here, and before any file of root's."""
    monkeypatch.chdir(tmp_path)
    rights.write_text("CapEff:\t00000000ffffefff\n")
    done = CliRunner().invoke(wall, [name, *USES[name]])
    assert isinstance(done.exception, LaunchError)
    assert "this needs root, or CAP_NET_ADMIN" in done.exception.hint
    assert "Operation not permitted" in done.exception.what
    assert CliRunner().invoke(wall, [name, "--help"]).exit_code == 0
