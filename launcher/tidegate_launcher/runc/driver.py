"""One sandbox of runc's, from its start to nothing left: attached `runc run`, in a group and a place of its own.

All that belongs to it is in its group from before runc is there (`attached`); the group that runc makes lies in it
(`place`). What ends it is the kernel, at once. runc passes its output on, so that no pipe of ours is inside.
"""

import contextlib
import secrets
import shutil
from pathlib import Path
from typing import BinaryIO, Final

from tidegate_launcher.attached import attached, grouped
from tidegate_launcher.binds import bound
from tidegate_launcher.boundary import Collect, Ground, Sink
from tidegate_launcher.job import Job
from tidegate_launcher.limits.hierarchy import Hierarchy
from tidegate_launcher.oci.log import logged_fault
from tidegate_launcher.oci.stage import RuntimeStage
from tidegate_launcher.result import Result
from tidegate_launcher.runc.bundle import config
from tidegate_launcher.runc.place import wrapped
from tidegate_launcher.stage import put

__all__ = ["run_sandbox"]

_AROUND_BYTES: Final = 32 * 1024 * 1024
"""Memory for runc itself, and the copy of itself that newer ones make, beside what the guest may have."""


def run_sandbox(
    program: Path,
    job: Job,
    ground: Ground,
    *,
    hierarchy: Hierarchy,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    collect: Collect | None = None,
    cancel: int | None = None,
) -> Result:
    """Run a job to its end, or until `cancel` is readable. Raises `LaunchError`, and `Cancelled`."""
    with contextlib.ExitStack() as undo:
        binds = bound(job, ground)
        stage = RuntimeStage.make(ground.scratch, "runc")
        undo.callback(shutil.rmtree, stage.folder, ignore_errors=True)
        put(stage.bundle / "config.json", config(job, ground, binds))
        group = undo.enter_context(grouped(job.limits, hierarchy, extra_bytes=_AROUND_BYTES))
        command = wrapped(stage, job, binds, group=group, command=_command(program, stage))
        launch = undo.enter_context(attached(command, stage, group, stdin))
        captured = launch.watch(job, sink, cancel)
        # Whatever it says beside an ending that is the command's own is no failure.
        return launch.ended(captured, collect, lambda code: "" if code == 0 else logged_fault(stage.log))


def _command(program: Path, stage: RuntimeStage) -> list[str]:
    return [
        str(program),
        f"--root={stage.state}",
        f"--log={stage.log}",
        "--log-format=json",
        "run",
        f"--bundle={stage.bundle}",
        secrets.token_hex(16),
    ]
