"""One sandbox, from its start to nothing left: attached `runsc run`, in a group and a place of its own.

| step | undone by |
|---|---|
| folders in the launch's scratch | removed |
| the control group, with its limits read back | all in it killed, then removed |
| the place (mounts, in a namespace of its own) and `ready` | ends with its last process |
| membership checked by the kernel's word, the disk opened, then `go` | closed |
| `runsc run`, read from until it ends, or our limits end it | killed with the group |

All that belongs to a sandbox is in its group from before runsc is there: runsc, its gofer, its kernel, its stubs. So
what ends it is the kernel, at once, and not a question to a program that may hang. Nothing else of it is on the host:
its state lies in the scratch, and its mounts in its own namespace.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Collect, Ground, Sink
from tidegate_launcher.capture import Captured, Pipes, capture
from tidegate_launcher.gvisor.bundle import config
from tidegate_launcher.gvisor.runsc import Runtime
from tidegate_launcher.gvisor.stage import SYSTEM_PATH, Cue, Stage, make_stage, wrapped
from tidegate_launcher.job import Job
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.result import Result, classify

__all__ = ["SENTRY_BYTES", "run_sandbox"]


SENTRY_BYTES: Final = 64 * 1024 * 1024
"""Memory for gVisor's own processes, beside what the guest may have."""

_STAGE_SECONDS: Final = 10.0
_END_SECONDS: Final = 2.0
_LOG_BYTES: Final = 65536


def run_sandbox(
    runtime: Runtime,
    job: Job,
    ground: Ground,
    *,
    hierarchy: Hierarchy | None = None,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    collect: Collect | None = None,
    cancel: int | None = None,
) -> Result:
    """Run a job to its end, or until `cancel` is readable. Raises `LaunchError` for what fails before the command is
    let go, and `Cancelled`.
    """
    with contextlib.ExitStack() as undo:
        stage = make_stage(ground.scratch)
        undo.callback(shutil.rmtree, stage.folder, ignore_errors=True)
        (stage.bundle / "config.json").write_bytes(config(job, ground, stage))
        group = Cgroup.create(job.limits, extra_bytes=SENTRY_BYTES, hierarchy=hierarchy)
        undo.callback(_remove, group)
        launch = undo.enter_context(_started(runtime, job, stage, group, stdin))
        captured = launch.watch(job, group, sink, cancel)
        if captured.cancelled:
            raise Cancelled
        code = launch.code(group)
        disk_full = launch.disk_full()
        if collect is not None:
            launch.collect(collect)
        return _result(job, stage, group, captured, code, disk_full=disk_full)


