"""The place in which a boundary's own program starts: its folders, and the talk with the script that makes its mounts.

One small shell script, since what it does are a dozen mounts and an exec. It joins its control groups first. Then, in a
mount namespace of its own (without root in a user namespace too), it makes

- a view of the root (overlay over a tmpfs of 1 MiB): folders that are mounted on are made there, and not in the root
  that all sandboxes share;
- the sandbox's disk, a tmpfs of the limit's size;
- what else its boundary needs.

Nothing of it is in the launcher's own namespace, so that nothing is left however the launcher ends. When all stands the
script says `ready` and waits for `go`: in between the launcher checks the groups by the kernel's word, and opens the
disk.
"""

import os
import re
import select
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate.syscall import mount
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Limits
from tidegate_launcher.mounts import NODEV, NOSUID
from tidegate_launcher.program import find_program

__all__ = [
    "JOIN", "WAIT", "Cue", "Stage", "check_root", "inodes", "joining", "make_stage", "placed", "put", "view_of",
]  # fmt: skip

_UNSAYABLE: Final = re.compile(r"[,:\\\n\"]")  # in the options of an overlay
_INODE_BYTES: Final = 4096
_FEWEST_INODES: Final = 1024

JOIN: Final = """
set -eu
umask 022
ulimit -c 0
[ "$PPID" = "$1" ]
shift
while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
shift
"""
"""How a script of ours begins (`joining`): its groups first; all it makes is in them.

A launcher that ended before the tie to it was there ends nothing: who has another parent by then goes no further.
"""
WAIT: Final = """
echo ready >"$stage/ready"
read -r go <"$stage/go"
"""
"""How it says that all stands in `$stage`, and waits."""
_BEGIN: Final = (
    JOIN
    + """
stage=$1 lower=$2 size=$3 inodes=$4 owner=$5
shift 5
at=$stage/place
mount -t tmpfs -o size=1m,nr_inodes=1k,mode=0755,nosuid,nodev tmpfs "$at"
mkdir "$at/root" "$at/upper" "$at/lift" "$at/disk"
# By names that say nothing: a kernel that is shared shows them to the sandbox (/proc/self/mountinfo).
ln -s "$lower" "$at/lower"
cd "$at"
mount -t overlay -o nosuid,nodev,lowerdir=lower,upperdir=upper,workdir=lift overlay root
cd /
mount -t tmpfs -o "size=$size,nr_inodes=$inodes,mode=0755,nosuid,nodev" tmpfs "$at/disk"
mkdir -m 0700 "$at/disk/work"
mkdir -m 1777 "$at/disk/tmp" "$at/disk/shm"
[ "$owner" = ours ] || chown "$owner" "$at/disk/work"
"""
)
_END: Final = (
    WAIT
    + """
exec "$@"
"""
)


class Stage(msgspec.Struct, frozen=True):
    """The folders of one launch, below one of the launcher's, which is 0700."""

    folder: Path

    @property
    def at(self) -> Path:
        """Where all of the place is."""
        return self.folder / "place"

    @property
    def root(self) -> Path:
        """The root as the sandbox sees it. As all below `place`: in the sandbox's mount namespace only."""
        return self.at / "root"

    @property
    def disk(self) -> Path:
        """The one tmpfs that can be written."""
        return self.at / "disk"

    def seen_from(self, pid: int) -> Path:
        """Return the disk by way of a process in the sandbox's mount namespace."""
        return Path(f"/proc/{pid}/root") / self.disk.relative_to("/")


def make_stage(scratch: Path, name: str) -> Stage:
    """Make the folders of a launch in its scratch. Raises `LaunchError`."""
    if _UNSAYABLE.search(str(scratch)) or not scratch.is_absolute():
        raise LaunchError("the scratch folder's name cannot be mounted", where=str(scratch))
    stage = Stage(scratch / name)
    try:
        stage.folder.mkdir(0o700)
        (stage.folder / "place").mkdir(0o700)
        for pipe in ("ready", "go"):
            os.mkfifo(stage.folder / pipe, 0o600)
    except OSError as fault:
        raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(stage.folder)) from fault
    return stage


