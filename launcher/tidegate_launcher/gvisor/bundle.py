"""A job as an OCI specification: what the sandbox is, read from top to bottom.

| inside | is |
|---|---|
| `/` | the root, read-only, of which this launch has a view of its own |
| `/work`, `/tmp`, `/dev/shm` | three folders of one tmpfs with `disk_bytes`: the only places that can be written |
| `/proc`, `/sys`, `/dev` | gVisor's own; of `/sys` nothing can be written |
| `/run/tidegate` | with `uds` the folder with the gate's socket |
| binds | read-only, no programs run from them |

The tmpfs is the host's, so that it can be seen from outside whether it is full, and what was left in it.
"""

import posixpath
import stat
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.gvisor.oci import (
    Capabilities,
    Linux,
    Mount,
    Namespace,
    Process,
    Rlimit,
    Root,
    Spec,
    User,
    encode,
)
from tidegate_launcher.gvisor.seccomp import profile
from tidegate_launcher.job import DOOR, GUEST_GID, GUEST_UID, WORK, Bind, Job
from tidegate_launcher.stage import Stage

__all__ = ["config", "spec"]

_CLOSED: Final = ("nosuid", "nodev")
_READ: Final = ("ro", *_CLOSED, "noexec")
_OWN: Final = frozenset({"/", "/proc", "/sys", "/dev", "/tmp", "/dev/shm", WORK, DOOR})  # noqa: S108
_OVER_COMMANDS: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
_WAITING: Final = Capabilities(effective=_OVER_COMMANDS, permitted=_OVER_COMMANDS)
"""What the first process of a sandbox that waits may do: become the command, and end all of it. No command has it."""
_MASKED: Final = (
    "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi",
    "/proc/acpi", "/proc/asound", "/sys/firmware",
)  # fmt: skip
_READONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def config(job: Job, ground: Ground, stage: Stage) -> bytes:
    """Return config.json. Raises `LaunchError` for what cannot be said in one."""
    try:
        return encode(spec(job, ground, stage))
    except UnicodeEncodeError:
        raise LaunchError("the command or its environment is not UTF-8", where="argv", hint="use a file") from None


def spec(job: Job, ground: Ground, stage: Stage) -> Spec:
    """Return the specification of a job on its ground. Raises `LaunchError`."""
    return Spec(
        process=_process(job),
        root=Root(path=str(stage.root)),
        hostname=job.hostname,
        mounts=(*_system(), *_writable(stage), *_door(job, ground), *map(_bound, job.binds)),
        linux=Linux(
            namespaces=_namespaces(job, ground),
            seccomp=profile(),
            masked_paths=_MASKED,
            readonly_paths=_READONLY,
        ),
    )


def _process(job: Job) -> Process:
    return Process(
        user=User(uid=0, gid=0) if job.waits else User(uid=GUEST_UID, gid=GUEST_GID),
        capabilities=_WAITING if job.waits else Capabilities(),
        args=job.argv,
        env=tuple(f"{name}={value}" for name, value in job.variables.items()),
        cwd=posixpath.normpath(job.cwd),
        rlimits=_rlimits(job),
    )


def _rlimits(job: Job) -> tuple[Rlimit, ...]:
    limits = job.limits
    values = {
        # gVisor counts a process as its maker's: a command's own, which our first process makes, is not the command's.
        "RLIMIT_NPROC": limits.pids - (1 if job.waits else 0),
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
    }
    return tuple(Rlimit(type=name, soft=value, hard=value) for name, value in values.items())


def _system() -> tuple[Mount, ...]:
    return (
        Mount(destination="/proc", type="proc", source="proc", options=(*_CLOSED, "noexec")),
        Mount(destination="/sys", type="sysfs", source="sysfs", options=_READ),
        Mount(destination="/dev", type="tmpfs", source="tmpfs", options=("nosuid", "noexec", "mode=755")),
    )


def _writable(stage: Stage) -> tuple[Mount, ...]:
    # Programs run from /work and /tmp: what pip installs there is shared objects.
    where = {WORK: stage.work, "/tmp": stage.temporary, "/dev/shm": stage.shared}  # noqa: S108
    return tuple(
        Mount(destination=target, type="bind", source=str(source), options=("bind", "rw", *_CLOSED))
        for target, source in where.items()
    )


def _door(job: Job, ground: Ground) -> tuple[Mount, ...]:
    if job.net != "uds":
        return ()
    if ground.door is None:
        raise LaunchError("no socket was made for this sandbox", where="net: uds")
    return (Mount(destination=DOOR, type="bind", source=str(ground.door), options=("bind", *_READ)),)


def _bound(bind: Bind) -> Mount:
    if not bind.target.startswith("/") or ".." in bind.target.split("/"):
        raise LaunchError("a bind's target is a path inside the sandbox, from /", where=bind.target)
    target = "/" + posixpath.normpath(bind.target).strip("/")
    below = target.rstrip("/") + "/"
    if target in _OWN or target.startswith(("/proc/", "/sys/", "/dev/")) or any(own.startswith(below) for own in _OWN):
        raise LaunchError("a bind would hide a part of the sandbox itself", where=bind.target)
    return _read_only(bind.source, target)


def _read_only(source: Path, target: str) -> Mount:
    if not source.is_absolute():
        raise LaunchError("a bind's source is a path from /", where=str(source))
    _refuse_doors(source)
    return Mount(destination=target, type="bind", source=str(source), options=("bind", *_READ))


def _refuse_doors(source: Path) -> None:
    """Raise `LaunchError` for what is, or holds, more than files and folders: a socket or a device is a way out.

    A link inside leads nowhere but inside; one as the source may lead elsewhere by the time that it is mounted.
    """
    if source.is_symlink() or not (source.is_file() or source.is_dir()):
        raise LaunchError("only a regular file or a folder can be bound", where=str(source))
    for folder, _, names in source.walk(follow_symlinks=False):
        for name in names:
            kind = stat.S_IFMT((folder / name).lstat().st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFLNK):
                raise LaunchError("a bound folder holds a socket, a pipe or a device", where=str(folder / name))


def _namespaces(job: Job, ground: Ground) -> tuple[Namespace, ...]:
    if job.net == "veth" and ground.namespace is None:
        raise LaunchError("no network namespace was made for this sandbox", where="net: veth")
    path = str(ground.namespace) if job.net == "veth" else ""
    return (*(Namespace(type=kind) for kind in ("pid", "ipc", "uts", "mount")), Namespace(type="network", path=path))
