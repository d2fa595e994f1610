"""One sandbox of bubblewrap's, from its start to nothing left.

| step | undone by |
|---|---|
| folders in the launch's scratch | removed |
| as root: the control group, with its limits read back | all in it killed, then removed |
| the place, and `ready` | ends with its last process |
| membership checked, the disk opened, then `go` | closed |
| `bwrap`, read from until it ends, or our limits end it | killed, with all of its PID namespace |
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tidegate import seccomp
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Collect, Ground, Sink
from tidegate_launcher.bubblewrap.arguments import arguments, encoded
from tidegate_launcher.bubblewrap.place import bound, make_stage, wrapped
from tidegate_launcher.capture import Captured, Pipes, capture
from tidegate_launcher.gvisor.stage import SYSTEM_PATH, Cue, Stage
from tidegate_launcher.job import Job
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.result import Counters, Result, classify

__all__ = ["run_sandbox"]


_AROUND_BYTES: Final = 16 * 1024 * 1024
"""Memory for bubblewrap itself, beside what the guest may have."""
_STAGE_SECONDS: Final = 10.0
_END_SECONDS: Final = 2.0
_STATUS_BYTES: Final = 65536


def run_sandbox(
    program: Path,
    job: Job,
    ground: Ground,
    *,
    hierarchy: Hierarchy | None,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    collect: Collect | None = None,
) -> Result:
    """Run a job to its end; in a control group when `hierarchy` is given. Raises `LaunchError`."""
    with contextlib.ExitStack() as undo:
        binds = bound(job, ground)
        stage = make_stage(ground.scratch)
        undo.callback(shutil.rmtree, stage.folder, ignore_errors=True)
        group = None
        if hierarchy is not None:
            group = Cgroup.create(job.limits, extra_bytes=_AROUND_BYTES, hierarchy=hierarchy)
            undo.callback(group.remove)
        launch = undo.enter_context(_started(program, job, stage, binds, group, stdin))
        captured = launch.watch(job, sink)
        code, disk_full = launch.code(), launch.disk_full()
        if collect is not None:
            launch.collect(collect)
        counted = group.counters() if group is not None else Counters()
        return _result(job, captured, code, launch.status(), msgspec.structs.replace(counted, disk_full=disk_full))


class _Status(msgspec.Struct, rename="kebab"):
    """What bubblewrap says on its status descriptor, which the guest has not."""

    child_pid: int | None = None
    exit_code: int | None = None


class _Launch:
    """A sandbox that was let go."""

    def __init__(
        self, process: subprocess.Popen[bytes], pidfd: int, disk: int, pipes: Pipes, group: Cgroup | None, told: int
    ) -> None:
        self._process, self._pidfd, self._disk, self._pipes = process, pidfd, disk, pipes
        self._group, self._told = group, told
        self._status: _Status | None = None

    def watch(self, job: Job, sink: Sink | None) -> Captured:
        return capture(
            self._pipes,
            pidfd=self._pidfd,
            seconds=job.limits.seconds,
            limit=job.limits.output_bytes,
            stop=lambda: _end(self._process, self._group),
            sink=sink,
        )

    def code(self) -> int | None:
        """Return how it ended, as a shell has it, once nothing of it is left; None when it would not."""
        _end(self._process, self._group)
        if (first := self.status().child_pid) is not None:
            _wait_gone(first)
        code = self._process.returncode
        return 128 - code if code is not None and code < 0 else code

    def status(self) -> _Status:
        if self._status is None:
            self._status = _Status()
            for line in _read_now(self._told).splitlines():
                with contextlib.suppress(msgspec.DecodeError):
                    told = msgspec.json.decode(line, type=_Status)
                    self._status.child_pid = self._status.child_pid or told.child_pid
                    if told.exit_code is not None:
                        self._status.exit_code = told.exit_code
        return self._status

    def disk_full(self) -> bool:
        found = os.fstatvfs(self._disk)
        return found.f_bavail == 0 or found.f_favail == 0

    def collect(self, collect: Collect) -> None:
        work = os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._disk)
        try:
            collect(work)
        finally:
            os.close(work)


@contextlib.contextmanager
def _started(
    program: Path,
    job: Job,
    stage: Stage,
    binds: tuple[tuple[Path, str], ...],
    group: Cgroup | None,
    stdin: BinaryIO | None,
) -> Iterator[_Launch]:
    with contextlib.ExitStack() as undo:
        cue = undo.enter_context(contextlib.closing(Cue(stage)))
        pipes = undo.enter_context(contextlib.closing(Pipes(stdin)))
        told, telling = os.pipe()
        undo.callback(os.close, told)
        with contextlib.ExitStack() as theirs:
            theirs.callback(os.close, telling)
            passed = _Passed.make(job, [target for _, target in binds], telling, theirs)
            command = [str(program), "--args", str(passed.arguments), "--", *job.argv]
            groups = group.doors() if group is not None else ()
            process = _process(wrapped(stage, job, binds, groups=groups, command=command), pipes, passed)
        undo.callback(_end, process, group)
        pidfd = os.pidfd_open(process.pid)
        undo.callback(os.close, pidfd)
        if not cue.wait(pidfd, _STAGE_SECONDS):
            _end(process, group)
            raise LaunchError(f"the sandbox's place was not made: {pipes.said()}", hint="tidegate doctor")
        if group is not None:
            group.verify_member(process.pid)
        disk = os.open(stage.seen_from(process.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, disk)
        cue.go()
        yield _Launch(process, pidfd, disk, pipes, group, told)


class _Passed(msgspec.Struct, frozen=True):
    """The descriptors that bubblewrap reads and writes."""

    arguments: int
    seccomp: int
    status: int

    @classmethod
    def make(cls, job: Job, targets: list[str], status: int, undo: contextlib.ExitStack) -> "_Passed":
        """Fill them; they are closed by `undo`."""
        # UNIX, IPv4 and IPv6 stay; in its network namespace they lead nowhere.
        filtering = _filled("seccomp", seccomp.compiled(), undo)
        words = arguments(job, targets, status=status, seccomp=filtering)
        return cls(_filled("arguments", encoded(words), undo), filtering, status)


def _filled(name: str, content: bytes, undo: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create(name)
    undo.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _process(command: list[str], pipes: Pipes, passed: _Passed) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = pipes.theirs
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": SYSTEM_PATH},
            cwd="/",
            pass_fds=(passed.arguments, passed.seccomp, passed.status),
            start_new_session=True,
        )
    finally:
        pipes.close_theirs()


def _end(process: subprocess.Popen[bytes], group: Cgroup | None) -> None:
    """End all of it. Bounded, and safe to call again.

    Without a group: bubblewrap's end is that of the sandbox's first process, and so of its PID namespace.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if group is not None:
        group.kill(_END_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _wait_gone(pid: int) -> None:
    """Wait for a process' end, which was decided already. It is not ours to take, and nothing is sent to it."""
    with contextlib.suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as pidfd:
        end = time.monotonic() + _END_SECONDS
        select.select([pidfd], [], [], max(0.0, end - time.monotonic()))


def _read_now(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, _STATUS_BYTES)
    return b""


def _result(job: Job, captured: Captured, code: int | None, status: _Status, counted: Counters) -> Result:
    ended = captured.timed_out or captured.flooded
    detail = "" if ended or counted.oom_kills else _own_fault(job, captured, code, status)
    outcome = classify(
        code, timed_out=captured.timed_out, flooded=captured.flooded, failed=bool(detail), counters=counted
    )
    return Result(
        outcome=outcome,
        untrusted_exit_code=None if ended or detail else code,
        untrusted_stdout=captured.stdout,
        untrusted_stderr=captured.stderr,
        truncated=captured.flooded,
        seconds=captured.seconds,
        counters=counted,
        detail=detail,
    )


def _own_fault(job: Job, captured: Captured, code: int | None, status: _Status) -> str:
    said = captured.stderr.decode("utf-8", "replace").strip()[:1000]
    if status.exit_code is None and _own_end(code):
        return said or "bubblewrap ended without a word"
    # It says so as the command's own end. A command that says the same spoils its own result, and nothing else.
    if code == 1 and not captured.stdout and said.startswith(f"bwrap: execvp {job.argv[0]}: "):
        return said
    return ""


def _own_end(code: int | None) -> bool:
    """Tell whether an end without a status is bubblewrap's own failure, not a kill from outside."""
    return code is None or code < 128
