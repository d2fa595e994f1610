"""WebAssembly as a boundary: a real engine, CPython and QuickJS in it."""

import importlib.util
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, Ground
from tidegate_launcher.job import Bind, Job, Limits, Net
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.wasm.boundary import Wasm
from tidegate_launcher.wasm.call import Answer, Call, read_frame, write_frame
from tidegate_launcher.wasm.guest import GUESTS, guest_path


def _why_not() -> str | None:
    if importlib.util.find_spec("wasmtime") is None:
        return "wasmtime is not installed: `make setup` does it"
    try:
        for guest in GUESTS:
            guest_path(guest, os.environ)
    except LaunchError as fault:
        return str(fault)
    return None


pytestmark = pytest.mark.skipif(_why_not() is not None, reason=f"no WebAssembly: {_why_not()}")

MIB = 1024 * 1024
GROUND = Ground(scratch=Path("/nonexistent"))


@pytest.fixture(scope="module")
def wasm() -> Iterator[Wasm]:
    boundary = Wasm()
    yield boundary
    boundary.close()


def _run(wasm: Wasm, *argv: str, net: Net = "none", binds: tuple[Bind, ...] = (), **more: Any) -> Result:
    run = {key: more.pop(key) for key in ("stdin", "sink", "cancel") if key in more}
    environment = more.pop("environment", ())
    limits = Limits(**{"seconds": 20, **more})
    job = Job(id="t", argv=argv, root=Path("/"), limits=limits, net=net, binds=binds, environment=environment)
    return wasm.run(job, GROUND, **run)


def test_what_it_can_enforce_has_no_root_and_no_way_out() -> None:
    missing = set(Capability) - Wasm().capabilities()
    assert missing == {Capability.ROOT, Capability.NET_UDS, Capability.NET_VETH, Capability.WAITS}


@pytest.mark.parametrize(
    ("argv", "text"),
    [(("python3", "-c", "print(6 * 7)"), b"42\n"), (("-c", "print(6 * 7)"), b"42\n"),
     (("qjs", "--std", "-e", "console.log(6 * 7)"), b"42\n")],
    ids=["python", "code-alone", "javascript"],
)  # fmt: skip
def test_computes(wasm: Wasm, argv: tuple[str, ...], text: bytes) -> None:
    result = _run(wasm, *argv)
    assert (result.outcome, result.exit_code, result.untrusted_stdout) == (Outcome.EXITED, 0, text)


def test_streams_code_and_environment_are_the_commands(wasm: Wasm) -> None:
    code = "import os, sys; print(dict(os.environ), sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"
    told: list[tuple[str, bytes]] = []
    result = _run(wasm, "python3", "-c", code, environment=(("A", "b"),), stdin=io.BytesIO(b"in"),
                  sink=lambda name, text: told.append((name, text)))  # fmt: skip
    assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 7)
    assert (result.untrusted_stdout, result.untrusted_stderr) == (b"{'A': 'b'} in\n", b"err\n")
    assert told == [("stdout", result.untrusted_stdout), ("stderr", b"err\n")]


def test_no_input_is_left_for_the_next(wasm: Wasm) -> None:
    _run(wasm, "python3", "-c", "1", stdin=io.BytesIO(b"secret" * 1000))
    assert _run(wasm, "python3", "-c", "import sys; print(sys.stdin.read())").untrusted_stdout == b"\n"
    assert (
        _run(wasm, "python3", "-c", "import sys; print(sys.stdin.read())", stdin=io.BytesIO(b"x")).untrusted_stdout
        == b"x\n"
    )


def test_no_memory_is_left_for_the_next(wasm: Wasm) -> None:
    _run(wasm, "python3", "-c", "import builtins; builtins.mark = 1")
    result = _run(wasm, "python3", "-c", "import builtins; print(hasattr(builtins, 'mark'))")
    assert result.untrusted_stdout == b"False\n"


@pytest.mark.parametrize(
    "code",
    ["open('/etc/passwd')", "open('/x', 'w')", "import os; os.listdir('/')", "import os; os.system('id')",
     "import os; os.fork()", "import socket; socket.create_connection(('192.0.2.1', 80))",
     "import subprocess; subprocess.run(['id'])", "open('/proc/self/environ')", "import os; os.read(5, 1)",
     "open('../../etc/passwd')"],
    ids=["read", "write", "list", "system", "fork", "connect", "subprocess", "proc", "descriptor", "dots"],
)  # fmt: skip
def test_there_is_nothing_but_its_own_memory(wasm: Wasm, code: str) -> None:
    result = _run(wasm, "python3", "-c", code)
    assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 1)
    assert result.untrusted_stdout == b""


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"], ids=["loop", "sleep"])
def test_the_time_ends_it_whatever_it_does_and_the_next_one_runs(wasm: Wasm, code: str) -> None:
    begun = time.monotonic()
    result = _run(wasm, "python3", "-c", code, seconds=0.5)
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.TIMEOUT, 124, None)
    assert time.monotonic() - begun < 10
    assert _run(wasm, "python3", "-c", "print(1)").untrusted_stdout == b"1\n"


