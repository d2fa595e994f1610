"""Which names are nobody's any more; with real processes, in a PID namespace of their own too."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_launcher.limits.owner import owned_name, stale
from tidegate_launcher.limits.process import started_at

ONE = "0123456789abcdef" * 2


def _name(*, space: int | None = None, pid: int | None = None, born: int | None = None, one: str = ONE) -> str:
    own = owned_name(ONE).split("-")
    return "-".join(str(new or old) for new, old in zip((space, pid, born, one), own, strict=True))


def _own() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def test_ours_is_kept_and_a_number_that_is_used_again_is_not_taken_for_it() -> None:
    born = started_at(os.getpid())
    assert born is not None
    before = _name(born=born - 1)
    assert stale([owned_name(ONE), before]) == [before]


def test_one_of_a_process_that_has_ended_is_nobodys() -> None:
    ended = subprocess.Popen(["true"])
    born = started_at(ended.pid)
    ended.wait()
    name = _name(pid=ended.pid, born=born)
    assert stale([name]) == [name]


@pytest.mark.parametrize("name", ["a-b-c-d", f"1-1-1-{ONE}.slice", "1-1-1-x", "", f"-1-1-1-{ONE}"])
def test_what_is_no_such_name_is_nobodys_to_judge(name: str) -> None:
    assert stale([name], machines=_own()) == []


@contextlib.contextmanager
def _elsewhere() -> Iterator[int]:
    """Run a process in a PID namespace of its own; return the namespace's number."""
    unshare = shutil.which("unshare") or "unshare"
    with subprocess.Popen(
        [unshare, "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c",
         "stat -Lc %i /proc/self/ns/pid; read -r go"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()  # /proc is of our own namespace: it tells that it runs, and nothing else
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Path(f"/proc/{children[0]}/ns/pid").stat().st_ino
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def test_of_another_namespace_nothing_is_judged_while_it_lives() -> None:
    """The numbers of its processes are others here."""
    with _elsewhere() as space:
        assert space != _own()
        assert stale([_name(space=space, born=1)], machines=_own()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the namespaces of all processes")
def test_what_is_of_a_namespace_that_is_gone_is_taken_from_the_machines_own_alone() -> None:
    with _elsewhere() as space:
        name = _name(space=space)
    assert stale([name], machines=_own()) == [name]
    assert stale([name], machines=1) == []
