"""How launches are broken off, and that nothing of them is left: signals, readers that leave, kills at any point."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.up import every
from tests.lab.doors import within
from tests.lab.folder import open_folder
from tests.lab.gate import Gate, configuration, gate
from tests.lab.launching import Launching, left_by
from tests.lab.roots import why_no_gvisor

pytestmark = [
    pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}"),
    pytest.mark.timeout(180),
]

NET = ["--policy", "default"]


@pytest.fixture(scope="module")
def tool() -> Iterator[Launching]:
    with gate(configuration()) as running:
        tool = Launching(running)
        tool.import_root()
        yield tool


def sessions(running: Gate) -> list[str]:
    return [view["id"] for view in running.admin("GET", "/v1/sessions")[1]["sessions"]]


def up(process: subprocess.Popen[bytes]) -> None:
    """Wait until the command in the sandbox has said that it is up."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_sandbox_and_leaves_nothing(tool: Launching, number: signal.Signals) -> None:
    with tool.started("sh", "-c", "trap '' TERM INT HUP; echo up; sleep 600", options=NET) as process:
        up(process)
        process.send_signal(number)
        process.send_signal(number)  # an impatient user's
        assert process.wait(10) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == f"tidegate: ended by {number.name}\n".encode()
    assert left_by({process.pid}) == []
    ended = tool.gate.audit(type="launch")[-1]
    assert (ended["launch"]["act"], ended["launch"]["outcome"]) == ("end", "interrupted")
    assert within(3, lambda: sessions(tool.gate) == [])


def test_a_signal_is_not_kept_waiting_by_a_gate_that_hangs(tool: Launching) -> None:
    gate = tool.gate.process.pid
    os.kill(gate, signal.SIGSTOP)
    try:
        with tool.started("true", options=NET) as process:
            # It waits for the gate: its doors are on their way there.
            assert within(20, lambda: _asks(process.pid))
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 128 + signal.SIGTERM
            assert time.monotonic() - begun < 5
    finally:
        os.kill(gate, signal.SIGCONT)
    assert left_by({process.pid}) == []
    assert within(5, lambda: sessions(tool.gate) == [])


def _asks(pid: int) -> bool:
    """Tell whether a launcher is in a connection to the gate, and its sandbox' place stands."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # one that was closed meanwhile
            if os.readlink(path).endswith("/go"):
                return True
    return False


@pytest.mark.parametrize("most", [14, 20, 24, 30])
def test_too_few_descriptors_are_told_with_what_to_do(tool: Launching, most: int) -> None:
    done = subprocess.run(
        ["prlimit", f"--nofile={most}", "--", *tool.command("echo", "ran", options=NET)],
        env=tool.environment, cwd=tool.gate.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"Too many open files" in done.stderr
    assert b"see stdin, stdout" not in done.stderr
    assert within(5, lambda: sessions(tool.gate) == [])


def test_a_reader_that_leaves_ends_the_sandbox(tool: Launching) -> None:
    with tool.started("sh", "-c", "echo up; yes", options=NET) as process:
        up(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(15) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert left_by({process.pid}) == []
    assert tool.gate.audit(type="launch")[-1]["launch"]["outcome"] == "interrupted"


def test_its_time_runs_out_also_while_nobody_reads(tool: Launching) -> None:
    flood = "echo up; head -c 1000000 /dev/zero; sleep 600"
    with tool.started("sh", "-c", flood, options=[*NET, "--time", "1"]) as process:
        up(process)

        def ended() -> bool:
            return tool.gate.audit(type="launch")[-1]["launch"]["outcome"] == "timeout"

        assert within(8, ended)
        assert process.poll() is None  # it waits with what it has to say, as any program does
        assert process.stdout is not None
        assert len(process.stdout.read()) == 1_000_000
        assert process.wait(10) == 124


def test_a_gate_that_ends_takes_no_result_for_granted(tool: Launching) -> None:
    """What cannot be put on record is a fault of ours, not a success."""
    with gate(configuration()) as other:
        images = tool.gate.state / "images"
        subprocess.run(["cp", "-al", str(images), str(other.state / "images")], check=True)
        second = Launching(other)
        with second.started("sh", "-c", "echo up; cat; exit 0", options=NET) as process:
            up(process)
            other.terminate()
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(20) == 125
        assert left_by({process.pid}) == []


def test_a_command_that_ran_is_told_as_one_that_ran_whatever_fails_after_it(tool: Launching) -> None:
    """Or who asked would have it run again, and could look nowhere for what it did."""
    with gate(configuration()) as other:
        subprocess.run(["cp", "-al", str(tool.gate.state / "images"), str(other.state / "images")], check=True)
        options = [*NET, "-o", "json", "--out", str(other.folder / "out")]
        with Launching(other).started("sh", "-c", "echo did >r; cat; exit 7", options=options) as process:
            assert within(20, lambda: bool(other.audit(type="launch")))
            other.terminate()
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(20) == 125
            assert process.stdout is not None
            told = json.loads(process.stdout.read())
        assert (told["outcome"], told["untrusted_exit_code"]) == ("exited", 7)
        assert told["outputs"]["untrusted_paths"] == ["r"]
        assert told["id"]
        assert "the gate closed the connection" in told["faults"][0]


@pytest.mark.parametrize("boundary", ["gvisor", "bubblewrap"])
def test_outputs_that_have_no_room_are_told_beside_the_result(tool: Launching, boundary: str) -> None:
    with open_folder() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
        try:
            options = ["--boundary", boundary, "--out", str(folder / "out")]
            told = tool.told("sh", "-c", "head -c 3000000 /dev/zero >b; exit 3", options=options, code=125)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    assert (told["outcome"], told["untrusted_exit_code"]) == ("exited", 3)
    assert "No space left" in told["faults"][0]


def test_a_place_without_room_is_told_before_anything_runs(tool: Launching) -> None:
    """What cannot be said for want of room would pass for the command's own words."""
    small = 'mount -t tmpfs -o size=4m,mode=0700 tmpfs /run/tidegate-launch && exec "$@"'
    command = tool.command("echo", "ran", options=["-o", "json"])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mkdir -p /run/tidegate-launch; {small}", "sh", *command],
        env=tool.environment, cwd=tool.gate.folder, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 125
    assert json.loads(done.stdout)["outcome"] == "launch_error"
    assert b"no room for a launch" in done.stderr