class _Launch:
    """A sandbox that was let go."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int, disk: int, pipes: Pipes) -> None:
        self._process, self._pidfd, self._disk, self._pipes = process, pidfd, disk, pipes

    def watch(self, job: Job, group: Cgroup, sink: Sink | None, cancel: int | None) -> Captured:
        with group.memory_alarm() as alarm:
            return capture(
                self._pipes,
                pidfd=self._pidfd,
                seconds=job.limits.seconds,
                limit=job.limits.output_bytes,
                stop=lambda: _end(self._process, group),
                sink=sink,
                alarm=alarm,
                cancel=cancel,
            )

    def code(self, group: Cgroup) -> int | None:
        """Return how it ended, as a shell has it; None when it would not."""
        _end(self._process, group)
        code = self._process.returncode
        return 128 - code if code is not None and code < 0 else code

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
def _started(runtime: Runtime, job: Job, stage: Stage, group: Cgroup, stdin: BinaryIO | None) -> Iterator[_Launch]:
    with contextlib.ExitStack() as undo:
        cue = undo.enter_context(contextlib.closing(Cue(stage)))
        pipes = undo.enter_context(contextlib.closing(Pipes(stdin)))
        process = _process(_wrapped(runtime, job, stage, group), pipes)
        undo.callback(_end, process, group)
        pidfd = os.pidfd_open(process.pid)
        undo.callback(os.close, pidfd)
        if not cue.wait(pidfd, _STAGE_SECONDS):
            _end(process, group)
            raise LaunchError(f"the sandbox's place was not made: {pipes.said()}", hint="tidegate doctor")
        group.verify_member(process.pid)
        disk = os.open(stage.seen_from(process.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, disk)
        cue.go()
        yield _Launch(process, pidfd, disk, pipes)


def _process(command: list[str], pipes: Pipes) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = pipes.theirs
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": SYSTEM_PATH},
            cwd="/",
            close_fds=True,
            start_new_session=True,
        )
    finally:
        pipes.close_theirs()


def _wrapped(runtime: Runtime, job: Job, stage: Stage, group: Cgroup) -> list[str]:
    return wrapped(
        stage,
        job.root,
        job.limits,
        groups=group.doors(),
        hide_sysctl=job.net == "veth" and runtime.hide_sysctl,
        command=_command(runtime, job, stage),
    )


def _command(runtime: Runtime, job: Job, stage: Stage) -> list[str]:
    return [
        str(runtime.path),
        f"--root={stage.state}",
        f"--platform={runtime.platform}",
        f"--network={'sandbox' if job.net == 'veth' else 'none'}",
        f"--host-uds={'open' if job.net == 'uds' else 'none'}",
        "--host-fifo=none",
        "--net-raw=false",
        "--oci-seccomp",
        # The root is read-only, and a writable layer of runsc's own would be a file on the host's disk.
        "--overlay2=none",
        # It is in its group already; runsc would only make more of them.
        "--ignore-cgroups",
        f"--log={stage.log}",
        "--log-format=json",
        f"--panic-log={stage.panic}",
        "run",
        f"--bundle={stage.bundle}",
        secrets.token_hex(16),
    ]


def _end(process: subprocess.Popen[bytes], group: Cgroup) -> None:
    """End all that is in the group, and what started it. Bounded, and safe to call again."""
    group.kill(_END_SECONDS)
    try:
        process.wait(_END_SECONDS)
        return
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _remove(group: Cgroup) -> None:
    if not group.remove():
        raise LaunchError("a part of the sandbox does not end", where=group.name, hint="see its cgroup.procs")


def _result(job: Job, stage: Stage, group: Cgroup, captured: Captured, code: int | None, *, disk_full: bool) -> Result:
    counted = msgspec.structs.replace(group.counters(), disk_full=disk_full)
    if captured.alarmed and not counted.oom_kills:
        # We may have been faster than the kernel with what it was about to kill.
        counted = msgspec.structs.replace(counted, oom_kills=1)
    # Whatever it says beside an ending that is the command's own is no failure.
    detail = "" if code == 0 else _own_fault(stage)
    outcome = classify(
        code, timed_out=captured.timed_out, flooded=captured.flooded, failed=bool(detail), counters=counted
    )
    ours = captured.timed_out or captured.flooded or captured.alarmed or bool(detail)
    return Result(
        outcome=outcome,
        untrusted_exit_code=None if ours else code,
        untrusted_stdout=captured.stdout,
        untrusted_stderr=captured.stderr,
        truncated=captured.flooded,
        seconds=captured.seconds,
        counters=counted,
        detail=detail,
    )


def _own_fault(stage: Stage) -> str:
    """Return what runsc itself reports as failed; its own files, which no guest can write."""
    for line in _tail(stage.log):
        try:
            told = msgspec.json.decode(line, type=_LogLine)
        except msgspec.DecodeError:
            continue
        if told.level == "error":
            return told.msg[:1000]
    panic = _tail(stage.panic)
    return f"the sandbox's kernel fell: {panic[0][:500].decode('utf-8', 'replace')}" if panic else ""


class _LogLine(msgspec.Struct):
    msg: str = ""
    level: str = ""


def _tail(file: Path) -> list[bytes]:
    try:
        with file.open("rb") as opened:
            return opened.read(_LOG_BYTES).splitlines()
    except OSError:
        return []
