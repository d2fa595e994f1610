"""The place in which runsc starts: in its control group first, then among mounts that end with it.

One small shell script, since what it does are a dozen mounts and an exec. In a mount namespace of its own it makes

- a view of the root (overlay over a tmpfs of 1 MiB): runsc makes the folders that it mounts on, and would make them
  in the root that all sandboxes share;
- the sandbox's disk, a tmpfs of the limit's size;
- a /proc/meminfo from which runsc tells the guest how much memory there is, as it asks no control group it was not
  told of;
- with `veth` on a kernel that shows `rmem_default` in every network namespace, a /proc/sys without it: runsc takes it
  for a sign of the host's own namespace and refuses (google/gvisor#10704).

Nothing of it is in the launcher's own namespace, so that nothing is left however the launcher ends. When all stands
the script says `ready` and waits for `go`: in between the launcher checks the groups by the kernel's word, and opens
the disk.
"""

import os
import re
import select
import shutil
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Limits

__all__ = ["SYSTEM_PATH", "Cue", "Stage", "make_stage", "wrapped"]

SYSTEM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPT: Final = """
set -eu
umask 022
ulimit -c 0
while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
shift
stage=$1 lower=$2 size=$3 inodes=$4 kib=$5 hide=$6 owner=$7
shift 7
at=$stage/place
mount -t tmpfs -o size=1m,nr_inodes=1k,mode=0755,nosuid,nodev tmpfs "$at"
mkdir "$at/root" "$at/upper" "$at/lift" "$at/disk"
mount -t overlay -o "nosuid,nodev,lowerdir=$lower,upperdir=$at/upper,workdir=$at/lift" overlay "$at/root"
mount -t tmpfs -o "size=$size,nr_inodes=$inodes,mode=0755,nosuid,nodev" tmpfs "$at/disk"
mkdir -m 0700 "$at/disk/work"
mkdir -m 1777 "$at/disk/tmp" "$at/disk/shm"
chown "$owner" "$at/disk/work"
echo "MemTotal: $kib kB" >"$at/meminfo"
mount --bind "$at/meminfo" /proc/meminfo
if [ "$hide" = yes ]; then
    mkdir -p "$at/sys/net/core"
    cat /proc/sys/net/core/somaxconn >"$at/sys/net/core/somaxconn"
    for each in kernel vm user fs; do mkdir "$at/sys/$each"; mount --bind "/proc/sys/$each" "$at/sys/$each"; done
    mount --rbind "$at/sys" /proc/sys
fi
echo ready >"$stage/ready"
read -r go <"$stage/go"
exec "$@"
"""
_UNSAYABLE: Final = re.compile(r"[,:\\\n\"]")  # in the options of an overlay
_INODE_BYTES: Final = 4096
_FEWEST_INODES: Final = 1024


class Stage(msgspec.Struct, frozen=True):
    """The folders of one launch, below one of the launcher's, which is 0700."""

    folder: Path

    @property
    def state(self) -> Path:
        """runsc's own state root."""
        return self.folder / "state"

    @property
    def bundle(self) -> Path:
        """The folder with config.json."""
        return self.folder / "bundle"

    @property
    def log(self) -> Path:
        """What runsc says of itself."""
        return self.folder / "runsc.log"

    @property
    def panic(self) -> Path:
        """What the sandbox's kernel says when it falls."""
        return self.folder / "panic.log"

    @property
    def root(self) -> Path:
        """The root as the sandbox sees it. As all below `place`: in the sandbox's mount namespace only."""
        return self.folder / "place" / "root"

    @property
    def disk(self) -> Path:
        """The one tmpfs that can be written."""
        return self.folder / "place" / "disk"

    @property
    def work(self) -> Path:
        """The sandbox's /work."""
        return self.disk / "work"

    @property
    def temporary(self) -> Path:
        """The sandbox's /tmp."""
        return self.disk / "tmp"

    @property
    def shared(self) -> Path:
        """The sandbox's /dev/shm."""
        return self.disk / "shm"

    def seen_from(self, pid: int) -> Path:
        """Return the disk by way of a process in the sandbox's mount namespace."""
        return Path(f"/proc/{pid}/root") / self.disk.relative_to("/")


def make_stage(scratch: Path) -> Stage:
    """Make the folders of a launch in its scratch. Raises `LaunchError`."""
    if _UNSAYABLE.search(str(scratch)) or not scratch.is_absolute():
        raise LaunchError("the scratch folder's name cannot be mounted", where=str(scratch))
    stage = Stage(scratch / "gvisor")
    try:
        stage.folder.mkdir(0o700)
        for folder in (stage.state, stage.bundle, stage.folder / "place"):
            folder.mkdir(0o700)
        for name in ("ready", "go"):
            os.mkfifo(stage.folder / name, 0o600)
    except OSError as fault:
        raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(stage.folder)) from fault
    return stage


def wrapped(
    stage: Stage, root: Path, limits: Limits, *, groups: tuple[Path, ...], hide_sysctl: bool, command: list[str]
) -> list[str]:
    """Return what starts `command` in its place. It dies with the thread that starts it. Raises `LaunchError`."""
    if _UNSAYABLE.search(str(root)) or not root.is_absolute():
        raise LaunchError("a root's name cannot be mounted", where=str(root), hint="no comma, colon or backslash")
    if not root.is_dir():
        raise LaunchError("there is no such root", where=str(root))
    inodes = max(_FEWEST_INODES, limits.disk_bytes // _INODE_BYTES)
    return [
        _program("setpriv"), "--pdeathsig", "KILL", "--",
        _program("unshare"), "--mount", "--propagation", "slave", "--",
        _program("sh"), "-c", _SCRIPT, "tidegate", *map(str, groups), "--",
        str(stage.folder), str(root), str(limits.disk_bytes), str(inodes), str(limits.memory_bytes // 1024),
        "yes" if hide_sysctl else "no", f"{GUEST_UID}:{GUEST_GID}",
        *command,
    ]  # fmt: skip


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


def _program(name: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise LaunchError(f"there is no {name} on this machine", hint="install the package util-linux")
    return found
