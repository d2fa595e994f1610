"""Listening sockets that several workers share: one port, the kernel spreads the connections."""

import errno
import socket

from tidegate.errors import LaunchError

__all__ = ["listen", "listen_hint"]

_BACKLOG = 1024


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening TCP socket with SO_REUSEPORT. Raises `LaunchError`."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Accepted sockets inherit it: an event must not wait for the acknowledgement of the one before.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            where="listen.http",
            hint=listen_hint(error),
        ) from error
    return sock


def listen_hint(fault: OSError) -> str:
    """Return what to do about an address that cannot be bound."""
    match fault.errno:
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address: add it first (ip addr add), or choose one with --listen-http"
        case errno.EACCES:
            return "a port below 1024 needs root: choose another with --listen-http"
    return "is another program on this port? choose another with --listen-http"
