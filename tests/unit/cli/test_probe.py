"""`tidegate probe`: what it runs where, what it makes of what comes back, and the card."""

import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidegate.cli.main import cli
from tidegate.cli.probe import entry, patience
from tidegate.errors import LaunchError
from tidegate_launcher.probe import KINDS, MOST, NEW_A_SECOND, SECONDS, THREADS, card, last_ways, run, ways
from tidegate_launcher.wall import link

ENGINE = """#!/bin/sh
echo "$(basename "$0") $@" >> "{log}"
case "$1" in
  container) {knows};;
  exec) {run};;
esac
"""
REPORT = {
    "version": 1, "verdict": "closed", "seconds": 1.0, "count": {"closed": 1, "open": 0, "not testable": 0},
    "ways": [{"kind": "host", "way": "TCP 22 of the gateway 10.0.0.1", "state": "closed", "evidence": "timed out"}],
}  # fmt: skip
SAID = "it answered: \033[2Jx"
RED = {
    **REPORT, "verdict": "open", "count": {"closed": 1, "open": 2, "not testable": 1},
    "ways": [
        *REPORT["ways"],  # type: ignore[misc]
        {"kind": "host", "way": "TCP 80 of the gateway 10.0.0.1", "state": "open", "evidence": SAID},
        {"kind": "host", "way": "TCP 8000 of the gateway 10.0.0.1", "state": "open", "evidence": SAID},
        {"kind": "name", "way": "no Host, tunnel", "state": "not testable", "evidence": "no allowed name"},
    ],
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what puts a program in place of a container engine; it notes what it was called with."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(name: str, *, knows: bool = True, run: str = "exit 0") -> Path:
        log = tmp_path / "log"
        program = tmp_path / name
        program.write_text(ENGINE.format(log=log, knows=f"exit {0 if knows else 1}", run=run))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return log

    return put


def saying(report: dict[str, Any], code: int) -> str:
    return f"cat > /dev/null; printf '%s' '{json.dumps(report)}'; exit {code}"


def test_a_container_is_entered_with_its_own_python_and_the_program_on_stdin(engine: Any) -> None:
    log = engine("docker", run=saying(REPORT, 0))
    options = [
        "--allowed",
        "api.test/x",
        "--proxy",
        "http://10.0.0.1:8080",
        "--flood",
        "--only",
        "host",
        "--only",
        "dns",
    ]
    done = CliRunner().invoke(cli, ["probe", "--in", "box", "-o", "json", *options], standalone_mode=False)
    assert (done.return_value, json.loads(done.stdout)) == (0, REPORT)
    assert log.read_text().splitlines()[-1] == (
        "docker exec -i box python3 - --json --allowed=api.test/x --proxy=http://10.0.0.1:8080 --flood --only host dns"
    )


def test_the_program_that_comes_in_is_the_whole_of_it(engine: Any, tmp_path: Path) -> None:
    engine("docker", run=f"cat > {tmp_path}/came; echo '{json.dumps(REPORT)}'; exit 0")
    CliRunner().invoke(cli, ["probe", "--in", "box"], standalone_mode=False)
    emitted = CliRunner().invoke(cli, ["probe", "--emit"], standalone_mode=False).stdout
    assert (tmp_path / "came").read_text() == emitted
    assert emitted.endswith("sys.exit(main())\n")


def test_the_engine_that_knows_the_container_runs_it(engine: Any, tmp_path: Path) -> None:
    engine("docker", knows=False)
    engine("podman")
    assert entry("box") == [str(tmp_path / "podman"), "exec", "-i", "box", "python3"]


@pytest.mark.parametrize("place", ["box", "../../tmp", "/tmp", "."])
def test_a_place_that_nobody_knows_is_told(engine: Any, place: str) -> None:
    engine("docker", knows=False)
    engine("podman", knows=False)
    with pytest.raises(LaunchError, match="no container of that name"):
        entry(place)


def test_a_red_probe_exits_one(engine: Any) -> None:
    engine("docker", run=saying(RED, 1))
    assert CliRunner().invoke(cli, ["probe", "--in", "box"], standalone_mode=False).return_value == 1


@pytest.mark.parametrize(
    ("run", "hint"),
    [
        pytest.param("exit 127", "it needs python3 inside", id="no python"),
        pytest.param("echo gone >&2; exit 1", "the lines above say why", id="stopped"),
        pytest.param("echo '{}'; exit 0", "the lines above say why", id="no report"),
        pytest.param("exit 0", "the lines above say why", id="nothing"),
    ],
)
def test_a_probe_that_did_not_run_is_a_fault_and_never_closed(engine: Any, run: str, hint: str) -> None:
    engine("docker", run=f"cat > /dev/null; {run}")
    done = CliRunner().invoke(cli, ["probe", "--in", "box"], standalone_mode=False)
    assert isinstance(done.exception, LaunchError)
    assert hint in done.exception.hint


def test_a_probe_that_does_not_end_is_told_with_what_to_do(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine("docker", run="exec sleep 20")
    monkeypatch.setattr("tidegate.cli.probe._START_SECONDS", 0.2)
    monkeypatch.setattr("tidegate.cli.probe._WAITS", 1)
    done = CliRunner().invoke(cli, ["probe", "--in", "box", "--seconds", "0.1"], standalone_mode=False)
    assert isinstance(done.exception, LaunchError)
    assert "did not end within 0.3 s" in str(done.exception)
    assert "--seconds" in done.exception.hint
    assert "--only" in done.exception.hint


@pytest.mark.parametrize("seconds", [None, 0.1, 2, 30])
def test_the_longest_wait_for_each_answer_leaves_time_to_wait_for_all(seconds: float | None) -> None:
    """A way waits for a connection, a handshake and an answer, or for a good request before; each takes its turn."""
    turns = math.ceil(len([*ways()]) / THREADS)
    assert patience(seconds) > 4 * turns * (SECONDS if seconds is None else seconds)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--in", "box", "--only", "nonsense"], ["--in", "box", "--seconds", "0"]],
    ids=["none", "kind", "0"],
)
def test_wrong_usage_is_told_before_anything_runs(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["probe", *arguments]).exit_code == 2


def test_the_card_fits_and_ends_with_what_is_open() -> None:
    text = card(RED, 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\033" not in text
    assert "TCP 80, 8000 of the gateway 10.0.0.1" in text
    assert text.splitlines()[-1] == "2 open: this sandbox has a way out besides the gate (exit code 1)."
    assert re.search(r"^host +1 +2 +-$", text, re.MULTILINE)
    assert "of 1 nothing was proved" in text
    assert card(REPORT).splitlines()[-1] == "Nothing is open (exit code 0)."


def test_the_report_is_what_its_page_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "probe.md").read_text()
    report = run(("ambient",), lambda done, whole: None)
    assert set(report) == set(re.findall(r"^\| `(\w+)` \|", page.partition("## JSON")[2], re.MULTILINE))
    for key in (*report["count"], *report["ways"][0]):
        assert f"`{key}`" in page


def test_the_floods_are_measured_by_the_walls_own_bounds() -> None:
    assert (MOST, NEW_A_SECOND) == (link._MOST_CONNECTIONS, link._NEW_A_SECOND)


def test_colour_is_for_terminals() -> None:
    assert "\033[1;31m" in card(RED, 80, colour=True)


def test_each_kind_has_ways_and_each_way_a_kind_and_a_name_of_its_own() -> None:
    every = [*ways(), *last_ways()]
    assert {way.kind for way in every} == set(KINDS)
    names = [(way.kind, way.name) for way in every]
    assert len(names) == len(set(names))


def _pythons() -> list[str]:
    """Return this Python and every other one from 3.8 that is here."""
    named = (shutil.which(f"python3.{minor}") for minor in range(8, 13))
    works = [path for path in named if path and not subprocess.run([path, "-V"], capture_output=True).returncode]
    return [sys.executable, *works]


@pytest.mark.parametrize("python", _pythons(), ids=os.path.basename)
def test_it_runs_on_any_python_that_is_here(python: str) -> None:
    """Its syntax is held by another test; this is for what an old library has not."""
    program = CliRunner().invoke(cli, ["probe", "--emit"], standalone_mode=False).stdout
    done = subprocess.run(
        [python, "-I", "-", "--json", "--seconds", "0.2", "--only", "unix", "name", "link", "icmp"],
        input=program, capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert not done.stderr
    assert not [way for way in json.loads(done.stdout)["ways"] if "fault of the probe" in way["evidence"]]


def test_a_namespace_that_one_may_not_enter_is_told_with_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "box").touch()
    (tmp_path / "status").write_text("CapEff: 000001ffffdfffff\n")
    monkeypatch.setattr("tidegate.cli.probe._NAMESPACES", tmp_path)
    monkeypatch.setattr("tidegate_launcher.privilege._STATUS", tmp_path / "status")
    done = CliRunner().invoke(cli, ["probe", "--in", "box"], standalone_mode=False)
    assert isinstance(done.exception, LaunchError)
    assert (done.exception.where, done.exception.hint) == ("box", "this needs root, or CAP_SYS_ADMIN")
    assert "Operation not permitted" in done.exception.what
