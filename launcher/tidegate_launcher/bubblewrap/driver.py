"""One sandbox of bubblewrap's, from its start to nothing left (`attached`).

Without a control group, bubblewrap's end is that of the sandbox's first process, and so of its PID namespace.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tidegate import seccomp
from tidegate_launcher.attached import attached, grouped, made_of
from tidegate_launcher.binds import bound
from tidegate_launcher.boundary import Collect, Ground, Sink
from tidegate_launcher.bubblewrap.arguments import arguments, encoded
from tidegate_launcher.bubblewrap.place import wrapped
from tidegate_launcher.bubblewrap.user import claimed
from tidegate_launcher.capture import Captured
from tidegate_launcher.job import Job
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.readiness import is_readable
from tidegate_launcher.result import Result
from tidegate_launcher.stage import make_stage

__all__ = ["run_sandbox"]

_AROUND_BYTES: Final = 16 * 1024 * 1024
"""Memory for bubblewrap itself, beside what the guest may have."""
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
    cancel: int | None = None,
) -> Result:
    """Run a job to its end, or until `cancel` is readable; in a control group when `hierarchy` is given.

    Raises `LaunchError`, and `Cancelled`.
    """
    with contextlib.ExitStack() as undo:
        binds = bound(job, ground)
        user = undo.enter_context(claimed()) if os.geteuid() == 0 else None
        stage = make_stage(ground.scratch, "bubblewrap")
        undo.callback(shutil.rmtree, stage.folder, ignore_errors=True)
        group = None
        if hierarchy is not None:
            group = undo.enter_context(grouped(job.limits, hierarchy, extra_bytes=_AROUND_BYTES))
        told, telling = os.pipe()
        undo.callback(os.close, told)
        with contextlib.ExitStack() as theirs:
            theirs.callback(os.close, telling)
            passed = _Passed.make(job, [target for _, target in binds], telling, theirs)
            command = [str(program), "--args", str(passed.arguments), "--", *job.argv]
            command = wrapped(
                stage, job, binds, user=None if user is None else user.number,
                groups=() if group is None else group.doors(), command=command,
            )  # fmt: skip
            launch = undo.enter_context(
                attached(
                    command, stage, group, stdin, passed=(passed.arguments, passed.seccomp, passed.status),
                    kept=() if user is None else (user.lock,),
                )
            )  # fmt: skip
        captured = launch.watch(job, sink, cancel)
        code, status = launch.code(), _said(told)
        if status.child_pid is not None:
            _wait_gone(status.child_pid)
        counted = launch.counted(captured)
        launch.collect(collect)
        ended = captured.timed_out or captured.flooded or counted.oom_kills
        return made_of(captured, code, counted, "" if ended else _own_fault(job, captured, code, status))


class _Status(msgspec.Struct, rename="kebab"):
    """What bubblewrap says on its status descriptor, which the guest has not."""

    child_pid: int | None = None
    exit_code: int | None = None


def _said(told: int) -> _Status:
    status = _Status()
    for line in _read_now(told).splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            one = msgspec.json.decode(line, type=_Status)
            status.child_pid = status.child_pid or one.child_pid
            status.exit_code = status.exit_code if one.exit_code is None else one.exit_code
    return status


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


def _wait_gone(pid: int) -> None:
    """Wait for a process' end, which was decided already. It is not ours to take, and nothing is sent to it."""
    with contextlib.suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as pidfd:
        is_readable(pidfd.fileno(), _END_SECONDS)


def _read_now(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, _STATUS_BYTES)
    return b""


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
