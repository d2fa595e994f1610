"""What a sandbox of gVisor may use, and what becomes of one that wants more: real limits, met for real."""

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.lab.box import Box, leftovers
from tests.lab.roots import why_no_gvisor
from tidegate_launcher.result import Outcome

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root)


def test_S_14_a_memory_bomb_takes_the_whole_sandbox_and_is_told(box: Box) -> None:
    result = box.python(
        "import os\nfor _ in range(3): os.fork()\nx = []\nwhile True: x.append(b'x' * 10_000_000)",
        limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code) == (Outcome.OOM, 137)
    assert result.counters.oom_kills >= 1
    # The kernel counts in batches: a page or a few over the limit are no failure of it.
    assert result.counters.memory_peak_bytes <= (128 + 64 + 1) * MIB
    assert leftovers() == []


def test_S_14_a_child_that_is_killed_for_memory_is_never_a_success(box: Box) -> None:
    result = box.python(
        "import os\npid = os.fork()\nif pid == 0:\n    x = []\n    while True: x.append(b'x' * 10_000_000)\n"
        "os.waitpid(pid, 0); os._exit(0)",
        limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.OOM, 137, None)


def test_S_14_no_part_of_a_sandbox_outlives_one_that_is_killed_for_memory(box: Box) -> None:
    result = box.python(
        "import mmap, os, time\nfor i in range(6):\n    if os.fork() == 0:\n        m = mmap.mmap(-1, 1 << 30)\n"
        "        for k in range(0, 1 << 30, 4096): m[k] = 1\nos.wait(); time.sleep(60)",
        limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    )
    assert result.outcome is Outcome.OOM
    assert result.seconds < 10
    assert leftovers() == []


def test_S_14_what_is_on_its_disk_is_memory_too(box: Box) -> None:
    result = box.shell("dd if=/dev/zero of=/tmp/fill bs=1M count=60", limits={"memory_bytes": 128 * MIB})
    assert result.outcome is Outcome.EXITED
    assert result.counters.memory_peak_bytes > 60 * MIB


def test_S_14_memory_within_the_limit_is_there(box: Box) -> None:
    result = box.python("x = b'x' * (100 << 20); print(len(x))", limits={"memory_bytes": 128 * MIB})
    assert result.outcome is Outcome.EXITED, result.outcome


def test_the_guest_is_told_its_own_memory_and_not_the_machines(box: Box) -> None:
    shown = box.shell("head -1 /proc/meminfo", limits={"memory_bytes": 128 * MIB}).untrusted_stdout
    assert shown.split() == [b"MemTotal:", b"131072", b"kB"]


@pytest.mark.parametrize("pids", [16, 128])
def test_S_15_a_fork_bomb_is_bounded(box: Box, pids: int) -> None:
    result = box.python(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        limits={"pids": pids, "seconds": 4},
    )
    assert result.outcome in (Outcome.PIDS, Outcome.TIMEOUT, Outcome.OOM)
    assert leftovers() == []


def test_S_15_a_process_too_many_is_refused_gracefully(box: Box) -> None:
    result = box.python(
        "import os, time\nn = 0\ntry:\n    while True:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n        n += 1\n"
        "except OSError as e: print(n, e.errno)",
        limits={"pids": 20},
    )
    count, code = result.untrusted_stdout.split()
    assert 10 < int(count) < 20
    assert code == b"11"
    assert (result.outcome, result.counters.pids_refused) == (Outcome.EXITED, 0)


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_S_13_a_full_disk_is_full_at_the_limit_and_told(box: Box, folder: str) -> None:
    result = box.shell(
        f"dd if=/dev/zero of={folder}/fill bs=1M count=100 2>&1; stat -c %s {folder}/fill; exit 3",
        limits={"disk_bytes": 16 * MIB},
    )
    said = result.untrusted_stdout.decode()
    assert "No space left on device" in said
    assert said.splitlines()[-1] == str(16 * MIB)
    assert (result.outcome, result.exit_code) == (Outcome.DISK, 3)


