"""A network namespace that is held by a descriptor, and entered by a thread of its own."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.lab.world import why_no_world
from tidegate.errors import LaunchError
from tidegate_launcher.net.space import Space

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")


def _here() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def test_work_is_done_in_the_namespace_and_the_caller_stays_where_it_was() -> None:
    before = _here()
    with Space.make() as space:
        there = space.within(_here)
        assert there == space.path.stat().st_ino != before
        assert space.within(lambda: [name for _, name in socket.if_nameindex()]) == ["lo"]
    assert _here() == before


def test_a_program_that_is_started_within_begins_there() -> None:
    with Space.make() as space:
        done = space.within(
            lambda: subprocess.run(["stat", "-Lc", "%i", "/proc/self/ns/net"], capture_output=True, check=True)
        )
        assert int(done.stdout) == space.path.stat().st_ino


def test_what_goes_wrong_within_is_raised_here() -> None:
    def fail() -> None:
        raise LaunchError("no")

    with Space.make() as space, pytest.raises(LaunchError, match="no"):
        space.within(fail)


def test_it_has_no_name_and_ends_with_its_descriptor() -> None:
    with Space.make() as space:
        path, number = space.path, space.path.stat().st_ino
    assert not path.exists()
    assert str(number) not in Path("/proc/self/mountinfo").read_text()
