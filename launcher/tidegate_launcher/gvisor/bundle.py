"""A job as an OCI specification for runsc: what the sandbox is, read from top to bottom.

| inside | is |
|---|---|
| `/` | the root, read-only, of which this launch has a view of its own |
| `/work`, `/tmp`, `/dev/shm` | three folders of one tmpfs with `disk_bytes`: the only places that can be written |
| `/proc`, `/sys`, `/dev` | gVisor's own; of `/sys` nothing can be written |
| `/run/tidegate` | with `uds` the folder with the gate's socket |
| binds | read-only, no programs run from them |
"""

from typing import Final

import msgspec

from tidegate_launcher.binds import bound
from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.seccomp import profile
from tidegate_launcher.job import Job
from tidegate_launcher.oci.bundle import CLOSED, MASKED, READONLY, encoded, given, namespaces, process, writable
from tidegate_launcher.oci.form import Capabilities, Linux, Mount, Process, Root, Spec, User
from tidegate_launcher.stage import Stage

__all__ = ["config", "spec"]

_OVER_COMMANDS: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
_WAITING: Final = Capabilities(effective=_OVER_COMMANDS, permitted=_OVER_COMMANDS)
"""What the first process of a sandbox that waits may do: become the command, and end all of it. No command has it."""


def config(job: Job, ground: Ground, stage: Stage) -> bytes:
    """Return config.json. Raises `LaunchError` for what cannot be said in one."""
    return encoded(spec(job, ground, stage))


def spec(job: Job, ground: Ground, stage: Stage) -> Spec:
    """Return the specification of a job on its ground. Raises `LaunchError`."""
    return Spec(
        process=_process(job),
        root=Root(path=str(stage.root)),
        hostname=job.hostname,
        mounts=(*_system(), *writable(stage.disk), *(given(*pair) for pair in bound(job, ground))),
        linux=Linux(
            namespaces=namespaces(job, ground, "pid", "ipc", "uts", "mount"),
            seccomp=profile(),
            masked_paths=MASKED,
            readonly_paths=READONLY,
        ),
    )


def _process(job: Job) -> Process:
    if not job.waits:
        return process(job, pids=job.limits.pids)
    # gVisor counts a process as its maker's: a command's own, which our first process makes, is not the command's.
    first = process(job, pids=job.limits.pids - 1)
    return msgspec.structs.replace(first, user=User(uid=0, gid=0), capabilities=_WAITING)


def _system() -> tuple[Mount, ...]:
    return (
        Mount(destination="/proc", type="proc", source="proc", options=(*CLOSED, "noexec")),
        Mount(destination="/sys", type="sysfs", source="sysfs", options=("ro", *CLOSED, "noexec")),
        Mount(destination="/dev", type="tmpfs", source="tmpfs", options=("nosuid", "noexec", "mode=755")),
    )
