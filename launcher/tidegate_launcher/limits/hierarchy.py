"""Where this machine keeps control groups: one tree (v2), or one for each controller (v1), as cgroups(7) has it.

Beside the trees of v1 there may be one of v2 without these controllers. It limits nothing, and what is in a group of it
can be ended at once.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from tidegate.errors import LaunchError

__all__ = ["CONTROLLERS", "DEVICES", "Hierarchy", "Tree", "find_hierarchy"]

CONTROLLERS: Final = ("memory", "cpu", "pids")
"""What every limit needs. v1 counts the time used in a controller of its own, `cpuacct`."""
DEVICES: Final = "devices"
"""What runc needs beside on v1: without it, it does not start."""

_FIELD_ROOT, _FIELD_POINT, _FIELDS_BEFORE_TYPE = 3, 4, 6


class Tree(msgspec.Struct, frozen=True):
    """A mounted tree of groups: `point` is its folder, `root` what /proc/PID/cgroup calls that folder."""

    point: Path
    root: str = "/"


class Hierarchy(msgspec.Struct, frozen=True, kw_only=True):
    """The trees by controller; on v2 all are the same one. `make` and `unmake` are a group's: its folder is
    full of files at once, and goes with them. `swaps` lists the swap areas in use (proc_swaps(5)). `ending` is a tree
    of v2 beside those of v1.
    """

    version: Literal[1, 2]
    trees: Mapping[str, Tree]
    make: Callable[[Path], None] = os.mkdir
    unmake: Callable[[Path], None] = os.rmdir
    swaps: Path = Path("/proc/swaps")
    ending: Tree | None = None


def find_hierarchy(
    mountinfo: Path = Path("/proc/self/mountinfo"),
    membership: Path = Path("/proc/self/cgroup"),
    *,
    also: tuple[str, ...] = (),
) -> Hierarchy:
    """Return where the limits can be set. Raises `LaunchError` that names the controllers that are nowhere.

    `also` are controllers of v1 without a limit of ours, where they are mounted: v2 has no tree for each.
    """
    first: dict[str, Tree] = {}
    ending: Tree | None = None
    for kind, options, tree in _trees(mountinfo.read_text()):
        if kind == "cgroup2" and _has_all(tree.point):
            return Hierarchy(version=2, trees=dict.fromkeys(CONTROLLERS, tree))
        if kind == "cgroup2" and ending is None and _can_be_joined(tree.point, membership):
            ending = tree
        if kind == "cgroup":
            first.update({name: tree for name in options if name not in first})
    missing = [name for name in (*CONTROLLERS, "cpuacct") if name not in first]
    if missing:
        raise LaunchError(
            f"control groups lack {', '.join(missing)}: limits cannot be enforced",
            where="/sys/fs/cgroup",
            hint="mount cgroup2 with these controllers, or give the container its own writable cgroup",
        )
    wanted = (*CONTROLLERS, "cpuacct", *also)
    return Hierarchy(version=1, trees={name: first[name] for name in wanted if name in first}, ending=ending)


def _trees(mountinfo: str) -> list[tuple[str, list[str], Tree]]:
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind, options = before.split(), after.split()[0], after.split()[-1]
        if kind in ("cgroup", "cgroup2") and len(fields) >= _FIELDS_BEFORE_TYPE:
            found.append((kind, options.split(","), Tree(Path(fields[_FIELD_POINT]), fields[_FIELD_ROOT])))
    return found


def _has_all(point: Path) -> bool:
    try:
        there = (point / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return set(CONTROLLERS) <= set(there)


def _can_be_joined(point: Path, membership: Path) -> bool:
    """Tell whether a process of ours can be moved into a group there: not out of what we see of the tree."""
    own = [line.removeprefix("0::") for line in membership.read_text().splitlines() if line.startswith("0::")]
    return os.access(point / "cgroup.procs", os.W_OK) and own != [] and not own[0].startswith("/..")
