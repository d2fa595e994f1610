"""Output of real processes, read within limits."""

import io
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tidegate_launcher.capture import Captured, Pipes, capture


def _run(
    script: str, *, stdin: BinaryIO | None = None, seconds: float = 20, limit: int = 1000, **more: Any
) -> Captured:
    pipes = Pipes(stdin)
    theirs = dict(zip(("stdin", "stdout", "stderr"), pipes.theirs, strict=True))
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True, **theirs)
    pipes.close_theirs()
    pidfd = os.pidfd_open(process.pid)

    def stop() -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    try:
        return capture(pipes, pidfd=pidfd, seconds=seconds, limit=limit, stop=stop, **more)
    finally:
        stop()
        process.wait(5)
        os.close(pidfd)
        pipes.close()


def test_what_cannot_be_read_is_nothing_to_read(tmp_path: Path) -> None:
    """Such as the input that nohup gives."""
    with open(os.devnull, "wb") as nothing, open(tmp_path / "written", "wb") as written:
        for stdin in (nothing, written):
            assert _run("cat; echo on", stdin=stdin).stdout == b"on\n"


def test_keeps_both_streams_apart_and_whole() -> None:
    captured = _run("echo one; echo two >&2; echo three")
    assert (captured.stdout, captured.stderr) == (b"one\nthree\n", b"two\n")
    assert not captured.flooded
    assert not captured.timed_out


@pytest.mark.parametrize(("size", "flooded"), [(999, False), (1000, False), (1001, True), (500_000, True)])
def test_cuts_at_the_limit_and_not_before(size: int, flooded: bool) -> None:
    captured = _run(f"head -c {size} /dev/zero")
    assert (len(captured.stdout), captured.flooded) == (min(size, 1000), flooded)


def test_each_stream_has_the_limit_for_itself() -> None:
    captured = _run("head -c 1000 /dev/zero; head -c 1000 /dev/zero >&2")
    assert (len(captured.stdout), len(captured.stderr), captured.flooded) == (1000, 1000, False)


def test_no_output_at_all_may_be_allowed() -> None:
    assert _run("echo x", limit=0).flooded
    assert not _run("true", limit=0).flooded


def test_a_flood_is_ended_at_once() -> None:
    begun = time.monotonic()
    captured = _run("exec yes")
    assert captured.flooded
    assert not captured.timed_out
    assert time.monotonic() - begun < 10


def test_time_that_runs_out_ends_it_with_what_it_said() -> None:
    captured = _run("echo x; exec sleep 100", seconds=0.3)
    assert (captured.stdout, captured.timed_out) == (b"x\n", True)
    assert 0.3 <= captured.seconds < 10


@pytest.mark.parametrize("seconds", [1e-12, 1e-6])
def test_hardly_any_time_is_not_taken_for_no_limit(seconds: float) -> None:
    assert _run("exec sleep 100", seconds=seconds).timed_out


def test_S_29_the_clock_is_the_one_since_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    # That one goes on while the machine sleeps, and setting the time of day does not move it.
    clocks: list[int] = []
    made = os.timerfd_create

    def noted(clock: int, *, flags: int) -> int:
        clocks.append(clock)
        return made(clock, flags=flags)

    monkeypatch.setattr(os, "timerfd_create", noted)
    _run("true")
    assert clocks == [time.CLOCK_BOOTTIME]


def test_an_alarm_ends_it_and_is_no_time_out() -> None:
    alarm = os.eventfd(1)
    captured = _run("echo x; exec sleep 100", alarm=alarm)
    os.close(alarm)
    assert (captured.alarmed, captured.timed_out) == (True, False)


def test_who_wants_it_no_more_ends_it() -> None:
    cancel = os.eventfd(0)
    captured = _run("echo x; exec sleep 100", cancel=cancel, sink=lambda *_: os.eventfd_write(cancel, 1))
    os.close(cancel)
    assert (captured.stdout, captured.cancelled, captured.timed_out) == (b"x\n", True, False)
    assert captured.seconds < 10


def test_what_holds_the_pipes_after_the_end_is_stopped_too() -> None:
    begun = time.monotonic()
    captured = _run("sleep 100 & echo done")
    assert captured.stdout == b"done\n"
    assert time.monotonic() - begun < 4


def test_what_cannot_be_stopped_holds_nothing_up_for_long() -> None:
    begun = time.monotonic()
    captured = _run("setsid sh -c 'echo $$; exec sleep 30' & wait $!; exit", seconds=0.3)
    assert time.monotonic() - begun < 15
    os.kill(int(captured.stdout), signal.SIGKILL)


def test_hands_on_what_comes_within_the_limit() -> None:
    pieces: list[tuple[str, bytes]] = []
    _run("head -c 3000 /dev/zero; echo e >&2", sink=lambda name, data: pieces.append((name, data)))
    assert sum(len(data) for name, data in pieces if name == "stdout") == 1000


def test_a_closed_stream_is_no_end() -> None:
    assert _run("exec >&-; sleep 0.2; echo on >&2").stderr == b"on\n"


class TestFeed:
    @pytest.mark.parametrize("size", [0, 1, 65536, 65537, 1_000_000])
    def test_gives_all_bytes_then_ends(self, size: int) -> None:
        assert _run("wc -c", stdin=io.BytesIO(b"x" * size)).stdout.strip() == str(size).encode()

    def test_of_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x" * 200_000)
        with (tmp_path / "f").open("rb") as file:
            assert _run("wc -c", stdin=file).stdout.strip() == b"200000"

    def test_of_a_pipe_that_stays_silent_does_not_outlast_the_process(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as source:
            assert _run("head -c 0; echo over", stdin=source).stdout == b"over\n"
        os.close(writing)

    def test_that_nobody_reads_is_dropped(self) -> None:
        assert _run("exec <&-; sleep 0.1; echo on", stdin=io.BytesIO(b"x" * 1_000_000)).stdout == b"on\n"

    def test_and_output_at_once_do_not_block_each_other(self) -> None:
        captured = _run("cat", stdin=io.BytesIO(b"x" * 1_000_000), limit=2_000_000)
        assert len(captured.stdout) == 1_000_000

    def test_without_one_reading_ends_at_once(self) -> None:
        assert _run("cat; echo over").stdout == b"over\n"


def test_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    _run("cat; exec yes", stdin=io.BytesIO(b"x"))
    assert len(os.listdir("/proc/self/fd")) == before
