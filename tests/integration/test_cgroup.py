"""Control groups of this machine's own kernel, whichever version it has."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.lab.doors import within
from tests.lab.gate import environment
from tidegate.errors import LaunchError
from tidegate_launcher.job import Limits
from tidegate_launcher.limits.cgroup import Cgroup, sweep_cgroups
from tidegate_launcher.limits.hierarchy import find_hierarchy


def _why_none() -> str | None:
    if os.geteuid() != 0:
        return "control groups are made by root"
    try:
        Cgroup.create(Limits()).remove()
    except LaunchError as fault:
        return str(fault)
    return None


pytestmark = pytest.mark.skipif(_why_none() is not None, reason=f"no control groups: {_why_none()}")

_JOIN = 'for door; do echo $$ >"$door"; done; '


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = Cgroup.create(Limits(pids=4, memory_bytes=64 * 1024 * 1024, disk_bytes=1024))
    yield made
    assert made.remove()


def _joined(group: Cgroup, then: str) -> subprocess.Popen[bytes]:
    command = ["sh", "-c", _JOIN + "echo in; " + then, "sh", *map(str, group.doors())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"in\n"
    return process


def test_every_limit_is_the_kernels(group: Cgroup) -> None:
    files = {door.parent / name for door in group.doors() for name in ("pids.max",) if (door.parent / name).exists()}
    assert [file.read_text() for file in files] == ["136\n"]


def test_a_process_that_joined_is_a_member_with_all_that_it_starts(group: Cgroup) -> None:
    process = _joined(group, "sleep 100 & setsid sleep 100 & wait")
    group.verify_member(process.pid)
    assert process.pid in group.members()
    assert group.kill()
    assert process.wait(5) == -9
    assert group.members() == set()


def test_one_outside_is_no_member(group: Cgroup) -> None:
    with pytest.raises(LaunchError, match="not in its"):
        group.verify_member(os.getpid())


def test_a_process_too_many_is_refused_and_counted(group: Cgroup) -> None:
    process = _joined(group, "i=0; while [ $i -lt 300 ]; do sleep 100 & i=$((i+1)); done; wait")
    process.wait(20)
    assert group.counters().pids_refused > 0
    assert len(group.members()) <= 136


def test_memory_that_runs_out_rings_or_takes_all(group: Cgroup) -> None:
    with group.memory_alarm() as alarm:
        process = _joined(group, "sleep 100 & exec tail /dev/zero")  # which it keeps, looking for an end of line
        if alarm is None:
            assert process.wait(20) == -9
            assert group.members() == set()
        else:
            assert select.select([alarm], [], [], 20)[0] == [alarm]
    group.kill()
    process.wait(5)


def test_remove_ends_what_is_in_it(group: Cgroup) -> None:
    process = _joined(group, "trap '' TERM; while :; do sleep 100; done")
    begun = time.monotonic()
    assert group.remove()
    assert time.monotonic() - begun < 3
    assert process.wait(5) == -9
    assert not any(door.exists() for door in group.doors())


# -- what the kernel does in a tree of v2, whether that has the limits too or stands beside those of v1 ------------

_ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
_BOMB = """exec python3 -c "
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
" """


def _why_no_v2() -> str | None:
    found = None if _why_none() else find_hierarchy()
    return None if found is None or found.version == 2 or found.ending else "this machine mounts no tree of v2"


needs_v2 = pytest.mark.skipif(_why_no_v2() is not None, reason=str(_why_no_v2()))


def _unified(group: Cgroup) -> Path:
    (folder,) = {door.parent for door in group.doors() if (door.parent / "cgroup.events").exists()}
    return folder


def _populated(events: BinaryIO) -> bool:
    events.seek(0)
    return b"populated 1" in events.read()


@needs_v2
def test_S_15_one_stroke_ends_all_also_what_is_just_being_started(group: Cgroup) -> None:
    process = _joined(group, _BOMB)
    with open(_unified(group) / "cgroup.events", "rb", buffering=0) as events:
        assert _populated(events)
        assert within(20, lambda: len(group.members()) > 50)
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        group._kill_at_once()  # alone: nothing is killed by its number
        end = time.monotonic() + 10
        while _populated(events):
            assert poller.poll(max(0, end - time.monotonic()) * 1000), "not empty in time"
    assert process.wait(5) == -9
    assert group.members() == set()


@needs_v2
def test_S_16_one_that_left_the_tree_of_v2_is_no_member(group: Cgroup) -> None:
    process = _joined(group, "sleep 100")
    group.verify_member(process.pid)
    (_unified(group).parents[1] / "cgroup.procs").write_text(str(process.pid))
    with pytest.raises(LaunchError, match="not in its"):
        group.verify_member(process.pid)
    assert group.kill()  # by its number, where it is known by another tree
    process.kill()
    process.wait(5)


@pytest.mark.parametrize("around", [[], _ELSEWHERE], ids=["here", "in a PID namespace that is gone"])
def test_S_19_a_sweep_takes_the_groups_of_a_launcher_that_was_killed_in_every_tree(around: list[str]) -> None:
    code = (
        "import os; from tidegate_launcher.job import Limits; from tidegate_launcher.limits.cgroup import Cgroup;"
        "print(*Cgroup.create(Limits()).doors(), flush=True); os.abort()"
    )
    done = subprocess.run(
        [*around, sys.executable, "-P", "-c", code], env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, timeout=30, check=False,
    )  # fmt: skip
    folders = [Path(word).parent for word in done.stdout.split()]
    assert folders
    sweep_cgroups()
    # In a container nobody can tell that another one has ended.
    if not around or os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC:
        assert not any(folder.exists() for folder in folders)
    Cgroup(find_hierarchy(), folders[0].name).remove()


def test_two_launches_have_two_groups_and_the_last_takes_their_parent() -> None:
    one, two = Cgroup.create(Limits()), Cgroup.create(Limits())
    assert one.name != two.name
    assert one.remove()
    assert all(door.exists() for door in two.doors())
    assert two.remove()


def test_this_machine_has_what_is_needed() -> None:
    found = find_hierarchy()
    assert {"memory", "cpu", "pids"} <= set(found.trees)
    assert all(isinstance(tree.point, Path) for tree in found.trees.values())