def put(path: Path, data: bytes) -> None:
    """Write a file of a launch's. Raises `LaunchError`."""
    try:
        path.write_bytes(data)
    except OSError as fault:
        raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(path)) from fault


def check_root(root: Path) -> None:
    """Raise `LaunchError` for a root that cannot be mounted."""
    if _UNSAYABLE.search(str(root)) or not root.is_absolute():
        raise LaunchError("a root's name cannot be mounted", where=str(root), hint="no comma, colon or backslash")
    if not root.is_dir():
        raise LaunchError("there is no such root", where=str(root))


def inodes(limits: Limits) -> int:
    """Return how many files the disk may have."""
    return max(_FEWEST_INODES, limits.disk_bytes // _INODE_BYTES)


def placed(
    stage: Stage,
    root: Path,
    limits: Limits,
    *,
    groups: tuple[Path, ...],
    user: int | None = None,
    script: str = "",
    words: list[str],
) -> list[str]:
    """Return what makes the place and becomes a command there; it dies with the thread that starts it.

    As root, `user` owns /work; without one it is the guest's. `words` are what `script` takes off (the boundary's own
    part; `$at` is the place), and the command. Raises `LaunchError`.
    """
    check_root(root)
    privileged = os.geteuid() == 0
    return [
        find_program("setpriv"), "--pdeathsig", "KILL", "--",
        find_program("unshare"), "--mount", *([] if privileged else ["--user", "--map-root-user"]),
        "--propagation=slave", "--",
        find_program("sh"), "-c", _BEGIN + script + _END, *joining(groups),
        str(stage.folder), str(root), str(limits.disk_bytes),
        str(inodes(limits)),
        _owner(user) if privileged else "ours",
        *words,
    ]  # fmt: skip


def joining(groups: tuple[Path, ...]) -> list[str]:
    """Return a script's name and what its beginning takes off: whose child it is, and its groups, up to a `--`."""
    return ["tidegate", str(os.getpid()), *map(str, groups), "--"]


def view_of(stage: Stage, root: Path, limits: Limits) -> None:
    """Make view and disk as the script does, as root, in the mount namespace of this thread. Raises OSError."""
    at = stage.at
    mount("tmpfs", str(at), "tmpfs", NOSUID | NODEV, "size=1m,nr_inodes=1k,mode=0755")
    for folder in (stage.root, at / "upper", at / "lift", stage.disk):
        _folder(folder, 0o755)
    layers = f"lowerdir={root},upperdir={at}/upper,workdir={at}/lift"
    mount("overlay", str(stage.root), "overlay", NOSUID | NODEV, layers)
    disk = f"size={limits.disk_bytes},nr_inodes={inodes(limits)},mode=0755"
    mount("tmpfs", str(stage.disk), "tmpfs", NOSUID | NODEV, disk)
    for name, mode in (("work", 0o700), ("tmp", 0o1777), ("shm", 0o1777)):
        _folder(stage.disk / name, mode)
    os.chown(stage.disk / "work", GUEST_UID, GUEST_GID)


def _folder(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)  # whatever the umask


def _owner(user: int | None) -> str:
    return f"{GUEST_UID}:{GUEST_GID}" if user is None else f"{user}:{user}"


class Cue:
    """Both ends of the talk with the script: it says when all stands, and goes on when told."""

    def __init__(self, stage: Stage) -> None:
        self._ready = os.open(stage.folder / "ready", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Open for both, so that opening waits for nobody.
        self._go = os.open(stage.folder / "go", os.O_RDWR | os.O_CLOEXEC)

    def wait(self, pidfd: int, seconds: float) -> bool:
        """Wait for `ready`; tell whether it came before the process ended and the time did."""
        poller = select.poll()
        poller.register(self._ready, select.POLLIN)
        poller.register(pidfd, select.POLLIN)
        told = dict(poller.poll(seconds * 1000))
        return bool(told.get(self._ready, 0) & select.POLLIN)

    def go(self) -> None:
        """Let it start."""
        os.write(self._go, b"go\n")

    def close(self) -> None:
        """Close both ends."""
        os.close(self._ready)
        os.close(self._go)
