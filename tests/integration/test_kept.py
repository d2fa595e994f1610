"""Sandboxes that are kept for several commands, with a reset between."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sdk import API, FETCH, SECRET, folders
from tests.integration.test_sdk import running as running
from tests.integration.test_sdk import state as state
from tests.lab.box import leftovers
from tests.lab.gate import Gate
from tests.lab.roots import unpacked_root, why_no_gvisor
from tidegate.errors import LaunchError
from tidegate.sdk import AsyncSandbox, KeptSandbox, Limits, Outcome, Run, Sandbox
from tidegate.sdk.command import Command
from tidegate_launcher.lease import Lease

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

PLACES = ("/work", "/tmp", "/dev/shm", "/in", "/tidegate", "/opt", "/", "/home", "/var/tmp", "/run")


@pytest.fixture
def kept(state: Path) -> Iterator[KeptSandbox]:
    with Sandbox(state=state) as sandbox, sandbox.keep() as one:
        yield one
    assert leftovers() == []
    assert folders() == []


def said(run: Run) -> str:
    assert run.outcome is Outcome.EXITED, (run.outcome, run.detail, run.untrusted_stderr)
    return run.untrusted_stdout.decode()


def shell(kept: KeptSandbox, code: str, **more: Any) -> Run:
    return kept.run(["sh", "-c", code], **more)


def test_files_stay_and_processes_do_not(kept: KeptSandbox) -> None:
    begun = time.monotonic()
    shell(
        kept, "echo here >/work/file; sleep 1000 & (setsid sleep 1000 &); (setsid sh -c 'trap \"\" TERM; sleep 999' &)"
    )
    assert time.monotonic() - begun < 5
    assert said(shell(kept, "cat /work/file; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).startswith("here\n")
    assert "sleep" not in said(shell(kept, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))


def test_streams_and_codes_are_the_commands(kept: KeptSandbox) -> None:
    run = kept.run(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"x" * 300_000)
    assert (run.untrusted_exit_code, run.untrusted_stdout, run.untrusted_stderr) == (7, b"x" * 300_000, b"err\n")
    run = kept.run(["sh", "-c", "kill -SEGV $$"])
    assert (run.outcome, run.untrusted_exit_code) == (Outcome.SIGNALED, 139)
    assert said(kept.run(["cat"])) == ""
    assert said(kept.run(["sh", "-c", "exec <&-; echo on"], stdin=b"y" * 5_000_000)) == "on\n"
    assert said(kept.run(["env"], environment={"ONE": "two words"})).count("ONE=two words\n") == 1
    assert "ONE=" not in said(kept.run(["env"]))


def test_what_a_command_sets_on_its_streams_is_over_with_it(kept: KeptSandbox) -> None:
    """Some programs leave them not to wait: the next one's output would be lost as soon as a pipe is full."""
    shell(kept, "python3 -c 'import os; [os.set_blocking(each, False) for each in (0, 1, 2)]'", stdin=b"x")
    run = shell(kept, "python3 -c 'import os; print([os.get_blocking(each) for each in (0, 1, 2)])'", stdin=b"x")
    assert said(run) == "[True, True, True]\n"


def test_two_threads_do_not_share_a_command(kept: KeptSandbox) -> None:
    begun = threading.Event()
    runs: list[Run] = []
    first = threading.Thread(
        target=lambda: runs.append(shell(kept, "echo one; sleep 1; ls /in", on_output=lambda *_: begun.set()))
    )
    first.start()
    assert begun.wait(20)
    for act in (lambda: kept.run(["echo", "two"]), kept.reset):
        with pytest.raises(LaunchError, match="one command at a time"):
            act()
    first.join()
    assert said(runs[0]) == "one\n"
    assert said(kept.run(["echo", "on"])) == "on\n"


def test_output_comes_as_it_is_written(kept: KeptSandbox) -> None:
    came: list[tuple[str, bytes, float]] = []
    kept.run(
        ["sh", "-c", "echo one; sleep 1; echo two >&2"],
        on_output=lambda stream, data: came.append((stream, data, time.monotonic())),
    )
    assert [(stream, data) for stream, data, _ in came] == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert came[1][2] - came[0][2] > 0.5


