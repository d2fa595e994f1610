"""`tidegate sandbox`: a sandbox that a process of its own keeps, asked by the real command line."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sdk import API, FETCH, folders
from tests.integration.test_sdk import running as running
from tests.integration.test_sdk import state as state
from tests.lab.box import leftovers
from tests.lab.gate import Gate, environment, tidegate_command
from tests.lab.roots import why_no_gvisor
from tidegate.cli.sandbox_process import names
from tidegate.errors import LaunchError
from tidegate_launcher.kept.wire import Command, Question, answered, asked
from tidegate_launcher.readiness import is_readable

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")


def tidegate(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tidegate_command("sandbox", *words), env=environment(), capture_output=True, text=True, timeout=60, check=False,
        **more,
    )  # fmt: skip


def told(*words: str, **more: Any) -> Any:
    done = tidegate(*words, "-o", "json", **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def process_of(name: str) -> int:
    return int(names()._lock_file(name).read_text().split()[0])


@pytest.fixture
def name(state: Path) -> Iterator[str]:
    """A sandbox that stands; afterwards nothing of it does."""
    one = f"t-{os.getpid()}-{os.urandom(3).hex()}"
    done = tidegate("new", "--state-dir", str(state), "--name", one)
    assert (done.returncode, done.stdout) == (0, f"{one}\n"), done.stderr
    pid = process_of(one)
    try:
        yield one
    finally:
        tidegate("rm", one)
        assert not names().is_taken(one)
        assert leftovers(pid) == []
        assert folders(pid) == []
        assert not [path for path in names()._folder.iterdir() if path.stem == one]


def test_commands_share_it_until_a_reset(name: str) -> None:
    done = tidegate("exec", name, "--", "sh", "-c", "cat >/work/file; echo out; echo err >&2; exit 3", input="given\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert tidegate("exec", name, "cat", "/work/file").stdout == "given\n"
    before = told("list")
    assert [(one["state"], one["session"]) for one in before if one["name"] == name] == [("ready", None)]
    assert tidegate("reset", name).returncode == 0
    assert tidegate("exec", name, "--", "cat", "/work/file").returncode == 1
    (after,) = [one for one in told("list") if one["name"] == name]
    assert after["id"] not in [one["id"] for one in before]


def test_what_came_of_it_as_one_object(name: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("x")
    done = tidegate(
        "exec", "-o", "json", "--time", "1", "--in", "given", "--out", "out", "--env", "A=b", name,
        "--", "sh", "-c", "cp /in/given /work/taken; echo $A; sleep 100", cwd=tmp_path,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert (done.returncode, said["outcome"], said["untrusted_stdout"]) == (0, "timeout", "b\n")
    assert (tmp_path / "out" / "taken").read_text() == "x"
    assert tidegate("exec", "--time", "1", name, "--", "sleep", "100").returncode == 124
    assert tidegate("exec", name, "--", "nothing-of-that-name").returncode == 125


def test_a_reader_who_leaves_ends_the_command_and_not_the_sandbox(name: str) -> None:
    with subprocess.Popen(
        tidegate_command("sandbox", "exec", name, "--", "sh", "-c", "echo on; exec sleep 1000"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        assert [one["state"] for one in told("list") if one["name"] == name] == ["busy"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert tidegate("exec", name, "--", "sh", "-c", "echo on; cat /proc/[0-9]*/comm").stdout.count("sleep") == 0


def test_one_that_is_still_made_hides_no_other_from_the_list(name: str) -> None:
    with names().claim(f"{name}-next"):
        states = {one["name"]: one["state"] for one in told("list")}
        assert (states[name], states[f"{name}-next"]) == ("ready", "starting")
        assert re.search(rf"{name}-next +starting", tidegate("list").stdout)
    assert f"{name}-next" not in [one["name"] for one in told("list")]


def test_who_has_to_wait_is_told_for_what(name: str) -> None:
    with subprocess.Popen(
        tidegate_command("sandbox", "exec", name, "--", "sh", "-c", "echo on; exec sleep 3"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        done = tidegate("exec", name, "--", "echo", "next")
        assert (done.returncode, done.stdout) == (0, "next\n")
        assert done.stderr == f"tidegate: {name} works on another command: waiting for its end\n"
        assert process.wait(20) == 0
    assert tidegate("exec", name, "--", "true").stderr == ""


def test_a_busy_one_is_ended_at_once(name: str) -> None:
    with subprocess.Popen(
        tidegate_command("sandbox", "exec", name, "--", "sh", "-c", "echo on; exec sleep 1000"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        begun = time.monotonic()
        assert tidegate("rm", name).returncode == 0
        assert time.monotonic() - begun < 10
        assert process.wait(20) == 125
        assert process.stderr is not None
        assert b"ended before it answered" in process.stderr.read()


def test_one_whose_process_was_killed_leaves_a_free_name(name: str, state: Path) -> None:
    pid = process_of(name)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while leftovers(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert name not in [one["name"] for one in told("list")]
    done = tidegate("new", "--state-dir", str(state), "--name", name)
    assert done.returncode == 0, done.stderr
    assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"
    assert folders(pid) == []


def test_it_ends_when_nobody_asks_for_long_enough(state: Path) -> None:
    one = told("new", "--state-dir", str(state), "--idle", "1")
    end = time.monotonic() + 15
    while names().is_taken(one["name"]):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("exec", "nobody", "--", "true"), 125, "no such sandbox"),
        (("exec", "-o", "json", "nobody", "--", "true"), 125, "no such sandbox"),
        (("reset", "nobody"), 1, "no such sandbox"),
        (("rm", "nobody"), 1, "no such sandbox"),
        (("rm", "../../etc"), 1, "no name for a sandbox"),
        (("exec", "a/b", "--", "true"), 125, "no name for a sandbox"),
        (("exec", "\x1b[31mred", "--", "true"), 125, "no name for a sandbox"),
        (("exec", "nobody", "-o", "json", "--", "true"), 2, "comes before the name"),
        (("exec", "nobody", "--"), 2, "no command"),
        (("new", "--state-dir", "/nonexistent"), 1, "there is no image"),
        (("new", "--credential", "x"), 2, "needs a --policy"),
        (("new", "--memory", "1K"), 2, "so little memory"),
        (("new", "--name", "UPPER"), 1, "no name for a sandbox"),
        (("new", "--image", "none-of-that-name"), 1, "image"),
    ],
)
def test_bad_input(words: tuple[str, ...], code: int, said: str) -> None:
    done = tidegate(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("/nonexistent").exists()


def test_a_name_is_given_once(name: str, state: Path) -> None:
    done = tidegate("new", "--state-dir", str(state), "--name", name)
    assert done.returncode == 1
    assert f"named {name} already" in done.stderr
    assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"


@pytest.mark.parametrize("said", [b"", b"\xff" * 4, b"\0\0\0\4abcd", b"\0\0\0\1\x80", b"\0"])
def test_nonsense_on_its_socket_is_answered_and_not_acted_on(name: str, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(names().socket(name)))
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(20)
        sock.recv(1000)
    assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"


def test_input_that_cannot_be_read_is_none(name: str) -> None:
    with open(os.devnull, "wb") as nothing:
        done = tidegate("exec", name, "--", "sh", "-c", "cat; echo on", stdin=nothing)
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr
    assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"


@pytest.mark.parametrize("shut", ["<&-", "3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null 8</dev/null"])
def test_one_is_made_whatever_descriptors_there_are(state: Path, shut: str) -> None:
    words = [*tidegate_command("sandbox", "new"), "--state-dir", str(state)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shut}', "-", *words], env=environment(), capture_output=True, text=True, timeout=60,
        check=False, close_fds=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tidegate("rm", done.stdout.strip()).returncode == 0


def test_a_reader_who_stands_still_holds_up_no_other_once_he_is_gone(name: str) -> None:
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(
            tidegate_command("sandbox", "exec", name, "--", "head", "-c", "4000000", "/dev/zero"),
            env=environment(), stdout=writing, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert is_readable(reading, 20)
            process.kill()
        assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_who_never_comes_to_an_end_of_his_question_holds_up_no_other(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(names().socket(name)))
        sock.sendall(b"\0\0\1\0")
        over = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(2):
                    sock.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            begun = time.monotonic()
            assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"
            assert time.monotonic() - begun < 15
        finally:
            over.set()
            thread.join()


def test_one_that_is_being_made_keeps_nobody_from_the_list(name: str) -> None:
    with names().claim(f"{name}-2"):
        states = {one["name"]: one["state"] for one in told("list")}
    assert (states[name], states[f"{name}-2"]) == ("ready", "starting")


def test_who_asks_and_does_not_listen_holds_up_no_other(name: str) -> None:
    command = Command(argv=("head", "-c", "4000000", "/dev/zero"), passes=False)
    with (
        open(os.devnull, "r+b", buffering=0) as nothing,
        asked(names().socket(name), Question(act="exec", command=command), [nothing.fileno()] * 3),
    ):
        assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"


def test_a_reader_who_has_enough_ends_the_command_and_not_the_sandbox(name: str) -> None:
    tidegate("exec", name, "--", "sh", "-c", "echo here >/work/file")
    words = tidegate_command("sandbox", "exec", name, "--", "yes")
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "-", *words], env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout == "y\n"
    assert tidegate("exec", name, "--", "cat", "/work/file").stdout == "here\n"


@pytest.mark.parametrize("act", ["about", "reset", "rm", "exec"])
def test_a_question_of_two_meanings_is_answered_as_one(name: str, act: Any) -> None:
    question = Question(act=act, command=Command(argv=("echo", "on")))
    with asked(names().socket(name), question) as sock, contextlib.suppress(LaunchError):
        sock.settimeout(30)
        answered(sock)
    if act != "rm":
        assert tidegate("exec", name, "--", "echo", "on").stdout == "on\n"


def test_behind_the_gate(running: Gate) -> None:
    one = told("new", "--state-dir", str(running.state), "--policy", "default", "--credential", "api")
    try:
        for _ in range(2):
            done = tidegate("exec", one["name"], "--", "python3", "-c", FETCH, f"https://{API}/")
            assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
        again = told("reset", one["name"])
        assert again["session"] not in (None, one["session"])
        assert tidegate("exec", one["name"], "--", "python3", "-c", FETCH, f"https://{API}/").stdout == "200\n"
    finally:
        tidegate("rm", one["name"])
    live = json.loads(running.cli("session", "list", "-o", "json").stdout)
    assert again["session"] not in [view["id"] for view in live]
