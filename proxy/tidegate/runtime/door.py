"""A session's doors between supervisor and worker: one msgpack map a datagram, the sockets as ancillary data.

| supervisor says | the worker |
|---|---|
| `{id, token, ways}` with the sockets, in their order | serves them as that session's |
| `{close: id}` | closes them, and whoever came by them |
"""

import array
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.errors import LaunchError
from tidegate.session.door import MESSAGE_BYTES, MOST_SOCKETS, DoorSpec
from tidegate.session.identity import SessionId

__all__ = ["DoorClose", "DoorOpen", "close_all", "door_pair", "receive", "receive_door", "send_door"]

_NUMBER_BYTES: Final = 4


class DoorOpen(msgspec.Struct, frozen=True, tag="open"):
    """Serve the sockets that come with this as doors of a session; `ways` has one entry a socket."""

    id: SessionId
    token: str
    ways: tuple[DoorSpec, ...]

    def __repr__(self) -> str:
        return f"DoorOpen({self.id})"  # the token is a secret (invariant 5)


class DoorClose(msgspec.Struct, frozen=True, tag="close"):
    """Close a session's doors."""

    id: SessionId


def door_pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair: the supervisor's end, and the worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def send_door(sock: socket.socket, message: DoorOpen | DoorClose, sockets: Sequence[socket.socket] = ()) -> None:
    """Send one message. Raises `OSError`, `BlockingIOError` when the other side has to read first."""
    socket.send_fds(sock, [msgspec.msgpack.encode(message)], [one.fileno() for one in sockets])


def receive_door(sock: socket.socket) -> tuple[DoorOpen | DoorClose, list[socket.socket]] | None:
    """Read one message and what came with it; None at the end. Raises `LaunchError`, and `BlockingIOError`."""
    data, sockets = receive(sock)
    if not data:
        return None
    try:
        message = msgspec.msgpack.decode(data, type=DoorOpen | DoorClose)
        if isinstance(message, DoorOpen) and len(message.ways) != len(sockets):
            raise LaunchError("a door came without its sockets")
    except BaseException:
        close_all(sockets)
        raise
    return message, sockets


def receive(sock: socket.socket) -> tuple[bytes, list[socket.socket]]:
    """Read one datagram with the sockets that came along; empty at the end.

    Raises `LaunchError` for one that is too long or brings what is no socket: nothing of it stays open then.
    """
    size = socket.CMSG_SPACE((MOST_SOCKETS + 1) * _NUMBER_BYTES)
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_BYTES, size, socket.MSG_CMSG_CLOEXEC)
    numbers = [number for level, kind, raw in ancillary for number in _numbers(level, kind, raw)]
    sockets = _sockets(numbers)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(sockets) != len(numbers) or len(sockets) > MOST_SOCKETS:
        close_all(sockets)
        raise LaunchError(
            "a message is too long, or brought too many descriptors, or what is no socket", where="launch.sock"
        )
    return data, sockets


def _numbers(level: int, kind: int, raw: bytes) -> list[int]:
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    return array.array("i", raw[: len(raw) - len(raw) % _NUMBER_BYTES]).tolist()


def _sockets(numbers: Sequence[int]) -> list[socket.socket]:
    """Return the descriptors as sockets; those that are none are closed."""
    found = []
    for number in numbers:
        try:
            found.append(socket.socket(fileno=number))
        except OSError:
            os.close(number)
    return found


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close sockets of ours."""
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.close()