def test_S_13_the_three_places_share_one_limit(box: Box) -> None:
    result = box.shell(
        "for f in /work /tmp /dev/shm; do dd if=/dev/zero of=$f/fill bs=1M count=10; done; du -scm /work /tmp /dev/shm",
        limits={"disk_bytes": 16 * MIB},
    )
    assert result.untrusted_stdout.decode().splitlines()[-1].split()[0] in ("16", "17")


def test_S_13_files_without_number_are_refused(box: Box) -> None:
    result = box.python(
        "import os\nn = 0\ntry:\n    while n < 3000: os.close(os.open(f'/work/{n}', os.O_CREAT)); n += 1\n"
        "except OSError as e: print(e.errno)",
        limits={"disk_bytes": MIB},
    )
    assert result.untrusted_stdout == b"28\n"


def test_a_disk_that_was_full_and_is_not_at_the_end_is_not_told(box: Box) -> None:
    result = box.shell("dd if=/dev/zero of=fill bs=1M count=100 2>&1; rm fill; exit 3", limits={"disk_bytes": 16 * MIB})
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 3)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_S_21_an_output_flood_is_cut_and_our_memory_stays_flat(box: Box, stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = box.shell("exec yes" + (" >&2" if stream == "stderr" else ""), limits={"output_bytes": MIB})
    kept = result.untrusted_stdout if stream == "stdout" else result.untrusted_stderr
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert result.truncated
    assert len(kept) == MIB
    assert result.untrusted_exit_code is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
    assert result.seconds < 10


def test_output_up_to_the_limit_is_whole(box: Box) -> None:
    result = box.python("print('x' * 999_999)", limits={"output_bytes": 1_000_000})
    assert (result.outcome, len(result.untrusted_stdout)) == (Outcome.EXITED, 1_000_000)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while True: pass", id="busy"),
        pytest.param("import time; time.sleep(600)", id="asleep"),
        pytest.param(
            "import signal, time\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
            id="deaf",
        ),
        pytest.param("import os, time\nos.setsid() if os.fork() == 0 else None\ntime.sleep(600)", id="setsid"),
    ],
)
def test_S_18_what_does_not_end_is_ended(box: Box, code: str) -> None:
    result = box.python(code, limits={"seconds": 1.5})
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.TIMEOUT, 124, None)
    assert 1.4 < result.seconds < 4
    assert leftovers() == []


def test_S_18_children_that_outlive_their_parent_do_not_outlive_the_sandbox(box: Box) -> None:
    result = box.python(
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)\n"
        "print('parent ends')"
    )
    assert (result.outcome, result.untrusted_stdout) == (Outcome.EXITED, b"parent ends\n")
    assert result.seconds < 10
    assert leftovers() == []


@pytest.mark.parametrize(
    "limits",
    [{"memory_bytes": 32 * MIB, "disk_bytes": MIB}, {"pids": 4}, {"open_files": 16}, {"disk_bytes": 1}],
    ids=lambda value: next(iter(value)),
)
def test_the_least_that_can_be_asked_is_enough_to_run(box: Box, limits: dict[str, Any]) -> None:
    assert box.run("true", limits=limits).outcome is Outcome.EXITED


def test_a_processor_is_shared_as_asked(box: Box) -> None:
    code = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    result = box.python(code, limits={"cpus": 0.25})
    assert result.counters.cpu_seconds < 0.25 * result.seconds + 0.2


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        ({"open_files": 20}, "fs = [open('/dev/null') for _ in range(30)]", b"Too many open files"),
        ({"file_bytes": 1000}, "open('/work/f', 'wb', buffering=0).write(b'x' * 1001) == 1000 or 1 / 0\n"
         "import signal; signal.signal(25, signal.SIG_IGN); open('/work/f', 'ab', buffering=0).write(b'x')",
         b"File too large"),
        ({}, "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)); 1 / 0", b"ZeroDivision"),
    ],
    ids=["open files", "size of a file", "no core"],
)  # fmt: skip
def test_what_one_process_may_have_is_limited(box: Box, limits: dict[str, Any], code: str, said: bytes) -> None:
    result = box.python(code, limits=limits)
    assert said in result.untrusted_stderr
    if not limits:
        assert result.untrusted_stdout == b"(0, 0)\n"
