"""A control group around one sandbox, v1 or v2: made fresh, written, read back, and removed with all that is in it.

The launcher writes the limits by itself, since a runtime that finds the folder there takes it for set and writes none.
A limit that does not read back as written refuses the launch.

| | v1 | v2 |
|---|---|---|
| memory, with no swap | `memory.limit_in_bytes` = `memory.memsw.limit_in_bytes` | `memory.max`, `memory.swap.max` 0 |
| processors | `cpu.cfs_quota_us` of 100 ms | `cpu.max` of 100 ms |
| processes | `pids.max` | `pids.max` |
| killed for memory | `memory.oom_control` | `memory.events` |
| also of groups in it | `memory.use_hierarchy`, which no kernel since 5.11 lets be 0 | always |
| all of it then | by who waits for `memory_alarm` | `memory.oom.group` |
| refused a process | `pids.events` | `pids.events` |
| ended at once | `cgroup.kill` of a group of v2 beside them, if this machine has that tree too | `cgroup.kill` |

A name says whose group it is (`owner`), so that a later launcher knows which ones are nobody's any more, and touches no
other.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.job import Limits
from tidegate_launcher.limits.hierarchy import CONTROLLERS, DEVICES, Hierarchy, Tree, find_hierarchy
from tidegate_launcher.limits.owner import owned_name, stale
from tidegate_launcher.limits.process import kill_all
from tidegate_launcher.result import Counters

__all__ = ["PARENT", "Cgroup", "sweep_cgroups"]

PARENT: Final = "tidegate"
"""The group that all of ours lie in."""

_PERIOD_US: Final = 100_000
_PAGE: Final = 4096
_REMOVE_SECONDS: Final = 2.0
_PAUSE: Final = 0.005
_ATTEMPTS: Final = 5
_SWAP_FILES: Final = ("memory.memsw.limit_in_bytes", "memory.swap.max")
_ALWAYS_SO: Final = "memory.use_hierarchy"
"""A setting that later kernels have no file for."""


class _Setting(msgspec.Struct, frozen=True):
    controller: str
    file: str
    value: str


class Cgroup:
    """A group of this launch alone."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        """Name a group that is there already; `create` makes one."""
        self._hierarchy = hierarchy
        self.name = name

    @classmethod
    def create(cls, limits: Limits, *, extra_bytes: int = 0, hierarchy: Hierarchy | None = None) -> Self:
        """Make a fresh group with these limits, and `extra_bytes` of memory for what is around the guest.

        Raises `LaunchError` when anything of it cannot be enforced; nothing is left then.
        """
        group = cls(hierarchy or find_hierarchy(), owned_name(secrets.token_hex(16)))
        try:
            group._make()
            for setting in _settings(group._hierarchy, limits, extra_bytes):
                group._set(setting)
        except BaseException as fault:
            group.remove()
            if isinstance(fault, OSError):
                hint = "this needs root, and a cgroup tree that is not mounted read-only"
                raise LaunchError(f"limits cannot be set: {fault}", where="/sys/fs/cgroup", hint=hint) from fault
            raise
        return group

    def doors(self) -> tuple[Path, ...]:
        """Return the files into which a process writes its PID to be in the group, with all that it starts."""
        return tuple(folder / "cgroup.procs" for folder in self._folders())

    def shown(self) -> tuple[tuple[str, Path], ...]:
        """Return each tree's name below /sys/fs/cgroup, and our folder in it; v2 has one, and no name for it."""
        if self._hierarchy.version == 2:
            return ((".", self._folder("pids")),)
        return tuple((name, self._folder(name)) for name in self._hierarchy.trees)

    def verify_member(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Raise `LaunchError` unless the process is in the group, by each controller's own word."""
        lines = [line.split(":", 2) for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
        unified = [path for number, _, path in lines if number == "0"]
        first = self._hierarchy.version == 1
        for controller, tree in self._hierarchy.trees.items():
            found = [path for _, names, path in lines if controller in names.split(",")] if first else unified
            self._verify(controller, tree, found)
        if self._hierarchy.ending is not None:
            self._verify("second", self._hierarchy.ending, unified)

    def _verify(self, which: str, tree: Tree, found: list[str]) -> None:
        wanted = f"{tree.root.rstrip('/')}/{PARENT}/{self.name}"
        if found != [wanted]:
            raise LaunchError(f"the sandbox is not in its {which} group", where=f"{tree.point}{wanted}")

    @contextlib.contextmanager
    def memory_alarm(self) -> Iterator[int | None]:
        """Yield a descriptor that is readable once memory has run out; None where the kernel then kills all itself.

        v1 kills one process, and a sandbox that lost one of its stubs may go on, or stand still. Raises `LaunchError`.
        """
        if self._hierarchy.version == 2:
            yield None
            return
        folder = self._folder("memory")
        with contextlib.ExitStack() as undo:
            event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, event)
            try:
                watched = os.open(folder / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
                undo.callback(os.close, watched)
                _write(folder / "cgroup.event_control", f"{event} {watched}")
            except OSError as fault:
                raise LaunchError(f"nothing tells when memory runs out: {fault.strerror}", where=str(folder)) from fault
            yield event

    def counters(self) -> Counters:
        """Return what was counted so far; what this kernel does not count is 0."""
        if self._hierarchy.version == 2:
            return Counters(
                oom_kills=self._field("memory", "memory.events", "oom_kill"),
                pids_refused=self._field("pids", "pids.events", "max"),
                memory_peak_bytes=self._number("memory", "memory.peak"),
                cpu_seconds=self._field("cpu", "cpu.stat", "usage_usec") / 1e6,
            )
        return Counters(
            oom_kills=self._field("memory", "memory.oom_control", "oom_kill"),
            pids_refused=self._field("pids", "pids.events", "max"),
            memory_peak_bytes=self._number("memory", "memory.max_usage_in_bytes"),
            cpu_seconds=self._number("cpuacct", "cpuacct.usage") / 1e9,
        )

    def members(self) -> set[int]:
        """Return the processes in the group, and in groups that were made in it."""
        doors = (door for folder in self._folders() for door in folder.glob("**/cgroup.procs"))
        return {int(word) for door in doors for word in _read(door).split()}

    def kill(self, seconds: float = _REMOVE_SECONDS) -> bool:
        """Kill all members, also what they start meanwhile; tell whether the group is empty."""
        end = time.monotonic() + seconds
        while pids := self.members():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._kill_at_once()
            kill_all(pids, left)
        return True

    def remove(self) -> bool:
        """Kill what is in the group and remove it; tell whether it is gone. Safe to call again."""
        self.kill()
        end = time.monotonic() + _REMOVE_SECONDS
        gone = all([_remove(self._hierarchy, folder, end) for folder in self._folders()])
        for tree in self._distinct():
            # Another launch may have its group there, or be about to.
            with contextlib.suppress(OSError):
                (tree.point / PARENT).rmdir()
        return gone

    def _make(self) -> None:
        for tree in self._distinct():
            for attempt in range(_ATTEMPTS):
                try:
                    _make_parent(self._hierarchy, tree)
                    self._hierarchy.make(tree.point / PARENT / self.name)
                    break
                except FileNotFoundError:  # the parent went with another launch's group
                    if attempt == _ATTEMPTS - 1:
                        raise

    def _set(self, setting: _Setting) -> None:
        file = self._folder(setting.controller) / setting.file
        if not file.exists() and (
            setting.file == _ALWAYS_SO or (setting.file in _SWAP_FILES and not _swap_in_use(self._hierarchy.swaps))
        ):
            return
        _write(file, setting.value)
        found = _read(file).strip()
        if found != setting.value:
            raise LaunchError(f"a limit reads {found} after {setting.value} was written", where=str(file))

    def _kill_at_once(self) -> None:
        tree = self._hierarchy.trees["pids"] if self._hierarchy.version == 2 else self._hierarchy.ending
        if tree is not None:
            # Not there before Linux 5.14: then each is killed by itself.
            with contextlib.suppress(OSError):
                _write(tree.point / PARENT / self.name / "cgroup.kill", "1")

    def _field(self, controller: str, file: str, key: str) -> int:
        for line in _read(self._folder(controller) / file).splitlines():
            name, _, value = line.partition(" ")
            if name == key and value.isdigit():
                return int(value)
        return 0

    def _number(self, controller: str, file: str) -> int:
        text = _read(self._folder(controller) / file).strip()
        return int(text) if text.isdigit() else 0

    def _folder(self, controller: str) -> Path:
        return self._hierarchy.trees[controller].point / PARENT / self.name

    def _folders(self) -> list[Path]:
        return [tree.point / PARENT / self.name for tree in self._distinct()]

    def _distinct(self) -> list[Tree]:
        # v1 may have several controllers in one tree, some of them by a second name: /sys/fs/cgroup/cpu,cpuacct.
        return list({_identity(tree.point): tree for tree in _all(self._hierarchy)}.values())


def sweep_cgroups(hierarchy: Hierarchy | None = None) -> list[str]:
    """Kill and remove the groups whose launcher is gone; return their names."""
    trees = hierarchy or find_hierarchy(also=(DEVICES,))
    names = {path.name for tree in _all(trees) for path in (tree.point / PARENT).glob("*-*-*-*")}
    return [name for name in stale(names) if Cgroup(trees, name).remove()]


def _settings(hierarchy: Hierarchy, limits: Limits, extra_bytes: int) -> Iterator[_Setting]:
    memory = str((limits.memory_bytes + extra_bytes) // _PAGE * _PAGE)
    quota = str(int(limits.cpus * _PERIOD_US))
    if hierarchy.version == 2:
        yield _Setting("memory", "memory.max", memory)
        yield _Setting("memory", "memory.swap.max", "0")
        yield _Setting("memory", "memory.oom.group", "1")
        yield _Setting("cpu", "cpu.max", f"{quota} {_PERIOD_US}")
    else:
        yield _Setting("memory", _ALWAYS_SO, "1")
        yield _Setting("memory", "memory.limit_in_bytes", memory)
        yield _Setting("memory", "memory.memsw.limit_in_bytes", memory)
        yield _Setting("cpu", "cpu.cfs_period_us", str(_PERIOD_US))
        yield _Setting("cpu", "cpu.cfs_quota_us", quota)
    yield _Setting("pids", "pids.max", str(limits.cgroup_pids))


def _make_parent(hierarchy: Hierarchy, tree: Tree) -> None:
    parent = tree.point / PARENT
    with contextlib.suppress(FileExistsError):
        hierarchy.make(parent)
    if hierarchy.version == 2:
        for folder in (tree.point, parent):
            _enable(folder / "cgroup.subtree_control")


def _enable(file: Path) -> None:
    if not set(CONTROLLERS) <= set(_read(file).split()):
        _write(file, " ".join(f"+{name}" for name in CONTROLLERS))
    missing = set(CONTROLLERS) - {word.lstrip("+") for word in _read(file).split()}
    if missing:
        raise LaunchError(f"the controllers {', '.join(sorted(missing))} stay off", where=str(file))


def _swap_in_use(swaps: Path) -> bool:
    return len(_read(swaps).splitlines()) > 1


def _all(hierarchy: Hierarchy) -> Iterator[Tree]:
    yield from hierarchy.trees.values()
    if hierarchy.ending is not None:
        yield hierarchy.ending


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _remove(hierarchy: Hierarchy, folder: Path, end: float) -> bool:
    """Remove a group, and those that were made in it."""
    for inner in folder.glob("*/"):
        _remove(hierarchy, inner, end)
    while True:
        try:
            hierarchy.unmake(folder)
        except FileNotFoundError:
            return True
        except OSError:
            # Busy for as long as the kernel is taking the last process apart, which nothing announces.
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        else:
            return True


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _write(file: Path, value: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
