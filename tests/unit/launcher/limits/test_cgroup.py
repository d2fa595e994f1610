"""Control groups of version 2 and 1, on folders that behave as the kernel's: files are there with the folder.

The kernel's own groups of this machine: `tests/integration/test_cgroup.py`.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.job import Limits
from tidegate_launcher.limits.cgroup import PARENT, Cgroup, sweep_cgroups
from tidegate_launcher.limits.hierarchy import Hierarchy, Tree
from tidegate_launcher.limits.process import started_at

MIB = 1024 * 1024
LIMITS = Limits(memory_bytes=128 * MIB, disk_bytes=16 * MIB, cpus=0.5, pids=32)
_V2 = {
    "cgroup.procs": "", "cgroup.subtree_control": "", "memory.max": "max", "memory.swap.max": "max",
    "memory.oom.group": "0", "cpu.max": "max 100000", "pids.max": "max", "cgroup.kill": "",
    "memory.events": "low 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n", "pids.events": "max 2\n",
    "memory.peak": "4096\n", "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
}  # fmt: skip
_V1 = {
    "memory": {
        "cgroup.procs": "", "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "memory.max_usage_in_bytes": "8192\n",
    },
    "cpu": {"cgroup.procs": "", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"},
    "cpuacct": {"cgroup.procs": "", "cpuacct.usage": "2500000000\n"},
    "pids": {"cgroup.procs": "", "pids.max": "max", "pids.events": "max 0\n"},
}  # fmt: skip


def _full(files: Mapping[str, str]) -> Any:
    def make(path: Path) -> None:
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)

    return make


def _v2(folder: Path, *, without: str = "", swap: bool = False, **other: str) -> Hierarchy:
    swaps = folder / "swaps"
    swaps.write_text("Filename Type Size\n" + ("/dev/vdb partition 1\n" if swap else ""))
    files = {name: text for name, text in {**_V2, **other}.items() if name != without}
    root = folder / "unified"
    _full(files)(root)
    trees = dict.fromkeys(("memory", "cpu", "pids"), Tree(root))
    return Hierarchy(version=2, trees=trees, make=_full(files), unmake=shutil.rmtree, swaps=swaps)


def _v1(folder: Path) -> Hierarchy:
    def make(path: Path) -> None:
        _full(_V1[path.relative_to(folder).parts[0]])(path)

    for name in _V1:
        (folder / name).mkdir()
    trees = {name: Tree(folder / name) for name in _V1}
    return Hierarchy(version=1, trees=trees, make=make, unmake=shutil.rmtree)


def _own(hierarchy: Hierarchy, controller: str = "memory") -> list[Path]:
    return list((hierarchy.trees[controller].point / PARENT).glob("*-*-*-*"))


def _read(folder: Path, *names: str) -> list[str]:
    return [(folder / name).read_text() for name in names]


def test_v2_has_each_limit_written(tmp_path: Path) -> None:
    hierarchy = _v2(tmp_path)
    Cgroup.create(LIMITS, extra_bytes=64 * MIB, hierarchy=hierarchy)
    (folder,) = _own(hierarchy)
    names = "memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max"
    assert _read(folder, *names) == [str(192 * MIB), "0", "1", "50000 100000", "192"]
    for above in (folder.parent, folder.parent.parent):
        assert (above / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"


def test_v1_has_each_limit_written(tmp_path: Path) -> None:
    hierarchy = _v1(tmp_path)
    Cgroup.create(LIMITS, hierarchy=hierarchy)
    memory, cpu, pids = (_own(hierarchy, name)[0] for name in ("memory", "cpu", "pids"))
    assert _read(memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes") == [str(128 * MIB)] * 2
    assert _read(cpu, "cpu.cfs_period_us", "cpu.cfs_quota_us") == ["100000", "50000"]
    assert _read(pids, "pids.max") == ["192"]


@pytest.mark.parametrize("file", ["memory.max", "cpu.max", "pids.max", "memory.oom.group"])
def test_S_16_a_limit_that_cannot_be_written_refuses_and_leaves_nothing(tmp_path: Path, file: str) -> None:
    hierarchy = _v2(tmp_path, without=file)
    with pytest.raises(LaunchError, match="limits cannot be set"):
        Cgroup.create(LIMITS, hierarchy=hierarchy)
    assert _own(hierarchy) == []


def test_S_16_a_limit_that_reads_back_as_another_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    hierarchy = _v2(tmp_path)

    def make(path: Path) -> None:
        _full(_V2)(path)
        (path / "memory.max").unlink()
        (path / "memory.max").symlink_to(os.devnull)  # takes all, and tells nothing

    with pytest.raises(LaunchError, match="a limit reads"):
        Cgroup.create(LIMITS, hierarchy=msgspec.structs.replace(hierarchy, make=make))
    assert _own(hierarchy) == []


def test_S_16_controllers_that_stay_off_refuse(tmp_path: Path) -> None:
    hierarchy = _v2(tmp_path)
    control = hierarchy.trees["memory"].point / "cgroup.subtree_control"
    control.unlink()
    control.symlink_to(os.devnull)
    with pytest.raises(LaunchError, match="cpu, memory, pids stay off"):
        Cgroup.create(LIMITS, hierarchy=hierarchy)


@pytest.mark.parametrize("swap", [False, True], ids=["no swap", "swap"])
def test_a_kernel_that_does_not_limit_swap_will_do_where_there_is_none(tmp_path: Path, swap: bool) -> None:
    hierarchy = _v2(tmp_path, without="memory.swap.max", swap=swap)
    if not swap:
        Cgroup.create(LIMITS, hierarchy=hierarchy)
        return
    with pytest.raises(LaunchError, match="limits cannot be set"):
        Cgroup.create(LIMITS, hierarchy=hierarchy)


@pytest.mark.parametrize(
    ("make", "counted"),
    [(_v2, (3, 2, 4096, 1.5)), (_v1, (1, 0, 8192, 2.5))],
    ids=["v2", "v1"],
)
def test_counts_what_was_killed_refused_and_used(tmp_path: Path, make: Any, counted: tuple[float, ...]) -> None:
    found = Cgroup.create(LIMITS, hierarchy=make(tmp_path)).counters()
    assert (found.oom_kills, found.pids_refused, found.memory_peak_bytes, found.cpu_seconds) == counted


def test_what_an_older_kernel_does_not_count_is_zero(tmp_path: Path) -> None:
    group = Cgroup.create(LIMITS, hierarchy=_v2(tmp_path, without="memory.peak"))
    assert group.counters().memory_peak_bytes == 0


def _proc(folder: Path, text: str) -> Path:
    (folder / "proc" / "7").mkdir(parents=True)
    (folder / "proc" / "7" / "cgroup").write_text(text)
    return folder / "proc"


def test_a_member_of_v2_is_known_by_its_one_line(tmp_path: Path) -> None:
    group = Cgroup.create(LIMITS, hierarchy=_v2(tmp_path))
    group.verify_member(7, _proc(tmp_path, f"0::/{PARENT}/{group.name}\n"))


def test_a_member_of_v1_is_known_by_every_line(tmp_path: Path) -> None:
    group = Cgroup.create(LIMITS, hierarchy=_v1(tmp_path))
    path = f"/{PARENT}/{group.name}"
    lines = f"4:memory:{path}\n3:cpu,cpuacct:{path}\n8:pids:{path}\n7:freezer:/\n0::/\n"
    group.verify_member(7, _proc(tmp_path, lines))


@pytest.mark.parametrize(
    "wrong", ["4:memory:/\n", "", "4:memory:/tidegate/other\n", "4:name=memory:{path}\n"],
)  # fmt: skip
def test_S_16_no_member_by_one_controllers_word_is_none(tmp_path: Path, wrong: str) -> None:
    group = Cgroup.create(LIMITS, hierarchy=_v1(tmp_path))
    path = f"/{PARENT}/{group.name}"
    lines = wrong.format(path=path) + f"3:cpu,cpuacct:{path}\n8:pids:{path}\n"
    with pytest.raises(LaunchError, match="not in its memory group"):
        group.verify_member(7, _proc(tmp_path, lines))


def test_remove_takes_every_tree_and_can_be_called_again(tmp_path: Path) -> None:
    hierarchy = _v1(tmp_path)
    group = Cgroup.create(LIMITS, hierarchy=hierarchy)
    assert group.remove()
    assert group.remove()
    assert [_own(hierarchy, name) for name in _V1] == [[]] * 4


@pytest.mark.parametrize("make", [_v2, _v1], ids=["v2", "v1"])
def test_what_was_made_in_a_group_counts_as_it_and_goes_with_it(tmp_path: Path, make: Any) -> None:
    hierarchy = make(tmp_path)
    group = Cgroup.create(LIMITS, hierarchy=hierarchy)
    inner = _own(hierarchy, "pids")[0] / "inside"
    inner.mkdir()
    with subprocess.Popen(["sleep", "100"]) as process:
        (inner / "cgroup.procs").write_text(f"{process.pid}\n")
        assert group.members() == {process.pid}
        assert not group.kill(0.2)  # these files go on naming it
        assert process.wait(5) == -9
    (inner / "cgroup.procs").write_text("")
    assert group.remove()
    assert _own(hierarchy, "pids") == []


def test_a_group_is_shown_by_each_trees_name(tmp_path: Path) -> None:
    for folder, make, names in ((tmp_path / "a", _v2, ["."]), (tmp_path / "b", _v1, list(_V1))):
        folder.mkdir()
        group = Cgroup.create(LIMITS, hierarchy=make(folder))
        assert [name for name, _ in group.shown()] == names
        assert {path.name for _, path in group.shown()} == {group.name}


def test_v1_holds_its_limits_for_groups_in_it_where_a_kernel_lets_that_be_otherwise(tmp_path: Path) -> None:
    hierarchy = _v1(tmp_path)

    def make(path: Path) -> None:
        hierarchy.make(path)
        if path.parent.name == PARENT and path.parents[1].name == "memory":
            (path / "memory.use_hierarchy").write_text("0")

    Cgroup.create(LIMITS, hierarchy=msgspec.structs.replace(hierarchy, make=make))
    assert _read(_own(hierarchy)[0], "memory.use_hierarchy") == ["1"]


def test_S_19_a_sweep_takes_the_groups_of_launchers_that_are_gone_and_no_others(tmp_path: Path) -> None:
    hierarchy = _v2(tmp_path)
    parent = hierarchy.trees["memory"].point / PARENT
    _full(_V2)(parent)
    space, pid, born = os.stat("/proc/self/ns/pid").st_ino, os.getpid(), started_at(os.getpid())
    suffix = "0" * 32
    stale = [f"{space}-{pid}-1-{suffix}", f"{space}-4194305-1-{suffix}"]
    kept = [f"{space}-{pid}-{born}-{suffix}", "a-b-c-d", f"{space}-{pid}-1-{suffix}.slice"]
    for name in (*stale, *kept):
        _full(_V2)(parent / name)
    assert sweep_cgroups(hierarchy) == sorted(stale)
    assert sorted(path.name for path in parent.iterdir() if path.is_dir()) == sorted(kept)
