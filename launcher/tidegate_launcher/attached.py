"""A boundary's own program, attached: from its start in its place to nothing left.

| made, in this order | unmade, in the reverse |
|---|---|
| the control group, where there is one, with its limits read back | all in it killed, then removed |
| the place (mounts, in a namespace of its own), and `ready` | ends with its last process |
| membership checked by the kernel's word, a guard of the group, the disk opened, then `go` | closed |
| the program, read from until it ends, or our limits end it | killed, with all that is in its group |
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Collect, Sink
from tidegate_launcher.capture import Captured, Pipes, capture
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.program import SYSTEM_PATH
from tidegate_launcher.result import Counters, Result, classify
from tidegate_launcher.stage import Cue, Stage

__all__ = ["Attached", "attached", "grouped", "made_of"]

_STAGE_SECONDS: Final = 10.0
_END_SECONDS: Final = 2.0
_AGAIN: Final = "try again; tidegate doctor says what is missing"
_GUARD: Final = """
read -r word
tries=0
while [ $tries -lt 200 ]; do
    left=
    for members; do
        [ ! -w "${members%procs}kill" ] || echo 1 >"${members%procs}kill"
        for each in "$members" "${members%/*}"/*/cgroup.procs; do
            while read -r pid; do left=yes; kill -KILL "$pid"; done <"$each"
        done
    done
    [ "$left" ] || exit 0
    tries=$((tries + 1))
    sleep 0.02
done
"""


@contextlib.contextmanager
def grouped(limits: Limits, hierarchy: Hierarchy, *, extra_bytes: int) -> Iterator[Cgroup]:
    """Yield a fresh control group with these limits, which is gone afterwards. Raises `LaunchError`."""
    group = Cgroup.create(limits, extra_bytes=extra_bytes, hierarchy=hierarchy)
    try:
        yield group
    finally:
        if not group.remove():
            raise LaunchError("a part of the sandbox does not end", where=group.name, hint="see its cgroup.procs")


class Attached:
    """A program that was let go."""

    def __init__(
        self, process: subprocess.Popen[bytes], pidfd: int, disk: int, pipes: Pipes, group: Cgroup | None
    ) -> None:
        self._process, self._pidfd, self._disk, self._pipes, self._group = process, pidfd, disk, pipes, group

    def watch(self, job: Job, sink: Sink | None, cancel: int | None) -> Captured:
        """Read from it until its end, or until one of our limits. Raises `Cancelled`."""
        with self.alarm() as alarm:
            captured = capture(
                self._pipes,
                pidfd=self._pidfd,
                seconds=job.limits.seconds,
                limit=job.limits.output_bytes,
                stop=self.stop,
                sink=sink,
                alarm=alarm,
                cancel=cancel,
            )
        if captured.cancelled:
            raise Cancelled
        return captured

    @property
    def pidfd(self) -> int:
        """A descriptor that is readable once the program has ended."""
        return self._pidfd

    def said(self) -> str:
        """Return what waits on its stderr, for an error."""
        return self._pipes.said() or "nothing was said in time"

    def give(self, stdin: BinaryIO | None) -> None:
        """Take what it is to be given, where that was left open (`later`)."""
        self._pipes.give(stdin)

    @property
    def pipes(self) -> Pipes:
        """Its streams."""
        return self._pipes

    @contextlib.contextmanager
    def alarm(self) -> Iterator[int | None]:
        """Yield a descriptor that is readable once its memory has run out, where there is one."""
        if self._group is None:
            yield None
            return
        with self._group.memory_alarm() as alarm:
            yield alarm

    def stop(self) -> None:
        """End it. Bounded, and safe to call again."""
        _end(self._process, self._group)

    def code(self) -> int | None:
        """End what is left of it, and return how it ended, as a shell has it; None when it would not."""
        _end(self._process, self._group)
        code = self._process.returncode
        return 128 - code if code is not None and code < 0 else code

    def counted(self, captured: Captured) -> Counters:
        """Return what was counted outside of it."""
        found = os.fstatvfs(self._disk)
        counted = Counters() if self._group is None else self._group.counters()
        if captured.alarmed and not counted.oom_kills:
            # We may have been faster than the kernel with what it was about to kill.
            counted = msgspec.structs.replace(counted, oom_kills=1)
        return msgspec.structs.replace(counted, disk_full=found.f_bavail == 0 or found.f_favail == 0)

    def collect(self, collect: Collect | None) -> None:
        """Show what was left in /work."""
        if collect is None:
            return
        # The command may have shut it, where it runs as our own user. It is no link: its parent is out of reach inside.
        os.chmod("work", 0o700, dir_fd=self._disk)
        work = os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._disk)
        try:
            collect(work)
        finally:
            os.close(work)

    def ended(self, captured: Captured, collect: Collect | None, fault: Callable[[int | None], str]) -> Result:
        """End what is left of it, show what was left in /work, and return the result.

        `fault` is asked last, with how it ended, what failed of the boundary itself.
        """
        code, counted = self.code(), self.counted(captured)
        self.collect(collect)
        return made_of(captured, code, counted, fault(code))


@contextlib.contextmanager
def attached(
    command: list[str],
    stage: Stage,
    group: Cgroup | None,
    stdin: BinaryIO | None,
    *,
    later: bool = False,
    passed: Sequence[int] = (),
    kept: Sequence[int] = (),
    before: Callable[[], None] | None = None,
) -> Iterator[Attached]:
    """Start a command that makes its place and waits there, check where it is, and let it go. Raises `LaunchError`.

    `later`: what it is given on stdin is told afterwards (`Attached.give`). The command has the descriptors `passed`.
    Those that are `kept` stay open until its group is empty, however we end. `before` is called when all stands, right
    before it is let go; what it raises is raised, and nothing has run then.
    """
    with contextlib.ExitStack() as undo:
        try:
            pipes = undo.enter_context(contextlib.closing(Pipes(stdin, later=later)))
            launch, cue = _stood(undo, command, stage, group, pipes, passed, kept)
        except OSError as fault:  # no process is to be had, or it was ended as it waited
            raise _lost(fault) from fault
        if before is not None:
            before()
        try:
            cue.go()
        except OSError as fault:
            raise _lost(fault) from fault
        yield launch


def _lost(fault: OSError) -> LaunchError:
    return LaunchError(f"the sandbox was lost before its start: {fault.strerror}", hint=_AGAIN)


def _stood(
    undo: contextlib.ExitStack, command: list[str], stage: Stage, group: Cgroup | None, pipes: Pipes,
    passed: Sequence[int],
    kept: Sequence[int],
) -> tuple[Attached, Cue]:  # fmt: skip
    cue = undo.enter_context(contextlib.closing(Cue(stage)))
    process = _process(command, pipes, passed)
    undo.callback(_end, process, group)
    pidfd = os.pidfd_open(process.pid)
    undo.callback(os.close, pidfd)
    if not cue.wait(pidfd, _STAGE_SECONDS):
        _end(process, group)
        raise LaunchError(f"the sandbox's place was not made: {pipes.said() or _ending(process)}", hint=_AGAIN)
    if group is not None:
        group.verify_member(process.pid)
        undo.enter_context(_guarded(group, kept))
    disk = os.open(stage.seen_from(process.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    undo.callback(os.close, disk)
    return Attached(process, pidfd, disk, pipes, group), cue


def _ending(process: subprocess.Popen[bytes]) -> str:
    return f"nothing was said, and its end was {process.returncode}"


@contextlib.contextmanager
def _guarded(group: Cgroup, kept: Sequence[int]) -> Iterator[None]:
    """Have the group killed when this process ends in any way: a process may lose its tie to its parent on its way.

    The guard waits for the end of a pipe of ours, which nobody else holds.
    """
    reading, writing = os.pipe()
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "tidegate", *map(str, group.doors())],
            stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"PATH": SYSTEM_PATH}, cwd="/",
            start_new_session=True, pass_fds=kept,
        )  # fmt: skip
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        yield
    finally:
        guard.kill()
        guard.wait()
        os.close(writing)


def made_of(captured: Captured, code: int | None, counted: Counters, detail: str) -> Result:
    """Return the result; `detail` is the boundary's own failure, if it failed."""
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


def _process(command: list[str], pipes: Pipes, passed: Sequence[int]) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = pipes.theirs
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": SYSTEM_PATH},
            cwd="/",
            pass_fds=passed,
            start_new_session=True,
        )
    finally:
        pipes.close_theirs()


def _end(process: subprocess.Popen[bytes], group: Cgroup | None) -> None:
    """End all that is in the group, and what started it. Bounded, and safe to call again."""
    if group is not None:
        group.kill(_END_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    if process.returncode is None:  # else the number may be another's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
