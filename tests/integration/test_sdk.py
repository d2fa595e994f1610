"""The SDK as a harness has it: real sandboxes of gVisor, alone and behind a real gate."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.box import leftovers
from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, environment, gate, rule
from tests.lab.images import keep_image
from tests.lab.roots import why_no_gvisor
from tests.lab.upstream import says, upstream
from tidegate.errors import LaunchError
from tidegate.sdk import AsyncSandbox, Limits, Outcome, Run, Sandbox
from tidegate_launcher.place import LaunchPlace

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

API, SECRET = "api.allowed.test", "real-secret-of-the-test-0123456789abcdef"
HOME = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.11"
READY = "import time; print('ready', flush=True); time.sleep(60)"
FETCH = """
import os, sys, urllib.request
ask = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]})
try:
    print(urllib.request.urlopen(ask, timeout=10).status)
except Exception as fault:
    print(getattr(fault, "code", fault))
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with an image, and no gate."""
    folder = tmp_path_factory.mktemp("state")
    for part in [folder, *folder.parents][:3]:
        part.chmod(0o755)
    keep_image(folder)
    return folder


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    with (
        Authority() as ca,
        dns_server({API: addresses(HOME)}) as dns,
        upstream(ca=ca, names=(API,), address=HOME, port=443, routes={"/": says(b"hello")}),
    ):
        config = configuration(
            allow=[rule(API, credential="api", paths=["/**"])],
            credentials={
                "api": {
                    "source": {"env": "SECRET"},
                    "for": [{"host": API}],
                    "place": {"header": "Authorization", "format": "Bearer {secret}"},
                    "placeholder": {"shape": "generic", "env": "API_TOKEN"},
                }
            },
            dns=dns,
            ca=ca,
        )
        with gate(config, env={"SECRET": SECRET}) as one:
            keep_image(one.state)
            yield one


def folders(pid: int | None = None) -> list[str]:
    """Return the folders of a process' launches (this one's) that are still there."""
    return [path.name for path in LaunchPlace.of_this_user()._path.glob(f"*-{pid or os.getpid()}-*")]


def nothing_is_left() -> bool:
    return leftovers() == [] and folders() == []


class TestAlone:
    def test_runs_a_command_and_tells_what_came_of_it(self, state: Path) -> None:
        with Sandbox(state=state) as sandbox:
            result = sandbox.run(["python3", "-c", "import sys; print(40 + 2); sys.exit(3)"], timeout=20)
        assert isinstance(result, Run)
        assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 3)
        assert (result.untrusted_stdout, result.session) == (b"42\n", "")
        assert nothing_is_left()

    def test_each_call_has_a_sandbox_of_its_own(self, state: Path) -> None:
        plant = "for folder in /work /tmp /dev/shm; do touch $folder/mark 2>/dev/null; done; ls /work"
        with Sandbox(state=state) as sandbox:
            assert sandbox.run(["sh", "-c", plant]).untrusted_stdout == b"mark\n"
            found = sandbox.run(["sh", "-c", "ls /work/mark /tmp/mark /dev/shm/mark 2>/dev/null"])
        assert found.untrusted_stdout == b""

    def test_a_timeout_is_an_outcome(self, state: Path) -> None:
        with Sandbox(state=state) as sandbox:
            result = sandbox.run(["sleep", "60"], timeout=1)
        assert result.outcome is Outcome.TIMEOUT
        assert result.untrusted_exit_code is None

    def test_its_limits_hold(self, state: Path) -> None:
        with Sandbox(state=state, limits=Limits(output_bytes=1000)) as sandbox:
            result = sandbox.run(["sh", "-c", "yes"])
        assert (result.outcome, len(result.untrusted_stdout)) == (Outcome.OUTPUT_LIMIT, 1000)

    def test_is_given_input_files_and_variables_and_gives_files_back(self, state: Path, tmp_path: Path) -> None:
        (tmp_path / "given").write_text("file ")
        code = "cat /in/given - > /work/made; printf %s $WORD >> /work/made"
        with Sandbox(state=state) as sandbox:
            result = sandbox.run(
                ["sh", "-c", code],
                stdin=b"stdin ",
                inputs=[tmp_path / "given"],
                out=tmp_path / "out",
                environment={"WORD": "word"},
            )
        assert result.outputs is not None
        assert result.outputs.untrusted_paths == ("made",)
        assert (tmp_path / "out" / "made").read_text() == "file stdin word"

    def test_the_gates_state_is_no_input(self, state: Path) -> None:
        with Sandbox(state=state) as sandbox, pytest.raises(LaunchError, match="state"):
            sandbox.run(["true"], inputs=[state / "images"])

    def test_an_error_of_who_takes_the_output_ends_the_sandbox(self, state: Path) -> None:
        def take(_: str, __: bytes) -> None:
            raise ZeroDivisionError

        with Sandbox(state=state) as sandbox, pytest.raises(ZeroDivisionError):
            sandbox.run(["python3", "-c", READY], on_output=take)
        assert nothing_is_left()

    def test_ctrl_c_ends_the_sandbox(self, state: Path) -> None:
        code = "from tidegate.sdk import Sandbox\nimport sys\nwith Sandbox(state=sys.argv[1]) as sandbox:\n"
        call = (
            f"    sandbox.run(['python3', '-c', {READY!r}], timeout=60, on_output=lambda *_: print('on', flush=True))\n"
        )
        command = [sys.executable, "-c", code + call, str(state)]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as harness:
            assert harness.stdout is not None
            assert harness.stdout.readline() == "on\n"
            harness.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in harness.communicate(timeout=30)[1]
        assert leftovers(harness.pid) == []
        assert folders(harness.pid) == []

    def test_an_image_in_use_is_not_removed(self, state: Path) -> None:
        from tidegate_launcher.image.store import Store

        with Sandbox(state=state), pytest.raises(LaunchError, match="in use"):
            Store(state / "images").remove("minimal")

    @pytest.mark.parametrize(
        ("make", "told"),
        [
            pytest.param(lambda state: Sandbox(state=state, image="none"), "no image 'none'", id="no such image"),
            pytest.param(lambda state: Sandbox(state=state, credentials=["x"]), "has a policy", id="no policy"),
        ],
    )
    def test_what_cannot_be_had_is_told_at_the_door(
        self, state: Path, make: Callable[[Path], Sandbox], told: str
    ) -> None:
        with pytest.raises(LaunchError, match=told), make(state):
            pass

    def test_a_sandbox_that_is_not_open_runs_nothing(self, state: Path) -> None:
        sandbox = Sandbox(state=state)
        with sandbox:
            pass
        with pytest.raises(LaunchError, match="not open"):
            sandbox.run(["true"])

    def test_a_policy_without_a_gate_is_told_with_what_to_do(self, state: Path) -> None:
        with Sandbox("default", state=state) as sandbox, pytest.raises(LaunchError, match="tidegate up"):
            sandbox.run(["true"])


class TestBehindTheGate:
    def test_reaches_what_the_policy_allows_and_holds_no_secret(self, running: Gate) -> None:
        with Sandbox("default", credentials=["api"], state=running.state) as sandbox:
            good = sandbox.run(["python3", "-c", FETCH, f"https://{API}/"], timeout=30)
            bad = sandbox.run(["python3", "-c", FETCH, "https://evil.denied.test/"], timeout=30)
            told = sandbox.run(["env"])
        assert good.untrusted_stdout == b"200\n", good
        assert bad.untrusted_stdout != b"200\n", bad
        assert SECRET.encode() not in told.untrusted_stdout
        assert good.session != bad.session
        denied = {line["reason"] for line in running.audit(session=bad.session, verdict="deny")}
        # Its own network stack asks for a router, which is not there, and what it asks for is dropped.
        assert denied - {"wall_dropped"} == {"not_in_allowlist"}
        assert nothing_is_left()

    def test_its_launch_is_on_record_with_its_command_redacted(self, running: Gate) -> None:
        with Sandbox("default", credentials=["api"], state=running.state) as sandbox:
            result = sandbox.run(["true", "--password=hunter2hunter2", "https://user:pass@host.test/"])
        lines = running.wait_audit(lambda lines: len(lines) == 2, type="launch", session=result.session)
        assert [line["launch"]["act"] for line in lines] == ["start", "end"]
        assert lines[1]["launch"]["outcome"] == "exited"
        assert {line["launch"]["argv"] for line in lines} == {"true '--password=«secret»' 'https://…@host.test/'"}


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait for what only looking tells."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


class TestAsync:
    async def test_runs_several_at_once_and_leaves_the_loop_free(self, state: Path) -> None:
        async with AsyncSandbox(state=state) as sandbox:
            results = await asyncio.gather(*(sandbox.run(["echo", str(n)], timeout=30) for n in range(3)))
        assert [result.untrusted_stdout for result in results] == [b"0\n", b"1\n", b"2\n"]
        assert nothing_is_left()

    async def test_hands_output_on_as_it_comes_on_the_loops_own_thread(self, state: Path) -> None:
        seen: list[tuple[str, bytes, bool]] = []

        def take(stream: str, data: bytes) -> None:
            seen.append((stream, data, threading.current_thread() is threading.main_thread()))

        async with AsyncSandbox(state=state) as sandbox:
            await sandbox.run(["sh", "-c", "echo out; echo err >&2"], on_output=take)
        assert sorted(seen) == [("stderr", b"err\n", True), ("stdout", b"out\n", True)]

    async def test_streams_output_and_then_tells_the_result(self, state: Path) -> None:
        async with (
            AsyncSandbox(state=state) as sandbox,
            sandbox.stream(["python3", "-c", "print(input() * 2)"], stdin=b"ab") as running,
        ):
            pieces = [output async for output in running]
            result = await running.result()
        assert [(piece.stream, piece.untrusted_data) for piece in pieces] == [("stdout", b"abab\n")]
        assert result.outcome is Outcome.EXITED

    async def test_a_stream_that_is_left_early_ends_its_sandbox(self, state: Path) -> None:
        begun = time.monotonic()
        async with AsyncSandbox(state=state) as sandbox, sandbox.stream(["python3", "-c", READY]) as running:
            async for output in running:
                assert output.untrusted_data == b"ready\n"
                break
        assert time.monotonic() - begun < 30
        assert nothing_is_left()

    async def test_a_call_that_is_cancelled_ends_its_sandbox_first(self, state: Path) -> None:
        ready = asyncio.Event()
        async with AsyncSandbox(state=state) as sandbox:
            async with asyncio.TaskGroup() as group:
                call = group.create_task(
                    sandbox.run(["python3", "-c", READY], timeout=60, on_output=lambda *_: ready.set())
                )
                await ready.wait()
                assert not nothing_is_left()
                call.cancel()
                call.cancel()
                await asyncio.wait([call])
                assert nothing_is_left()
            assert call.cancelled()
            assert (await sandbox.run(["echo", "still here"])).untrusted_stdout == b"still here\n"

    async def test_a_call_that_takes_too_long_for_its_caller_ends_with_the_wait(self, state: Path) -> None:
        async with AsyncSandbox(state=state) as sandbox:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await sandbox.run(["sleep", "60"], timeout=60)
            assert nothing_is_left()

    async def test_the_end_of_the_block_ends_what_is_under_way(self, state: Path) -> None:
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            async with AsyncSandbox(state=state) as sandbox:
                call = group.create_task(self._told(sandbox, ready))
                await ready.wait()
            assert nothing_is_left()
        assert call.result() == "the launch was cancelled"

    async def _told(self, sandbox: AsyncSandbox, ready: asyncio.Event) -> str:
        with pytest.raises(LaunchError) as ended:
            await sandbox.run(["python3", "-c", READY], timeout=60, on_output=lambda *_: ready.set())
        return str(ended.value)

    async def test_a_cancelled_call_is_on_record_as_one(self, running: Gate) -> None:
        async with (
            AsyncSandbox("default", state=running.state) as sandbox,
            sandbox.stream(["python3", "-c", READY], timeout=60) as stream,
        ):
            async for _ in stream:
                break
        lines = running.wait_audit(lambda lines: lines[-1:] and lines[-1]["launch"]["act"] == "end", type="launch")
        assert lines[-1]["launch"]["outcome"] == "cancelled"


def _children() -> set[str]:
    """All processes that threads of this one have started."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


