"""Descriptors on the way from launcher to worker: all of them sockets, few, or none stays open."""

import array
import os
import socket
import tempfile
from pathlib import Path

import pytest

from tidegate.errors import LaunchError
from tidegate.runtime.door import DoorClose, DoorOpen, door_pair, receive, receive_door, send_door
from tidegate.session.door import DoorSpec
from tidegate.session.identity import SessionId

SID = SessionId("session")
OPEN = DoorOpen(SID, "token", (DoorSpec("http"),))


def held() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_door_arrives_with_its_sockets_and_closes_without() -> None:
    left, right = door_pair()
    with left, right, socket.create_server(("127.0.0.1", 0)) as sock:
        send_door(left, OPEN, [sock])
        send_door(left, DoorClose(SID))
        found = receive_door(right)
        assert found is not None
        message, (copy,) = found
        with copy:
            assert message == OPEN
            assert copy.getsockname() == sock.getsockname()
            assert not os.get_inheritable(copy.fileno())
        assert receive_door(right) == (DoorClose(SID), [])
        left.close()
        assert receive_door(right) is None


@pytest.mark.parametrize("count", [0, 2])
def test_a_door_without_just_its_sockets_is_a_fault(count: int) -> None:
    left, right = door_pair()
    with left, right, socket.create_server(("127.0.0.1", 0)) as sock:
        send_door(left, OPEN, [sock] * count)
        before = held()
        with pytest.raises(LaunchError):
            receive_door(right)
        assert held() == before


@pytest.mark.parametrize("count", [25, 200])
def test_too_many_descriptors_are_all_closed(count: int) -> None:
    left, right = door_pair()
    with left, right:
        left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [left.fileno()] * count))])
        before = held()
        with pytest.raises(LaunchError, match="too many"):
            receive(right)
        assert held() == before


def test_a_file_among_the_sockets_spoils_them_all() -> None:
    left, right = door_pair()
    with left, right, tempfile.TemporaryFile() as file:
        socket.send_fds(left, [b"x"], [left.fileno(), file.fileno()])
        before = held()
        with pytest.raises(LaunchError, match="no socket"):
            receive(right)
        assert held() == before


def test_invariant_5_the_token_is_in_no_repr() -> None:
    assert "token" not in repr(OPEN)
