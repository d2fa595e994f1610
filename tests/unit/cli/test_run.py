"""`tidegate run`: what is wrong usage, and what is said of a launch that never was; sandboxes are in integration."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate.cli.launched import _told
from tidegate.cli.run import run
from tidegate_launcher import result
from tidegate_launcher.order import Launched


def called(*words: str, tmp_path: Path) -> Result:
    return CliRunner().invoke(
        run, ["--state-dir", str(tmp_path / "state"), *words, "--", "true"], standalone_mode=True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--memory", "lots"], "write such as 512M", id="no size"),
        pytest.param(["--memory", "-1"], "write such as 512M", id="a size below nothing"),
        pytest.param(["--memory", "1.5G"], "write such as 512M", id="a broken size"),
        pytest.param(["--memory", "1M"], "32M at the least", id="too little memory"),
        pytest.param(["--disk", "1G"], "less than --memory", id="more disk than memory"),
        pytest.param(["--memory", "64M"], "a smaller disk, or more memory", id="no more memory than disk by default"),
        pytest.param(["--time", "0"], "--time", id="no time"),
        pytest.param(["--time", "nan"], "--time", id="no number"),
        pytest.param(["--cpus", "-1"], "--cpus", id="no processor"),
        pytest.param(["--pids", "1"], "--pids", id="no process"),
        pytest.param(["--env", "A"], "NAME=VALUE", id="no value"),
        pytest.param(["--env", "1A=x"], "NAME=VALUE", id="no name"),
        pytest.param(["--net", "veth"], "needs a --policy", id="a network without a policy"),
        pytest.param(["--credential", "c"], "needs a --policy", id="a credential without a policy"),
        pytest.param(["--net", "host"], "host", id="the host's own network"),
        pytest.param(["--boundary", "nothing"], "nothing", id="no such boundary"),
    ],
)
def test_wrong_usage_is_told_and_nothing_is_done(tmp_path: Path, words: list[str], said: str) -> None:
    done = called(*words, tmp_path=tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("size", ["33554432", "32768K", "32M", "1G", "1g"])
def test_sizes_have_units(tmp_path: Path, size: str) -> None:
    done = called("--memory", size, "--disk", "1M", "--image", "nobody", tmp_path=tmp_path)
    assert "nobody" in done.stderr  # it came as far as the image


def test_a_variable_that_is_no_name_is_told_without_its_value(tmp_path: Path) -> None:
    done = called("--env", "MY-TOKEN=secret-value", tmp_path=tmp_path)
    assert "MY-TOKEN" in done.stderr
    assert "secret-value" not in done.stderr


def test_a_launch_that_never_was_is_an_object_too(tmp_path: Path) -> None:
    # Its code is what the command returns, and `main` ends with.
    done = CliRunner().invoke(
        run, ["-o", "json", "--state-dir", str(tmp_path), "--image", "no\x9bbody", "--", "true"], standalone_mode=False
    )
    assert done.return_value == 125
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["id"], answer["untrusted_exit_code"]) == ("launch_error", None, None)
    assert "no" in answer["detail"]
    assert "\x9b" not in done.output


def test_the_object_that_the_page_shows_has_the_fields_of_the_real_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "run-untrusted-code.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert list(shown) == list(_told(Launched(id="x", result=result.Result(outcome=result.Outcome.EXITED))))
