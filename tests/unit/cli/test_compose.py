"""`tidegate compose gen`: what it writes, and what it does not write over."""

import ipaddress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tidegate.cli.compose import compose
from tidegate.config.load import load
from tidegate.errors import LaunchError


def gen(folder: Path, *arguments: str) -> int:
    done = CliRunner().invoke(compose, ["gen", *arguments, "--output", str(folder)])
    if isinstance(done.exception, LaunchError):
        raise done.exception
    return done.exit_code


@pytest.mark.parametrize("count", [1, 2, 40])
def test_no_two_sandboxes_share_a_network_a_volume_or_a_resolver(tmp_path: Path, count: int) -> None:
    assert gen(tmp_path, str(count)) == 0
    made = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    sandboxes = {name: one for name, one in made["services"].items() if name.startswith("agent-")}
    assert len(sandboxes) == count
    for name, one in sandboxes.items():
        assert list(one["networks"]) == [name]
        assert [text.partition(":")[0] for text in one["volumes"]] == [f"./resolv/{name}.conf", name]
        assert made["networks"][name]["internal"] is True
    nets = [ipaddress.ip_network(made["networks"][name]["ipam"]["config"][0]["subnet"]) for name in sandboxes]
    assert all(not one.overlaps(other) for one in nets for other in nets if one is not other)
    assert set(made["services"]["gate"]["networks"]) == {*sandboxes, "out"}


def test_the_configuration_is_one_that_loads(tmp_path: Path) -> None:
    assert gen(tmp_path, "3", "--subnet", "10.200.0.0/24", "--name", "bot") == 0
    settings = load(tmp_path / "gate" / "tidegate.yaml", environ={}, flags={})
    assert [address for address, _ in settings.listen.dns] == ["10.200.0.2", "10.200.0.10", "10.200.0.18"]
    assert sorted(settings.sessions) == ["bot-1", "bot-2", "bot-3"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    kept = tmp_path / "gate" / "tidegate.yaml"
    kept.write_text("mine")
    with pytest.raises(LaunchError, match="there already"):
        gen(tmp_path, "1")
    assert kept.read_text() == "mine"
    assert not (tmp_path / "compose.yaml").exists()
    assert gen(tmp_path, "1", "--force") == 0
    assert kept.read_text() != "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("0",), id="none"),
        pytest.param(("3", "--subnet", "10.0.0.0/28"), id="no room"),
        pytest.param(("1", "--subnet", "10.0.0.0/30"), id="smaller than one"),
        pytest.param(("1", "--subnet", "nonsense"), id="no network"),
        pytest.param(("1", "--name", "A b"), id="no name of a service"),
    ],
)
def test_what_cannot_be_is_wrong_usage(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert gen(tmp_path, *arguments) == 2
    assert not list(tmp_path.iterdir())
