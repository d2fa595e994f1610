from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.limits.hierarchy import DEVICES, Tree, find_hierarchy


def _line(point: object, kind: str, options: str, root: str = "/") -> str:
    return f"30 24 0:26 {root} {point} rw,relatime shared:4 - {kind} cgroup {options}\n"


def _written(folder: Path, *lines: str) -> Path:
    file = folder / "mountinfo"
    file.write_text("22 1 0:20 / / rw - ext4 /dev/vda rw\n" + "".join(lines))
    return file


def _unified(folder: Path, controllers: str) -> Path:
    point = folder / "unified"
    point.mkdir()
    (point / "cgroup.controllers").write_text(controllers)
    return point


def test_one_tree_with_all_controllers_is_v2(tmp_path: Path) -> None:
    point = _unified(tmp_path, "cpuset cpu io memory pids\n")
    found = find_hierarchy(_written(tmp_path, _line(point, "cgroup2", "rw")))
    assert found.version == 2
    assert set(found.trees.values()) == {Tree(point)}


def test_a_tree_for_each_controller_is_v1(tmp_path: Path) -> None:
    lines = [_line(f"/c/{name}", "cgroup", f"rw,{name}") for name in ("memory", "pids")]
    found = find_hierarchy(_written(tmp_path, *lines, _line("/c/both", "cgroup", "rw,cpu,cpuacct", "/docker/1")))
    assert found.version == 1
    assert found.trees == {
        "memory": Tree(Path("/c/memory")),
        "pids": Tree(Path("/c/pids")),
        "cpu": Tree(Path("/c/both"), "/docker/1"),
        "cpuacct": Tree(Path("/c/both"), "/docker/1"),
    }


@pytest.mark.parametrize(
    ("own", "joined"),
    [("0::/\n", True), ("1:cpu:/\n0::/a/b\n", True), ("0::/../x\n", False), ("1:cpu:/\n", False)],
    ids=["at its root", "below", "outside of what is seen", "nowhere"],
)
def test_a_second_tree_that_lacks_controllers_is_to_end_groups_in(tmp_path: Path, own: str, joined: bool) -> None:
    lines = [_line(f"/c/{name}", "cgroup", f"rw,{name}") for name in ("memory", "pids", "cpu", "cpuacct")]
    point = _unified(tmp_path, "hugetlb\n")
    (point / "cgroup.procs").touch()
    (tmp_path / "own").write_text(own)
    found = find_hierarchy(_written(tmp_path, _line(point, "cgroup2", "rw"), *lines), tmp_path / "own")
    assert found.version == 1
    assert point not in {tree.point for tree in found.trees.values()}
    assert found.ending == (Tree(point) if joined else None)


def test_a_second_tree_that_cannot_be_written_is_left(tmp_path: Path) -> None:
    lines = [_line(f"/c/{name}", "cgroup", f"rw,{name}") for name in ("memory", "pids", "cpu", "cpuacct")]
    unified = _line(_unified(tmp_path, "hugetlb\n"), "cgroup2", "ro")
    assert find_hierarchy(_written(tmp_path, unified, *lines)).ending is None


@pytest.mark.parametrize("there", [True, False], ids=["there", "not there"])
def test_a_controller_of_v1_without_a_limit_is_taken_where_it_is(tmp_path: Path, there: bool) -> None:
    lines = [_line(f"/c/{name}", "cgroup", f"rw,{name}") for name in ("memory", "pids", "cpu", "cpuacct")]
    lines += [_line("/c/devices", "cgroup", "rw,devices")] if there else []
    found = find_hierarchy(_written(tmp_path, *lines), also=(DEVICES,))
    assert set(found.trees) == {"memory", "pids", "cpu", "cpuacct"} | ({DEVICES} if there else set())
    assert DEVICES not in find_hierarchy(_written(tmp_path, *lines)).trees


def test_v2_has_no_tree_for_it(tmp_path: Path) -> None:
    point = _unified(tmp_path, "cpu memory pids\n")
    found = find_hierarchy(_written(tmp_path, _line(point, "cgroup2", "rw")), also=(DEVICES,))
    assert set(found.trees) == {"memory", "cpu", "pids"}


@pytest.mark.parametrize("there", [(), ("memory", "cpu", "cpuacct")], ids=["none", "no pids"])
def test_S_16_missing_controllers_are_named(tmp_path: Path, there: tuple[str, ...]) -> None:
    lines = [_line(f"/c/{name}", "cgroup", f"rw,{name}") for name in there]
    with pytest.raises(LaunchError, match="pids"):
        find_hierarchy(_written(tmp_path, *lines))
