"""`tidegate wall`: what it says of a sandbox that it cannot hold."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli.wall import wall
from tidegate.errors import LaunchError


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
