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

from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher import stage as _stage
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Limits
from tidegate_launcher.stage import Stage, check_root, inodes, system_program

__all__ = ["RunscStage", "make_stage", "wrapped"]

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


class RunscStage(Stage, frozen=True):
    """The folders of one launch, with what is runsc's own."""

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


def make_stage(scratch: Path) -> RunscStage:
    """Make the folders of a launch in its scratch. Raises `LaunchError`."""
    stage = RunscStage(_stage.make_stage(scratch, "gvisor").folder)
    try:
        for folder in (stage.state, stage.bundle):
            folder.mkdir(0o700)
    except OSError as fault:
        raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(stage.folder)) from fault
    return stage


def wrapped(
    stage: Stage, root: Path, limits: Limits, *, groups: tuple[Path, ...], hide_sysctl: bool, command: list[str]
) -> list[str]:
    """Return what starts `command` in its place. It dies with the thread that starts it. Raises `LaunchError`."""
    check_root(root)
    return [
        system_program("setpriv"), "--pdeathsig", "KILL", "--",
        system_program("unshare"), "--mount", "--propagation", "slave", "--",
        system_program("sh"), "-c", _SCRIPT, "tidegate", *map(str, groups), "--",
        str(stage.folder), str(root), str(limits.disk_bytes), str(inodes(limits)), str(limits.memory_bytes // 1024),
        "yes" if hide_sysctl else "no", f"{GUEST_UID}:{GUEST_GID}",
        *command,
    ]  # fmt: skip