@pytest.mark.parametrize("argv", [["no-such-program"], ["/etc/passwd"], ["/work"]])
def test_a_missing_program_is_told_and_the_sandbox_stays(kept: KeptSandbox, argv: list[str]) -> None:
    run = kept.run(argv)
    assert (run.outcome, run.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert run.detail.startswith(f"{argv[0]}: ")
    assert said(kept.run(["echo", "on"])) == "on\n"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("sleep 1000", id="sleeps"),
        pytest.param("trap '' TERM INT HUP; while :; do :; done", id="deaf"),
        pytest.param("while :; do (setsid sleep 1000 &); done", id="forks"),
        pytest.param("kill -STOP $$", id="stopped"),
    ],
)
def test_what_runs_out_of_time_is_ended_and_the_sandbox_stays(kept: KeptSandbox, code: str) -> None:
    begun = time.monotonic()
    run = shell(kept, code, timeout=1)
    assert run.outcome is Outcome.TIMEOUT
    assert time.monotonic() - begun < 6
    assert said(kept.run(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"])).strip() in ("3", "4")


def test_a_flood_is_ended_and_the_sandbox_stays(state: Path) -> None:
    with Sandbox(state=state, limits=Limits(output_bytes=100_000)) as sandbox, sandbox.keep() as kept:
        run = kept.run(["yes"])
        assert (run.outcome, run.truncated, len(run.untrusted_stdout)) == (Outcome.OUTPUT_LIMIT, True, 100_000)
        assert said(kept.run(["echo", "on"])) == "on\n"


def test_memory_that_runs_out_takes_the_sandbox_and_a_reset_brings_another(state: Path) -> None:
    with Sandbox(state=state, limits=Limits(memory_bytes=128 << 20)) as sandbox, sandbox.keep() as kept:
        assert kept.run(["python3", "-c", "x = bytearray(400 << 20)"]).outcome is Outcome.OOM
        assert not kept.alive()
        with pytest.raises(LaunchError, match="has ended"):
            kept.run(["true"])
        kept.reset()
        assert said(kept.run(["echo", "on"])) == "on\n"
    assert leftovers() == []


def test_a_boundary_that_has_none_is_asked_for_none(state: Path) -> None:
    for ask in (Sandbox(state=state, boundary="bubblewrap", ahead=1), Sandbox(state=state, boundary="bubblewrap")):
        with pytest.raises(LaunchError, match="cannot enforce a sandbox that waits"), ask, ask.keep():
            pass


def test_no_command_reaches_the_first_process(kept: KeptSandbox) -> None:
    """It would end, or answer in the command's place that it is over, and go on behind our back."""
    attack = """
import ctypes, os
def attempt(what, *args):
    try: what(*args); print("done", what, args)
    except OSError as fault: print("no", fault.errno)
for number in (0, 1, 3, 4, 5, 6):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        if number > 2: attempt(os.open, f"/proc/1/fd/{number}", flags)
for signal in (9, 19, 15, 2): attempt(os.kill, 1, signal)
attempt(os.open, "/proc/1/mem", os.O_RDONLY)
attempt(os.write, 3, b"x"); attempt(os.write, 4, b"e\\0\\0\\0\\0")
attempt(os.setuid, 0); attempt(os.setgid, 0); attempt(os.setgroups, [0])
attempt(os.seteuid, 0)
print(open("/proc/self/status").read().split("CapEff:")[1].split()[0], os.getresuid(), os.getgroups())
"""
    lines = said(kept.run(["python3", "-c", attack])).splitlines()
    assert lines[-1] == "0000000000000000 (65534, 65534, 65534) []"
    assert [line for line in lines[:-1] if not line.startswith("no ")] == []
    assert said(kept.run(["echo", "on"])) == "on\n"


def test_S_04_the_filter_on_system_calls_holds_for_each_command(kept: KeptSandbox) -> None:
    code = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.unshare(0x10000000), ctypes.get_errno())"
    for _ in range(2):
        assert said(kept.run(["python3", "-c", code])) == "-1 1\n"


def test_the_limit_on_processes_holds_for_each_command(state: Path) -> None:
    code = """
import asyncio
import os
made = 0
try:
    while made < 100:
        if not os.fork(): os.read(os.pipe()[0], 1)
        made += 1
except OSError as fault: print(made, fault.errno)
"""
    with Sandbox(state=state, limits=Limits(pids=20)) as sandbox, sandbox.keep() as kept:
        for _ in range(2):
            assert said(kept.run(["python3", "-c", code])) == "19 11\n"


def test_inputs_and_outputs_are_each_commands_own(kept: KeptSandbox, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        run = kept.run(
            ["sh", "-c", f"ls /in; cat /in/{name} >/work/{name}.out"],
            inputs=[tmp_path / name],
            out=tmp_path / f"out-{name}",
        )
        assert said(run) == f"{name}\n"
        assert (tmp_path / f"out-{name}" / f"{name}.out").read_text() == name
    assert sorted(path.name for path in (tmp_path / "out-two").iterdir()) == ["one.out", "two.out"]
    assert said(kept.run(["ls", "/in"])) == ""
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    with pytest.raises(LaunchError, match="not followed"):
        kept.run(["true"], inputs=[link])
    assert said(kept.run(["echo", "on"])) == "on\n"


def test_a_command_for_another_sandbox_is_refused(kept: KeptSandbox) -> None:
    order = kept._order
    kept._order = lambda call: __import__("msgspec").structs.replace(order(call), net="veth")
    with pytest.raises(LaunchError, match="another sandbox"):
        kept.run(["true"])


def test_who_takes_no_output_any_more_ends_the_command_and_not_the_sandbox(kept: KeptSandbox) -> None:
    def nobody(*_: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        kept.run(["yes"], on_output=nobody)
    assert said(kept.run(["sh", "-c", "echo on; cat /proc/[0-9]*/comm"])).count("yes") == 0


def _mark(kept: KeptSandbox, mark: str) -> None:
    """Write a mark wherever anything can be written, by name, content and memory."""
    places = " ".join(PLACES)
    shell(
        kept,
        f"for at in {places}; do mkdir -p $at/{mark} 2>/dev/null; echo {mark} >$at/{mark}/x 2>/dev/null;"
        f" echo {mark} >$at/.{mark} 2>/dev/null; done; ln -s /etc /work/link-{mark}; mkfifo /tmp/fifo-{mark};"
        f" (setsid env MARK={mark} sleep 1000 &); hostname {mark}; echo {mark} >/proc/sys/kernel/hostname; true",
    )


def test_nothing_crosses_a_reset(kept: KeptSandbox) -> None:
    mark = f"mark{os.urandom(8).hex()}"
    _mark(kept, mark)
    look = f"grep -rl {mark} {' '.join(PLACES[:7])} 2>/dev/null; find / -name '*{mark}*' 2>/dev/null; hostname;"
    look += " cat /proc/[0-9]*/environ /proc/mounts /proc/net/unix 2>/dev/null | tr '\\0' '\\n'"
    before = shell(kept, look).untrusted_stdout.decode()
    for writable in ("/work", "/tmp", "/dev/shm"):
        assert f"{writable}/{mark}/x" in before, "the look finds what is there"
    kept.reset()
    assert mark not in shell(kept, look).untrusted_stdout.decode()


class TestBehindTheGate:
    def test_a_reset_rotates_session_placeholder_and_door(self, running: Gate) -> None:
        with Sandbox("default", credentials=["api"], state=running.state) as sandbox, sandbox.keep() as kept:
            first, old = kept.session, said(shell(kept, "echo $API_TOKEN")).strip()
            for _ in range(2):
                assert said(kept.run(["python3", "-c", FETCH, f"https://{API}/"])) == "200\n"
            kept.reset()
            assert kept.session != first
            assert said(shell(kept, "echo $API_TOKEN")).strip() != old
            assert said(kept.run(["python3", "-c", FETCH, f"https://{API}/"])) == "200\n"
            stale = kept.run(
                [
                    "sh",
                    "-c",
                    'API_TOKEN=$1; export API_TOKEN; exec python3 -c "$2" $3',
                    "-",
                    old,
                    FETCH,
                    f"https://{API}/",
                ]
            )
            assert said(stale) != "200\n"
        assert SECRET not in old
        notes = [one for one in running.audit(type="launch") if one["session"] == first]
        acts = [(one["launch"]["act"], one["launch"].get("outcome")) for one in notes]
        assert acts == [("start", None), ("end", "exited")] * 3 + [("reset", None)]
        running.wait_audit(
            lambda lines: any(line["session_event"]["act"] == "revoke" for line in lines), type="session", session=first
        )

    def test_a_session_that_was_revoked_begins_no_command(self, running: Gate) -> None:
        with Sandbox("default", state=running.state) as sandbox, sandbox.keep() as kept:
            assert said(kept.run(["echo", "on"])) == "on\n"
            running.cli("session", "revoke", kept.session)
            with pytest.raises(LaunchError, match="session"):
                kept.run(["true"])
            kept.reset()
            assert said(kept.run(["echo", "on"])) == "on\n"


def test_a_first_process_that_takes_no_order_is_ended_in_time(state: Path) -> None:
    """It is the image's own, and so a stranger's: what our limits are worth does not hang on it."""
    with unpacked_root() as root, Sandbox(state=state) as sandbox:
        program = root / "usr/bin/python3"
        program.unlink()
        program.write_text("#!/bin/sh\nprintf 'r\\0\\0\\0\\0' >&4\nexec sleep 1000\n")
        program.chmod(0o755)
        sandbox._root = root
        order = sandbox._order(Command.of(["echo", *["x" * 1000] * 120], timeout=1))
        begun = time.monotonic()
        with sandbox._kept(many=False) as one:
            assert one.become(order).result.outcome is Outcome.TIMEOUT
        with sandbox._kept(many=True) as one:
            assert one.run(order).result.outcome is Outcome.TIMEOUT
        assert time.monotonic() - begun < 20


class TestInAsyncio:
    async def test_commands_share_it_until_a_reset(self, state: Path) -> None:
        async with AsyncSandbox(state=state) as sandbox, sandbox.keep() as kept:
            await kept.run(["sh", "-c", "echo here >/work/file"])
            assert said(await kept.run(["cat", "/work/file"])) == "here\n"
            both = await asyncio.gather(*(kept.run(["sh", "-c", f"sleep 0.2; echo {n}"]) for n in range(2)))
            assert [said(run) for run in both] == ["0\n", "1\n"]
            await kept.reset()
            assert (await kept.run(["cat", "/work/file"])).untrusted_exit_code == 1
        assert leftovers() == []
        assert folders() == []

    async def test_what_is_cancelled_ends_the_command_and_not_the_sandbox(self, state: Path) -> None:
        async with AsyncSandbox(state=state) as sandbox, sandbox.keep() as kept:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(kept.run(["sleep", "1000"]), 0.5)
            assert kept.alive()
            async with kept.stream(["sh", "-c", "echo on; sleep 1000"]) as running:
                async for output in running:
                    assert output == ("stdout", b"on\n")
                    break
            assert said(await kept.run(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"])).strip() in ("3", "4")

    async def test_the_end_of_the_block_ends_what_runs(self, state: Path) -> None:
        begun = time.monotonic()
        async with AsyncSandbox(state=state) as sandbox:
            async with sandbox.keep() as kept:
                task = asyncio.create_task(kept.run(["sleep", "1000"]))
                await asyncio.sleep(0.5)
            with pytest.raises(LaunchError, match="cancelled"):
                await task
        assert time.monotonic() - begun < 15
        assert leftovers() == []

    async def test_some_made_ahead(self, state: Path) -> None:
        async with AsyncSandbox(state=state, ahead=2) as sandbox:
            runs = await asyncio.gather(*(sandbox.run(["echo", str(n)]) for n in range(4)))
        assert sorted(said(run) for run in runs) == ["0\n", "1\n", "2\n", "3\n"]
        assert leftovers() == []
        assert folders() == []


@pytest.mark.parametrize("act", ["sandbox", "kept"])
def test_a_command_that_is_broken_off_as_its_start_is_written_has_an_end_on_record(
    running: Gate, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A signal may come between the gate's record and its answer."""
    record = Lease.record

    def interrupted(lease: Lease, **fields: Any) -> None:
        record(lease, **fields)
        if fields["act"] == "start":
            raise KeyboardInterrupt

    with Sandbox("default", state=running.state) as sandbox, sandbox.keep() as kept:
        monkeypatch.setattr(Lease, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            (sandbox if act == "sandbox" else kept).run(["true"])
    told = [(line["launch"]["act"], line["launch"].get("outcome")) for line in running.audit(type="launch")[-2:]]
    assert told == [("start", None), ("end", "interrupted")]


def test_a_command_whose_start_was_not_answered_is_refused_on_record(
    running: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate may have written the start all the same, and nothing has run."""
    record = Lease.record

    def unanswered(lease: Lease, **fields: Any) -> None:
        record(lease, **fields)
        if fields["act"] == "start":
            raise LaunchError("the gate did not answer")

    with Sandbox("default", state=running.state) as sandbox, sandbox.keep() as kept:
        monkeypatch.setattr(Lease, "record", unanswered)
        with pytest.raises(LaunchError, match="did not answer"):
            kept.run(["true"])
    assert [line["launch"]["act"] for line in running.audit(type="launch")[-2:]] == ["start", "refuse"]
