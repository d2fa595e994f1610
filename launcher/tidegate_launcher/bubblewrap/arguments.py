"""A job as bubblewrap's arguments: what the sandbox is, read from top to bottom."""

import posixpath
from collections.abc import Sequence
from typing import Final

from tidegate_launcher.job import GUEST_GID, GUEST_UID, WORK, Job
from tidegate_launcher.view import AT, bind_at

__all__ = ["arguments", "encoded"]

_NAMESPACES: Final = ("user", "pid", "net", "ipc", "uts", "cgroup-try")


def arguments(job: Job, targets: Sequence[str], *, status: int, seccomp: int) -> list[str]:
    """Return what stands before the command. `targets` are of the place's binds, in their order."""
    return [
        *(f"--unshare-{name}" for name in _NAMESPACES),
        "--uid", str(GUEST_UID), "--gid", str(GUEST_GID),
        "--hostname", job.hostname,
        "--die-with-parent",
        # No terminal of ours, into which something could be typed.
        "--new-session",
        "--cap-drop", "ALL",
        "--clearenv", *(word for name, value in job.variables.items() for word in ("--setenv", name, value)),
        "--ro-bind", f"{AT}/root", "/",
        "--proc", "/proc",
        "--dev", "/dev",
        "--bind", f"{AT}/disk/work", WORK,
        "--bind", f"{AT}/disk/tmp", "/tmp",  # noqa: S108
        "--bind", f"{AT}/disk/shm", "/dev/shm",  # noqa: S108
        # Else a tmpfs without a size, that the guest's own user may fill.
        "--remount-ro", "/dev",
        *(word for number, target in enumerate(targets) for word in ("--ro-bind", str(bind_at(number)), target)),
        "--chdir", posixpath.normpath(job.cwd),
        "--json-status-fd", str(status),
        "--seccomp", str(seccomp),
    ]  # fmt: skip


def encoded(words: Sequence[str]) -> bytes:
    """Return arguments as `--args` reads them: in no list of processes, which anybody on the host may see."""
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
