"""The place in which bubblewrap starts: in its control group where there is one, among mounts that end with it.

One small shell script, in a mount namespace of its own; without root in a user namespace too. It makes

- a view of the root (overlay over a tmpfs of 1 MiB) with the points on which bubblewrap mounts: in the root itself,
  which all sandboxes share, nothing is made;
- the sandbox's disk, a tmpfs of the limit's size;
- all of it again at /mnt: bubblewrap runs as a user who may not look into the launch's folder.

Then it gives root up for good, and enters a user namespace in which the sandbox's processes are counted by themselves:
RLIMIT_NPROC is of a user in a user namespace, and all sandboxes are run by one user.
"""

import os
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Ground
from tidegate_launcher.job import DOOR, GUEST_GID, GUEST_UID, WORK, Job, Limits
from tidegate_launcher.stage import Stage, check_root, inodes, system_program

__all__ = ["AT", "bound", "wrapped"]

AT: Final = "/mnt"
"""Where bubblewrap finds the root, the disk and the binds: in the place's mount namespace only."""

_SCRIPT: Final = """
set -eu
umask 022
while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
shift
stage=$1 lower=$2 size=$3 inodes=$4 owner=$5
shift 5
at=$stage/place
mount -t tmpfs -o size=1m,nr_inodes=1k,mode=0755,nosuid,nodev tmpfs "$at"
mkdir "$at/root" "$at/upper" "$at/lift" "$at/disk" "$at/binds"
mount -t overlay -o "nosuid,nodev,lowerdir=$lower,upperdir=$at/upper,workdir=$at/lift" overlay "$at/root"
mount -t tmpfs -o "size=$size,nr_inodes=$inodes,mode=0755,nosuid,nodev" tmpfs "$at/disk"
mkdir -m 0700 "$at/disk/work"
mkdir -m 1777 "$at/disk/tmp" "$at/disk/shm"
[ "$owner" = ours ] || chown "$owner" "$at/disk/work"
mkdir -p "$at/root/proc" "$at/root/dev" "$at/root/tmp" "$at/root/work"
number=0
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then
        mkdir -p "$at/binds/$number" "$at/root$2"
    else
        mkdir -p "$at/root${2%/*}"
        : >"$at/binds/$number"
        [ -e "$at/root$2" ] || : >"$at/root$2"
    fi
    mount --bind "$1" "$at/binds/$number"
    number=$((number + 1))
    shift 2
done
shift
mount --rbind "$at" /mnt
echo ready >"$stage/ready"
read -r go <"$stage/go"
cd /
exec "$@"
"""
_OWN: Final = frozenset({"/", "/proc", "/sys", "/dev", "/tmp", "/dev/shm", WORK})  # noqa: S108


def bound(job: Job, ground: Ground) -> tuple[tuple[Path, str], ...]:
    """Return what is seen inside beside root and disk, as (source, target). Raises `LaunchError`."""
    pairs = [(bind.source, os.path.normpath(bind.target)) for bind in job.binds]
    for source, target in pairs:
        if not target.startswith("/") or target in _OWN or target.startswith(("/proc/", "/sys/", "/dev/", "//")):
            raise LaunchError("a bind would hide a part of the sandbox itself", where=target)
        if not source.is_absolute() or source.is_symlink() or not (source.is_file() or source.is_dir()):
            # A socket or a device would be a way out; a link may lead elsewhere by the time it is mounted.
            raise LaunchError("only a regular file or a folder can be bound", where=str(source))
    if job.net == "uds":
        if ground.door is None:
            raise LaunchError("no socket was made for this sandbox", where="net: uds")
        pairs.append((ground.door, DOOR))
    for target in (*_OWN, *(target for _, target in pairs)):
        _no_link(job.root, target)
    return tuple(pairs)


def wrapped(
    stage: Stage, job: Job, binds: tuple[tuple[Path, str], ...], *, groups: tuple[Path, ...], command: list[str]
) -> list[str]:
    """Return what starts bubblewrap in its place; it dies with the thread that starts it. Raises `LaunchError`."""
    check_root(job.root)
    root = os.geteuid() == 0
    limits = job.limits
    return [
        system_program("setpriv"), "--pdeathsig", "KILL", "--",
        system_program("unshare"), "--mount", *([] if root else ["--user", "--map-root-user"]), "--propagation=slave",
        "--",
        system_program("sh"), "-c", _SCRIPT, "tidegate", *map(str, groups), "--",
        str(stage.folder), str(job.root), str(limits.disk_bytes), str(inodes(limits)),
        f"{GUEST_UID}:{GUEST_GID}" if root else "ours",
        *(word for source, target in binds for word in (str(source), target)), "--",
        *(_given_up() if root else []),
        # Once more: another user, or a user namespace, takes the tie to the launcher away (PR_SET_PDEATHSIG(2const)).
        system_program("setpriv"), "--pdeathsig", "KILL", "--",
        *_limited(limits),
        *command,
    ]  # fmt: skip


def _given_up() -> list[str]:
    return [
        system_program("setpriv"), f"--reuid={GUEST_UID}", f"--regid={GUEST_GID}", "--clear-groups", "--inh-caps=-all",
        "--no-new-privs", "--",
        system_program("unshare"), "--user", "--map-current-user", "--",
    ]  # fmt: skip


def _limited(limits: Limits) -> list[str]:
    return [
        system_program("prlimit"), f"--nproc={limits.pids}", f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}", "--core=0", "--",
    ]  # fmt: skip


def _no_link(root: Path, target: str) -> None:
    """Refuse a point in the root that a link leads to: it would be made where the link leads on the host."""
    point = root
    for part in Path(target).parts[1:]:
        point /= part
        if point.is_symlink():
            raise LaunchError("a mount would follow a link of the root's", where=target)
