"""`exec`'s own part: the command's end is ours, its signals are not lost, its environment is what was given."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli.env import print_env
from tidegate.cli.exec import run
from tidegate.errors import LaunchError, TidegateError

RUN = "import os, sys; from tidegate.cli.exec import run; sys.exit(run(('sh', '-c', sys.argv[1]), dict(os.environ)))"
ENV = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(("true",), 0, id="success"),
        pytest.param(("sh", "-c", "exit 42"), 42, id="a code"),
        pytest.param(("sh", "-c", "kill -KILL $$"), 137, id="SIGKILL"),
        pytest.param(("sh", "-c", "kill -INT $$"), 130, id="SIGINT"),
    ],
)
def test_the_code_is_the_commands(command: tuple[str, ...], code: int) -> None:
    assert run(command, ENV) == code


@pytest.mark.parametrize("command", ["/no/such", "no-such-command", "/etc/passwd", "/tmp"])
def test_what_cannot_run_is_a_fault_of_ours(command: str) -> None:
    with pytest.raises(LaunchError, match="cannot run the command"):
        run((command,), ENV)


def test_the_command_gets_this_environment_and_no_other(tmp_path: Path) -> None:
    out = tmp_path / "env"
    assert run(("sh", "-c", f"env > {out}"), {**ENV, "ONLY": "this"}) == 0
    names = {line.partition("=")[0] for line in out.read_text().splitlines()}
    assert names <= {"PATH", "ONLY", "PWD", "SHLVL", "_", "OLDPWD"}
    assert "ONLY=this" in out.read_text()


def test_the_command_does_not_inherit_our_signal_mask(tmp_path: Path) -> None:
    out = tmp_path / "status"
    assert run(("sh", "-c", f"grep -E 'SigBlk|SigIgn' /proc/self/status > {out}"), ENV) == 0
    masks = dict(line.split(":\t") for line in out.read_text().splitlines())
    assert int(masks["SigBlk"], 16) == 0
    assert int(masks["SigIgn"], 16) & 1 << (signal.SIGPIPE - 1) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_from_a_process_is_passed_on(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'exit 9' {name}; echo up; while :; do sleep 0.02; done"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, script],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(10) == 9


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("sh", "export A='x y'\"'\"'; rm -rf /'\nexport B=2\n"),
        ("dotenv", "A=x y'; rm -rf /\nB=2\n"),
        ("json", '{\n  "A": "x y\'; rm -rf /",\n  "B": "2"\n}\n'),
    ],
)
def test_an_environment_is_printed_so_that_its_reader_gets_the_values(
    form: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_env({"env": {"A": "x y'; rm -rf /", "B": "2"}}, form)
    assert capsys.readouterr().out == text


def test_an_answer_without_an_environment_is_a_fault() -> None:
    with pytest.raises(TidegateError):
        print_env({"env": None}, "sh")
