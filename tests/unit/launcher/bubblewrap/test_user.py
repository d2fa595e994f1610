"""Whose user a sandbox is: nobody else's, for as long as any of it is there."""

import contextlib
import os
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate_launcher.bubblewrap.user import claimed

FREE = 1_900_000_000


def test_no_two_have_the_same_at_a_time(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        users = [
            stack.enter_context(claimed(tmp_path / "locks", first=FREE, count=4, lent=())).number for _ in range(2)
        ]
        assert len(set(users)) == 2
        assert all(FREE <= user < FREE + 4 for user in users)


def test_one_that_is_given_back_can_be_had_again(tmp_path: Path) -> None:
    for _ in range(2):
        with claimed(tmp_path / "locks", first=FREE, count=1, lent=()) as user:
            assert user.number == FREE
            with pytest.raises(LaunchError, match="no user from"), claimed(tmp_path / "locks", first=FREE, count=1):
                pass


def test_whoever_still_has_the_lock_keeps_the_user(tmp_path: Path) -> None:
    """As the guard of a sandbox does, whose launcher was killed."""
    with claimed(tmp_path / "locks", first=FREE, count=1, lent=()) as user:
        copy = os.dup(user.lock)
    with pytest.raises(LaunchError), claimed(tmp_path / "locks", first=FREE, count=1, lent=()):
        pass
    os.close(copy)
    with claimed(tmp_path / "locks", first=FREE, count=1, lent=()):
        pass


def test_one_of_the_machines_list_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no user from 0 to 0"), claimed(tmp_path / "locks", first=0, count=1):
        pass


@pytest.mark.parametrize("line", ["somebody:1900000000:2", "1000:1899999999:65536\n"], ids=["by-name", "by-number"])
def test_one_that_is_lent_is_not_taken(tmp_path: Path, line: str) -> None:
    (tmp_path / "subuid").write_text(f"# a comment\n:::\n{line}")
    lent = (tmp_path / "no", tmp_path / "subuid")
    with (
        pytest.raises(LaunchError, match="is free"),
        claimed(tmp_path / "locks", first=FREE, count=1, lent=lent),
    ):
        pass
    with claimed(tmp_path / "locks", first=FREE + 100_000, count=1, lent=lent):
        pass


def test_one_that_this_namespace_does_not_have_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="are no users here"), claimed(tmp_path / "locks", first=2**32, count=1):
        pass


@pytest.mark.parametrize("kind", ["link", "others"])
def test_locks_that_are_not_ours_alone_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "locks"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.touch()
        path.chmod(0o666)
    with pytest.raises(LaunchError), claimed(path, first=FREE, count=1):
        pass
    assert not (tmp_path / "elsewhere").exists()
