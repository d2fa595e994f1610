"""One machine, from its start to nothing left (`attached`): QEMU alone is on the host, and all of it in its group.

The command's time begins when the machine is up. That, how it ended and what the disk had left is the machine's own
word; what ends it, and bounds memory, processors, output and time, is outside of it.
"""

import contextlib
import fcntl
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.attached import Attached, attached, grouped, made_of
from tidegate_launcher.binds import bound, refuse_links
from tidegate_launcher.boundary import Collect, Ground, Sink
from tidegate_launcher.capture import Captured
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Job
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.microvm.disk import open_disk
from tidegate_launcher.microvm.guest import write_guest
from tidegate_launcher.microvm.kernel import Kernel
from tidegate_launcher.microvm.left import unpacked
from tidegate_launcher.microvm.machine import AROUND_BYTES, KERNEL_BYTES, Accelerator, machine
from tidegate_launcher.microvm.place import ERR, INITRD, KERNEL, LEFT, OUT, left_bytes, wrapped
from tidegate_launcher.microvm.word import Word, heard, wait_up
from tidegate_launcher.net.tap import open_tap
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.stage import Stage, make_stage

__all__ = ["Means", "run_machine"]

_UP_SECONDS: Final[dict[Accelerator, float]] = {"kvm": 10.0, "tcg": 60.0}
_FREE_DESCRIPTOR: Final = 10
"""The lowest that is passed: those below are the script's."""


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What machines are made by here."""

    qemu: Path
    kernel: Kernel
    accelerator: Accelerator
    hierarchy: Hierarchy


def run_machine(
    means: Means,
    job: Job,
    ground: Ground,
    *,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    collect: Collect | None = None,
    cancel: int | None = None,
) -> Result:
    """Run a job to its end, or until `cancel` is readable. Raises `LaunchError`, and `Cancelled`."""
    with contextlib.ExitStack() as undo:
        given = bound(job, ground)
        refuse_links(job, given)
        stage = make_stage(ground.scratch, "microvm")
        undo.callback(shutil.rmtree, stage.folder, ignore_errors=True)
        ahead = _written(stage, means.kernel, job, given, stdin=stdin is not None, collect=collect is not None)
        # The kernel's list of its pages grows with them, and the first root lies there twice while it is unpacked.
        inside = job.limits.memory_bytes + job.limits.memory_bytes // 32 + KERNEL_BYTES + 2 * ahead
        extra = inside - job.limits.memory_bytes + AROUND_BYTES + left_bytes(job.limits)
        group = undo.enter_context(grouped(job.limits, means.hierarchy, extra_bytes=extra))
        told, telling = os.pipe()
        undo.callback(os.close, told)
        with contextlib.ExitStack() as theirs:
            word = theirs.enter_context(_high(telling))
            disk = theirs.enter_context(_high(open_disk(job.root)))
            tap = theirs.enter_context(_high(open_tap(ground.linked()))) if job.net == "veth" else None
            command = _command(
                means, job, inside, word, disk, tap, stdin=stdin is not None, collect=collect is not None
            )
            command = wrapped(
                stage, job.limits, means.kernel.path, kvm=means.accelerator == "kvm", groups=group.doors(),
                command=command,
            )  # fmt: skip
            launch = undo.enter_context(
                attached(command, stage, group, stdin, passed=(word, disk) if tap is None else (word, disk, tap))
            )
        first = wait_up(told, _UP_SECONDS[means.accelerator], cancel=cancel)
        if first.absent:
            return Result(outcome=Outcome.LAUNCH_ERROR, detail=f"there is no program {job.argv[0][:500]!r} in the root")
        if not first.up:
            launch.code()
            raise LaunchError(f"the machine did not come up: {launch.said()}", hint="tidegate doctor")
        return _ended(launch, launch.watch(job, sink, cancel), told, job, stage, collect)


def _ended(launch: Attached, captured: Captured, told: int, job: Job, stage: Stage, collect: Collect | None) -> Result:
    launch.code()
    word, counted = heard(told), launch.counted(captured)
    overflowed = counted.disk_full
    counted = msgspec.structs.replace(
        counted, disk_full=word.disk_full, oom_kills=max(counted.oom_kills, word.oom_kills)
    )
    result = made_of(captured, word.code, counted, _own_fault(captured, word))
    if collect is None or word.code is None:
        return result
    try:
        if overflowed:
            raise LaunchError("what it left in /work is larger than its disk")
        told_of = unpacked(launch, collect, stage.folder, job.limits)
    except LaunchError as fault:
        return msgspec.structs.replace(result, outcome=Outcome.LAUNCH_ERROR, detail=f"nothing was copied out: {fault}")
    return msgspec.structs.replace(result, detail=result.detail or told_of)


def _own_fault(captured: Captured, word: Word) -> str:
    ended = captured.timed_out or captured.flooded or captured.alarmed
    return "" if ended or word.code is not None else "the machine fell, or was ended from outside"


def _written(
    stage: Stage, kernel: Kernel, job: Job, given: tuple[tuple[Path, str], ...], *, stdin: bool, collect: bool
) -> int:
    """Write the machine's first root, for QEMU's user alone, and return its size."""
    path = stage.folder / "initrd"
    try:
        with path.open("wb") as file:
            os.fchmod(file.fileno(), 0o400)
            os.fchown(file.fileno(), GUEST_UID, GUEST_GID)
            write_guest(file, kernel, job, given, stdin=stdin, collect=collect)
            return file.tell()
    except OSError as fault:
        raise LaunchError(f"the machine's first root cannot be written: {fault.strerror}", where=str(path)) from fault


def _command(
    means: Means, job: Job, memory_bytes: int, word: int, disk: int, tap: int | None, *, stdin: bool, collect: bool
) -> list[str]:
    ports = {"word": word, "out": OUT, "err": ERR, **({"left": LEFT} if collect else {})}
    return [
        str(means.qemu),
        *machine(
            means.accelerator, kernel=KERNEL, initrd=INITRD, memory_bytes=memory_bytes,
            processors=min(math.ceil(job.limits.cpus), os.cpu_count() or 1), ports=ports, disk=disk,
            tap=tap, stdin=stdin,
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def _high(descriptor: int) -> Iterator[int]:
    """Yield a descriptor's double that is above the script's own; both are closed."""
    try:
        double = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE_DESCRIPTOR)
    finally:
        os.close(descriptor)
    try:
        yield double
    finally:
        os.close(double)
