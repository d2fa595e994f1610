"""Where commands look for things: a configuration that is not there is told in one wording."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.cli.main import cli
from tidegate.errors import ConfigError
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
    monkeypatch.setattr("tidegate.cli.place._PLACES", (Path("tidegate.yaml"),))
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
