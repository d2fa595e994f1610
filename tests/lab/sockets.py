"""Listening sockets on loopback, or inside a network namespace."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ["Bind", "bind_loopback", "bind_pair", "dial_in_namespace", "free_port", "in_namespace", "udp_in_namespace"]

type Bind = Callable[[str, int, socket.SocketKind], socket.socket]
"""Makes a bound (and, for TCP, listening) socket from address, port and kind."""


def bind_loopback(address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Bind in the namespace of the calling thread."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(256)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def bind_pair(bind: Bind, address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Bind UDP and TCP to one port; with port 0 the kernel picks one that is free for both."""
    for _attempt in range(20):
        tcp = bind(address, port, socket.SOCK_STREAM)
        try:
            return bind(address, tcp.getsockname()[1], socket.SOCK_DGRAM), tcp
        except OSError:
            tcp.close()
            if port:
                raise
    raise OSError("no port is free for both UDP and TCP")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    with bind_loopback(address, 0, socket.SOCK_STREAM) as sock:
        return int(sock.getsockname()[1])


def in_namespace(name: str) -> Bind:
    """Return a `Bind` that makes its sockets inside the network namespace `name`."""

    def bind(address: str, port: int, kind: socket.SocketKind) -> socket.socket:
        return _made_in(name, lambda: bind_loopback(address, port, kind))

    return bind


def dial_in_namespace(name: str, address: str, port: int) -> socket.socket:
    """Return a TCP connection from inside the network namespace `name`."""
    return _made_in(name, lambda: socket.create_connection((address, port), 10))


def udp_in_namespace(name: str, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """Return a UDP socket from inside the network namespace `name`, not bound."""
    return _made_in(name, lambda: socket.socket(family, socket.SOCK_DGRAM))


def _made_in(name: str, make: Callable[[], socket.socket]) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[OSError] = []

    # A thread of its own: setns changes the calling thread, and that thread ends here.
    def work() -> None:
        try:
            with _namespace(name):
                made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[None]:
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.setns(fd, os.CLONE_NEWNET)
        yield
    finally:
        os.close(fd)
