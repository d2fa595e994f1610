"""A job as parts of an OCI specification: those that are the same whichever runtime reads them.

The tmpfs behind `/work`, `/tmp` and `/dev/shm` is the host's, so that it can be seen from outside whether it is full,
and what was left in it.
"""

import posixpath
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import GUEST_GID, GUEST_UID, WORK, Job, Limits
from tidegate_launcher.oci.form import Mount, Namespace, Process, Rlimit, Spec, User, encode

__all__ = ["CLOSED", "MASKED", "READONLY", "encoded", "given", "namespaces", "process", "writable"]

CLOSED: Final = ("nosuid", "nodev")
"""Of every mount."""
MASKED: Final = (
    "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi",
    "/proc/acpi", "/proc/asound", "/sys/firmware",
)  # fmt: skip
READONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def encoded(spec: Spec) -> bytes:
    """Return config.json. Raises `LaunchError` for what cannot be said in one."""
    try:
        return encode(spec)
    except UnicodeEncodeError:
        raise LaunchError("the command or its environment is not UTF-8", where="argv", hint="use a file") from None


def process(job: Job, *, pids: int) -> Process:
    """Return the command, as nobody and without a right; `pids` is its RLIMIT_NPROC."""
    return Process(
        user=User(uid=GUEST_UID, gid=GUEST_GID),
        args=job.argv,
        env=tuple(f"{name}={value}" for name, value in job.variables.items()),
        cwd=posixpath.normpath(job.cwd),
        rlimits=_rlimits(job.limits, pids),
    )


def _rlimits(limits: Limits, pids: int) -> tuple[Rlimit, ...]:
    values = {
        "RLIMIT_NPROC": pids,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
    }
    return tuple(Rlimit(type=name, soft=value, hard=value) for name, value in values.items())


def writable(disk: Path) -> tuple[Mount, ...]:
    """Return the only places that can be written: three folders of a disk."""
    # Programs run from /work and /tmp: what pip installs there is shared objects.
    where = {WORK: "work", "/tmp": "tmp", "/dev/shm": "shm"}  # noqa: S108
    return tuple(
        Mount(destination=target, type="bind", source=str(disk / name), options=("bind", "rw", *CLOSED))
        for target, name in where.items()
    )


def given(source: Path, target: str) -> Mount:
    """Return what is bound for the sandbox to read, from which no program is run."""
    return Mount(destination=target, type="bind", source=str(source), options=("bind", "ro", *CLOSED, "noexec"))


def namespaces(job: Job, ground: Ground, *kinds: str) -> tuple[Namespace, ...]:
    """Return fresh namespaces of these kinds, and the network's: with `veth` the one that was made for it.

    Raises `LaunchError` where that is not there.
    """
    path = str(ground.linked()) if job.net == "veth" else ""
    return (*(Namespace(type=kind) for kind in kinds), Namespace(type="network", path=path))
