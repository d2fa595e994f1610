"""The place in which runc starts (`tidegate_launcher.stage`), with what is for runc alone: whose groups it sees.

runc makes a control group of its own wherever a tree of them is mounted, and on v1 refuses without the one for devices.
So nothing is mounted there but our own group of each tree: what it makes lies in ours, has its limits, and ends with
it.
"""

from pathlib import Path
from typing import Final

from tidegate_launcher import view
from tidegate_launcher.job import Job
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.stage import Stage, placed

__all__ = ["wrapped"]

_SCRIPT: Final = """
mkdir "$at/groups"
mount -t tmpfs -o size=64k,mode=0755,nosuid,nodev,noexec tmpfs "$at/groups"
while [ "$1" != -- ]; do
    mkdir -p "$at/groups/$1"
    mount --bind "$2" "$at/groups/$1"
    shift 2
done
shift
while mountpoint -q /sys/fs/cgroup; do umount --recursive --lazy /sys/fs/cgroup; done
mount --move "$at/groups" /sys/fs/cgroup
"""


def wrapped(
    stage: Stage, job: Job, binds: tuple[tuple[Path, str], ...], *, group: Cgroup, command: list[str]
) -> list[str]:
    """Return what starts `command` in its place. It dies with the thread that starts it. Raises `LaunchError`."""
    seen = [word for name, folder in group.shown() for word in (name, str(folder))]
    return placed(
        stage, job.root, job.limits, groups=group.doors(), script=view.SCRIPT + _SCRIPT,
        words=[*view.words(job, binds), *seen, "--", *command],
    )  # fmt: skip