class TestOtherBoundaries:
    @pytest.mark.parametrize("boundary", ["bubblewrap", "runc"])
    def test_one_runs_within_all_limits(self, state: Path, boundary: Any) -> None:
        with Sandbox(state=state, boundary=boundary, unsafe_boundary=boundary == "runc") as sandbox:
            run = sandbox.run(["python3", "-c", "print(6 * 7)"])
            assert (run.outcome, run.untrusted_stdout) == (Outcome.EXITED, b"42\n")
            assert sandbox.run(["sleep", "1000"], timeout=1).outcome is Outcome.TIMEOUT
        assert folders() == []

    def test_computation_alone(self, state: Path) -> None:
        before = _children()
        with Sandbox(state=state, boundary="wasm") as sandbox:
            assert sandbox.run(["qjs", "--std", "-e", "print(6 * 7)"]).untrusted_stdout == b"42\n"
            assert _children() != before  # an engine that is kept for the next one
        assert _children() == before

    def test_what_is_no_boundary_is_for_who_says_so(self, state: Path) -> None:
        with pytest.raises(LaunchError, match="not a boundary against an attacker"):
            Sandbox(state=state, boundary="runc").__enter__()

    @pytest.mark.parametrize("boundary", ["bubblewrap", "wasm"])
    def test_one_that_cannot_wait_says_so(self, state: Path, boundary: Any) -> None:
        with (
            Sandbox(state=state, boundary=boundary) as sandbox,
            pytest.raises(LaunchError, match="cannot enforce a sandbox that waits"),
            sandbox.keep(),
        ):
            pass

    def test_a_name_that_is_none_is_told(self, state: Path) -> None:
        with pytest.raises(LaunchError, match="no boundary 'docker'"):
            Sandbox(state=state, boundary="docker")  # type: ignore[arg-type]
