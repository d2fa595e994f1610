"""`tidegate wall`: what it says of a sandbox that it cannot hold, and to whom may not."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli.wall_watch import wall
from tidegate.errors import LaunchError
from tidegate.keeper import protocol
from tidegate_launcher import privilege
from tidegate_launcher.wall import nft, noted

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


@pytest.fixture
def nothing_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No wall, and no note of one; returns the folder of notes."""
    monkeypatch.setattr(nft, "read", lambda: nft.Ruleset([]))
    monkeypatch.setattr(noted, "NOTES", tmp_path / "notes")
    return tmp_path / "notes"


@pytest.mark.parametrize("command", ["show", "check", "watch"])
@pytest.mark.parametrize(
    ("whose", "table", "hint"),
    [
        pytest.param(("--device", "tg9"), "tidegate-tg9", "tidegate wall up", id="link"),
        pytest.param(("--gate",), "tidegate-the-user-of-the-gate", "tidegate wall gate", id="gate"),
        pytest.param(("--shared",), "tidegate-users-of-one-namespace", "tidegate wall shared", id="shared"),
    ],
)
def test_a_wall_that_was_never_put_up_is_told_with_the_command_that_does(
    nothing_stands: Path, command: str, whose: tuple[str, ...], table: str, hint: str
) -> None:
    done = CliRunner().invoke(wall, [command, *whose])
    assert isinstance(done.exception, LaunchError)
    assert (done.exception.what, done.exception.hint) == (f"no wall was put up here as {table}", hint)
    assert not done.stdout


def test_a_wall_that_stands_no_more_is_told_by_show_too(nothing_stands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_stands.mkdir()
    noted._note("tidegate-tg9").write_text('{"rules": [], "index": 7}')
    done = CliRunner().invoke(wall, ["show", "--device", "tg9"])
    assert isinstance(done.exception, LaunchError)
    assert "no rule of it stands any more: put the wall up again" in done.exception.what


@pytest.mark.parametrize("command", ["show", "check", "down"])
def test_a_sandboxs_address_stands_for_its_links_device(
    nothing_stands: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    beside = {"10.77.0.2": "tg9", "fd77::2": "tg9", "10.78.0.2": "tg8"}
    monkeypatch.setattr("tidegate.runtime.own.device_beside", lambda address: beside[str(address)])
    run = CliRunner()
    done = run.invoke(wall, [command, "--sandbox", "10.77.0.2", "--sandbox", "fd77::2"])
    assert "tg9" in (str(done.exception) if command != "down" else done.stderr)
    assert "one device" in str(
        run.invoke(wall, [command, "--sandbox", "10.77.0.2", "--sandbox", "10.78.0.2"]).exception
    )
    assert run.invoke(wall, [command, "--sandbox", "10.77.0.2", "--device", "tg9"]).exit_code == 2
    assert run.invoke(wall, [command, "--sandbox", "nonsense"]).exit_code == 2


def test_a_wall_without_a_link_is_called_as_in_the_log_and_in_health(
    nothing_stands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nft, "remove", lambda _table: False)
    for option, name in (("--gate", protocol.GATE_USER), ("--shared", protocol.USERS)):
        assert CliRunner().invoke(wall, ["down", option]).stderr == f"tidegate: there was no wall: {name}\n"
