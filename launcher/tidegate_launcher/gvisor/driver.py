"""One sandbox, from its start to nothing left: attached `runsc run`, in a group and a place of its own (`attached`).

All that belongs to a sandbox is in its group from before runsc is there: runsc, its gofer, its kernel, its stubs. So
what ends it is the kernel, at once, and not a question to a program that may hang. Nothing else of it is on the host:
its state lies in the scratch, and its mounts in its own namespace.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from tidegate_launcher.attached import attached, grouped
from tidegate_launcher.boundary import Collect, Ground, Sink
from tidegate_launcher.gvisor.bundle import config
from tidegate_launcher.gvisor.runsc import Runtime
from tidegate_launcher.gvisor.stage import RunscStage, make_stage, place, wrapped
from tidegate_launcher.job import Job
from tidegate_launcher.kept.control import Control
from tidegate_launcher.kept.held import Held, waiting
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.mounts import MountSpace
from tidegate_launcher.oci.log import LOG_BYTES, lines_of, logged_fault
from tidegate_launcher.result import Result
from tidegate_launcher.stage import put

__all__ = ["SENTRY_BYTES", "hold_sandbox", "run_sandbox"]

SENTRY_BYTES: Final = 64 * 1024 * 1024
"""Memory for gVisor's own processes, beside what the guest may have."""
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})
_FAILED: Final = 128
"""The code with which runsc ends when it fails itself."""


def run_sandbox(
    runtime: Runtime,
    job: Job,
    ground: Ground,
    *,
    hierarchy: Hierarchy,
    complete: Callable[[], Job] | None = None,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    collect: Collect | None = None,
    cancel: int | None = None,
) -> Result:
    """Run a job to its end, or until `cancel` is readable. Raises `LaunchError`, and `Cancelled`.

    `complete`: the job is a sketch, which this makes whole (`Early`).
    """
    with contextlib.ExitStack() as undo:
        stage, space, group = undo.enter_context(_staged(runtime, job, ground, hierarchy))
        command = wrapped(stage, space, groups=group.doors(), command=_command(runtime, job, stage))
        write = _writing(stage, ground, complete or (lambda: job))
        launch = undo.enter_context(attached(command, stage, group, stdin, before=write))
        return launch.ended(launch.watch(job, sink, cancel), collect, lambda code: _own_fault(stage, code))


@contextlib.contextmanager
def hold_sandbox(runtime: Runtime, job: Job, ground: Ground, *, hierarchy: Hierarchy, many: bool) -> Iterator[Held]:
    """Yield a sandbox that waits for its command, or for `many`; nothing is left of it. Raises `LaunchError`."""
    with contextlib.ExitStack() as undo:
        job = waiting(job, ground.scratch, many=many)
        stage, space, group = undo.enter_context(_staged(runtime, job, ground, hierarchy))
        control = undo.enter_context(contextlib.closing(Control()))
        theirs = control.theirs
        command = _command(runtime, job, stage, passed=theirs)
        command = wrapped(stage, space, groups=group.doors(), command=command)
        write = _writing(stage, ground, lambda: job)
        launch = undo.enter_context(
            attached(command, stage, group, None, later=True, passed=tuple(theirs), before=write)
        )
        control.close_theirs()
        held = Held(launch, control, lambda code: _own_fault(stage, code))
        held.wait()
        yield held


def _writing(stage: RunscStage, ground: Ground, complete: Callable[[], Job]) -> Callable[[], None]:
    return lambda: put(stage.bundle / "config.json", config(complete(), ground, stage))


@contextlib.contextmanager
def _staged(
    runtime: Runtime, job: Job, ground: Ground, hierarchy: Hierarchy
) -> Iterator[tuple[RunscStage, MountSpace, Cgroup]]:
    stage = make_stage(ground.scratch)
    try:
        hide = job.net == "veth" and runtime.hide_sysctl
        with (
            place(stage, job.root, job.limits, hide=hide) as space,
            grouped(job.limits, hierarchy, extra_bytes=SENTRY_BYTES) as group,
        ):
            yield stage, space, group
    finally:
        shutil.rmtree(stage.folder, ignore_errors=True)


def _command(runtime: Runtime, job: Job, stage: RunscStage, *, passed: Mapping[int, int] = _NOTHING) -> list[str]:
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
        *(f"--pass-fd={ours}:{theirs}" for ours, theirs in passed.items()),
        f"--bundle={stage.bundle}",
        secrets.token_hex(16),
    ]


def _own_fault(stage: RunscStage, code: int | None) -> str:
    """Return what runsc itself reports as failed; its own files, which no guest can write."""
    if code == 0:  # whatever it says beside an ending that is the command's own is no failure
        return ""
    if fault := logged_fault(stage.log):
        return fault
    if panic := lines_of(stage.panic):
        return f"the sandbox's kernel fell: {panic[0][:500].decode('utf-8', 'replace')}"
    if code == _FAILED and not _room(stage.folder):
        return "runsc failed, or the command did, and there was no room left to tell which"
    return ""


def _room(folder: Path) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= LOG_BYTES and (not found.f_files or found.f_favail > 0)
