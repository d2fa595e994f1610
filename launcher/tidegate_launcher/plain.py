"""A command with nothing around it: «none». Not a boundary against an attacker.

For comparison, and for code that is trusted anyway. It is made only by who says `unsafe`, and says on stderr what it is
whenever it runs. Output is bounded. When its time is over the command is ended, and what is in its process group; what
has left the group is not found, so no limit on time is claimed, nor any other. It has the host's files and network.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.errors import LaunchError
from tidegate_launcher.attached import made_of
from tidegate_launcher.boundary import Cancelled, Capability, Collect, Ground, Sink
from tidegate_launcher.capture import Captured, Pipes, capture
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.program import SYSTEM_PATH, find_program
from tidegate_launcher.result import Counters, Outcome, Result
from tidegate_launcher.unsafe import must_be_wanted, warn

__all__ = ["Bare"]

_CAPABILITIES: Final = frozenset({Capability.OUTPUT})
_END_SECONDS: Final = 2.0


class Bare:
    """Runs jobs as processes of this user, on this host."""

    def __init__(self, *, unsafe: bool = False) -> None:
        """Take the word of who asks that this is wanted. Raises `LaunchError` without."""
        must_be_wanted(self.name, unsafe=unsafe)

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "none"

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce: next to nothing."""
        return _CAPABILITIES

    def run(
        self,
        job: Job,
        ground: Ground,
        *,
        stdin: BinaryIO | None = None,
        sink: Sink | None = None,
        collect: Collect | None = None,
        cancel: int | None = None,
    ) -> Result:
        """Run a job in a folder of its own, which goes at the end; its root is not used. See `Boundary.run`."""
        if collect is not None:
            raise LaunchError(f"the boundary {self.name} cannot enforce a folder to copy out", where="--out")
        if job.binds:
            raise LaunchError("the boundary none cannot enforce files that are bound", where="--boundary")
        warn(self.name)
        environment = dict(job.environment)
        program = shutil.which(job.argv[0], path=environment.get("PATH", SYSTEM_PATH))
        if program is None:
            return Result(outcome=Outcome.LAUNCH_ERROR, detail=f"there is no program {job.argv[0][:200]}")
        work = ground.scratch / "work"
        work.mkdir(0o700)
        try:
            environment.setdefault("HOME", str(work))
            command = [*_limited(job.limits), program, *job.argv[1:]]
            return _run(command, environment, work, job.limits, stdin=stdin, sink=sink, cancel=cancel)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    work: Path,
    limits: Limits,
    *,
    stdin: BinaryIO | None,
    sink: Sink | None,
    cancel: int | None,
) -> Result:
    with contextlib.ExitStack() as undo:
        pipes = undo.enter_context(contextlib.closing(Pipes(stdin)))
        process = _started(command, environment, work, pipes)
        undo.callback(_end, process)
        pidfd = os.pidfd_open(process.pid)
        undo.callback(os.close, pidfd)
        captured = capture(
            pipes,
            pidfd=pidfd,
            seconds=limits.seconds,
            limit=limits.output_bytes,
            stop=lambda: _end(process),
            sink=sink,
            cancel=cancel,
        )
        _end(process)
        if captured.cancelled:
            raise Cancelled
        return _result(captured, process.returncode)


def _started(command: Sequence[str], environment: dict[str, str], work: Path, pipes: Pipes) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = pipes.theirs
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=work, start_new_session=True
        )
    finally:
        pipes.close_theirs()


def _limited(limits: Limits) -> list[str]:
    return [find_program("prlimit"), f"--nofile={limits.open_files}", f"--fsize={limits.file_bytes}", "--core=0", "--"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group. Bounded, and safe to call again."""
    if process.returncode is not None:
        return  # the number may be another's by now
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _result(captured: Captured, returned: int | None) -> Result:
    return made_of(captured, 128 - returned if returned is not None and returned < 0 else returned, Counters(), "")