@pytest.mark.parametrize("boundary", ["gvisor", "bubblewrap"])
def test_a_shim_that_is_killed_is_told(tool: Launching, boundary: str) -> None:
    kill = "kill -9 $PPID; sleep 5"
    told = tool.told("sh", "-c", kill, options=[*NET, "--net", "uds", "--boundary", boundary])
    assert told["untrusted_exit_code"] == 137
    assert "the shim was ended" in told["detail"]


def _held(running: Gate) -> dict[int, int]:
    """Return how many descriptors each process of the gate has: doors, leases, namespaces."""
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (running.process.pid, *every(running))}


def test_S_19_of_many_launches_with_a_third_killed_at_any_point_nothing_is_left(tool: Launching) -> None:
    dice = random.Random(19)
    assert tool.run("true", options=NET).returncode == 0
    assert within(5, lambda: sessions(tool.gate) == [])
    held = _held(tool.gate)
    before = {line["launch"]["id"] for line in tool.gate.audit(type="launch")}
    pids, codes = set(), []
    for number in range(20):
        with tool.started("sh", "-c", "echo x >/work/x; exit 7", options=NET) as process:
            pids.add(process.pid)
            if number % 3 == 0:
                try:
                    process.wait(dice.uniform(0.05, 0.7))
                except subprocess.TimeoutExpired:
                    process.kill()
            codes.append(process.wait(20))
    assert codes.count(-9) >= 3  # or nothing was shown
    assert set(codes) <= {7, -9}
    with tool.started("true", options=NET) as last:
        assert last.wait(20) == 0
    pids.add(last.pid)
    assert within(5, lambda: left_by(pids) == []), left_by(pids)
    assert within(5, lambda: sessions(tool.gate) == [])
    # A door is a socket in a landing: while the gate has one, its namespace and link are there.
    assert within(5, lambda: all(now <= held[pid] for pid, now in _held(tool.gate).items())), (held, _held(tool.gate))
    told = tool.gate.audit(type="launch")
    begun = {line["launch"]["id"] for line in told if line["launch"]["act"] == "start"}
    ended = {line["launch"]["id"] for line in told if line["launch"]["act"] == "end"}
    assert len(begun - ended - before) <= codes.count(-9)
    assert tool.gate.cli("audit", "verify").returncode == 0