@pytest.mark.parametrize(
    ("argv", "stdin"),
    [(("python3", "-c", "while True: pass"), False), (("python3", "-c", "import time; time.sleep(600)"), False),
     (("python3", "-c", "1"), True)],
    ids=["loop", "sleep", "input-that-never-ends"],
)  # fmt: skip
def test_a_launch_that_is_wanted_no_more_is_ended_and_the_next_one_runs(
    wasm: Wasm, argv: tuple[str, ...], stdin: bool
) -> None:
    before = set(_workers())
    cancel, (reading, writing) = os.eventfd(0), os.pipe()
    timer = threading.Timer(0.5, lambda: os.eventfd_write(cancel, 1))
    begun = time.monotonic()
    with open(reading, "rb", buffering=0) as never, open(writing, "wb"):
        timer.start()
        try:
            with pytest.raises(Cancelled):
                _run(wasm, *argv, cancel=cancel, stdin=never if stdin else None)
        finally:
            timer.cancel()
            timer.join()
            os.close(cancel)
    assert time.monotonic() - begun < 10
    assert set(_workers()) <= before  # the one that ran it is gone
    assert _run(wasm, "python3", "-c", "print(1)").untrusted_stdout == b"1\n"


def test_one_that_ends_by_itself_is_not_cancelled_and_reads_a_file_whole(wasm: Wasm, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 200_000)
    cancel = os.eventfd(0)
    with (tmp_path / "in").open("rb") as file:
        code = "import sys; print(len(sys.stdin.read()))"
        result = _run(wasm, "python3", "-c", code, cancel=cancel, stdin=file)
    os.close(cancel)
    assert result.untrusted_stdout == b"200000\n"


def test_its_instructions_can_be_counted() -> None:
    wasm = Wasm(fuel=2_000_000_000)
    try:
        result = _run(wasm, "python3", "-c", "while True: pass")
        assert (result.outcome, result.detail) == (Outcome.TIMEOUT, "its instructions are used up")
    finally:
        wasm.close()


def test_memory_over_the_limit_is_refused_inside(wasm: Wasm) -> None:
    code = "x = []\ntry:\n    while True: x.append(bytearray(1_000_000))\nexcept MemoryError: print(len(x)); raise"
    result = _run(wasm, "python3", "-c", code, memory_bytes=64 * MIB, disk_bytes=MIB)
    assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 1)
    assert result.untrusted_stderr.endswith(b"MemoryError\n")
    assert 10 < int(result.untrusted_stdout) < 67


@pytest.mark.parametrize("code", ["print('x' * 100_000)", "while True: print('x' * 100)"], ids=["once", "for-ever"])
def test_more_output_than_allowed_ends_it(wasm: Wasm, code: str) -> None:
    result = _run(wasm, "python3", "-c", code, output_bytes=1000)
    assert (result.outcome, len(result.untrusted_stdout), result.truncated) == (Outcome.OUTPUT_LIMIT, 1000, True)
    assert result.seconds < 10


@pytest.mark.parametrize(
    ("more", "missing"),
    [({"net": "uds"}, "a unix socket"), ({"net": "veth"}, "a link to the gate"), ({"cpus": 0.5}, "part of a processor"),
     ({"binds": (Bind(source=Path("/etc/passwd"), target="/x"),)}, "files")],
    ids=["uds", "veth", "cpus", "binds"],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_and_named(wasm: Wasm, more: dict[str, Any], missing: str) -> None:
    with pytest.raises(LaunchError, match=f"wasm cannot enforce.*{missing}"):
        _run(wasm, "python3", "-c", "1", **more)


def test_a_pooled_call_is_of_another_order_than_the_first(wasm: Wasm) -> None:
    taken = []
    for _ in range(10):
        begun = time.monotonic()
        assert _run(wasm, "qjs", "-e", "6 * 7").exit_code == 0
        taken.append(time.monotonic() - begun)
    # Some 2 ms where nothing else runs; a bench holds it to that.
    assert sorted(taken)[1] < 0.05


def test_no_process_is_left() -> None:
    before = set(_workers())
    wasm = Wasm()
    _run(wasm, "qjs", "-e", "1")
    assert set(_workers()) - before
    wasm.close()
    assert not set(_workers()) - before


def test_a_worker_ends_with_its_launcher_also_in_the_middle_of_a_call() -> None:
    command = [sys.executable, "-I", "-m", "tidegate_launcher.wasm.worker", "python.wasm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert read_frame(worker.stdout, Answer) is not None
        sleep = ("python3", "-c", "print(1, flush=True); import time; time.sleep(600)")
        write_frame(worker.stdin, Call(argv=sleep, environment=(), stdin=b"", seconds=600, memory_bytes=64 * MIB,
                                       output_bytes=100, fuel=None))  # fmt: skip
        worker.stdin.close()
        assert worker.wait(20) == 0


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    wasm = Wasm()
    before = set(_workers())
    try:
        thread = threading.Thread(target=lambda: _run(wasm, "qjs", "-e", "1"))
        thread.start()
        thread.join(60)
        first = set(_workers()) - before
        assert _run(wasm, "qjs", "-e", "1").exit_code == 0
        assert set(_workers()) - before == first
    finally:
        wasm.close()


def _workers() -> list[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = {pid for task in tasks for pid in task.read_text().split()}
    return [pid for pid in children if b"wasm.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_worker_has_given_up_its_user_and_sockets(wasm: Wasm) -> None:
    _run(wasm, "qjs", "-e", "1")
    status = Path(f"/proc/{_workers()[0]}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (fields["NoNewPrivs"], fields["Seccomp"], fields["CapEff"]) == ("1", "2", "0" * 16)
    assert os.geteuid() or set(fields["Uid"].split()) == {"65534"}
