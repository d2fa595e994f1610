"""The peer of a socket is who the kernel says; where it does not say, nobody."""

import os
import socket
from collections.abc import Callable

import pytest

from tidegate.peer import peer_of


def closed() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.close()
    return sock


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "packets"])
def test_a_peer_is_who_the_kernel_says(kind: socket.SocketKind) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, kind)
    with left, right:
        assert peer_of(left) == (os.getpid(), os.geteuid())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(closed, id="closed"),
        pytest.param(lambda: socket.socket(socket.AF_UNIX), id="not connected"),
        pytest.param(lambda: socket.socket(socket.AF_INET), id="no unix socket"),
    ],
)
def test_where_the_kernel_does_not_say_it_is_nobody(make: Callable[[], socket.socket]) -> None:
    with make() as sock:
        assert peer_of(sock) is None
