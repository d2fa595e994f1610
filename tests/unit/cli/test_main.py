"""The command line as a whole: lazy, quick, and with one form for every fault."""

import importlib
import os
import subprocess
import sys

import click
import pytest

from tidegate.cli import main as front
from tidegate.cli.main import cli, main, report
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import TidegateError

HEAVY = ("mitmproxy", "aiohttp", "cryptography", "asyncio", "yaml", "msgspec", "dns")


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tidegate", *words],
        env={**os.environ}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["session", "--help"], ["exec", "--help"], ["up", "--help"]]
)
def test_saying_what_it_is_loads_nothing_heavy(words: list[str]) -> None:
    done = _python(*words)
    assert done.returncode == 0
    loaded = {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert not loaded & set(HEAVY)


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("tidegate 0.")


def test_a_misspelt_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["polcy"])
    assert "did you mean policy?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(front._COMMANDS))
def test_every_listed_command_is_there_and_its_help_has_an_example(name: str) -> None:
    module, _, attribute = front._COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    todo = [command]
    while todo:
        one = todo.pop()
        if isinstance(one, click.Group):
            todo += one.commands.values()
        assert "Example" in (one.help or ""), one.name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["nope"], 2, id="an unknown command"),
        pytest.param(["up", "--nope"], 2, id="an unknown option"),
        pytest.param(["session", "new"], 2, id="a missing option"),
        pytest.param(["health", "--state-dir", "/nonexistent"], 1, id="no gate"),
        pytest.param(["up", "-c", "/nonexistent.yaml"], 2, id="no file"),
        pytest.param(["policy", "check", "/nonexistent.yaml"], 2, id="no file to check"),
        pytest.param(["session", "list", "-c", "/nonexistent.yaml"], 2, id="no file of a gate"),
        pytest.param(["log", "--dir", "/nonexistent"], 2, id="no folder"),
    ],
)
def test_exit_codes(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.cli.up._re_execute", lambda: None)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err


def test_a_fault_says_what_where_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    report(TidegateError("the thing broke", where="file:3", hint="mend it"))
    assert capsys.readouterr().err == "tidegate: error: file:3: the thing broke\n  mend it\n"


def test_every_problem_of_a_file_has_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    report(ConfigErrors([Problem("t.yaml", 3, "a", "one"), Problem("t.yaml", 9, "b", "two")]))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["tidegate: error: t.yaml:3: a: one", "tidegate: error: t.yaml:9: b: two"]


@pytest.mark.parametrize(
    ("fault", "words", "said"),
    [
        pytest.param(ZeroDivisionError("x"), [], "internal fault: ZeroDivisionError", id="a defect in one line"),
        pytest.param(TidegateError("no"), [], "error: no", id="a fault in one line"),
    ],
)
def test_a_traceback_only_with_v(
    fault: Exception, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command("health")
    def broken() -> None:
        raise fault

    monkeypatch.setattr("tidegate.cli.health.health", broken)
    with pytest.raises(SystemExit) as end:
        main(["health"])
    assert end.value.code == 1
    assert said in capsys.readouterr().err
    with pytest.raises(type(fault)):
        main(["-v", "health"])


def test_a_reader_that_leaves_is_no_fault() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m tidegate doctor --state-dir /tmp -o json | head -c 1"],
        env={**os.environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_group_lists_what_it_has() -> None:
    assert cli.list_commands(click.Context(cli)) == sorted(front._COMMANDS)
