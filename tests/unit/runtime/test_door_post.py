"""Doors on their way to workers: to all, to later ones too, in order, and waiting for nobody."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tidegate.runtime.door import DoorClose, DoorOpen, close_all, receive_door
from tidegate.runtime.door_post import DoorPost
from tidegate.session.door import DoorSpec
from tidegate.session.identity import SessionId


def door(name: str) -> tuple[DoorOpen, list[socket.socket]]:
    return DoorOpen(SessionId(name), "t" * 180, (DoorSpec("http"),)), [socket.create_server(("127.0.0.1", 0))]


def heard(worker: socket.socket) -> Iterator[tuple[str, str]]:
    """What a worker finds on its socket now."""
    while True:
        try:
            found = receive_door(worker)
        except BlockingIOError:
            return
        if found is None:
            return
        close_all(found[1])
        yield type(found[0]).__name__, found[0].id


async def test_every_worker_gets_a_door_and_a_later_one_too() -> None:
    post = DoorPost()
    wire, first = post.join()
    with first:
        post.open(*door("a"))
        later, second = post.join()
        with second:
            assert list(heard(first)) == list(heard(second)) == [("DoorOpen", "a")]
            post.leave(wire)
            post.close(SessionId("a"))
            assert list(heard(second)) == [("DoorClose", "a")]
        post.leave(later)


async def test_a_door_that_is_closed_is_closed_for_whoever_has_a_copy() -> None:
    post = DoorPost()
    message, sockets = door("a")
    with sockets[0].dup() as copy:
        address = copy.getsockname()
        post.open(message, sockets)
        post.close(SessionId("a"))
        post.close(SessionId("a"))  # again is no harm
        async with asyncio.timeout(5):
            while copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # noqa: ASYNC110 - the kernel's word
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)


async def test_a_worker_that_does_not_read_is_waited_for_by_nobody_and_misses_nothing() -> None:
    post = DoorPost()
    wire, worker = post.join()
    names = [f"s{number}" for number in range(600)]
    with worker:
        for name in names:
            message, sockets = door("x")
            post.open(DoorOpen(SessionId(name), message.token, message.ways), sockets)
        post.close(SessionId(names[-1]))  # it still waits here: it is not sent at all
        told: list[tuple[str, str]] = []
        async with asyncio.timeout(10):
            while (DoorClose.__name__, names[-1]) not in told:
                told += heard(worker)
                await asyncio.sleep(0)
    assert told == [("DoorOpen", name) for name in names[:-1]] + [("DoorClose", names[-1])]
    post.leave(wire)
    for name in names:
        post.close(SessionId(name))
    await asyncio.sleep(0.1)
