"""Listening sockets that several workers share: one port, the kernel spreads the connections. One alone shares none."""

import enum
import errno
import socket

import msgspec

from tidegate.config.model import ListenSettings
from tidegate.errors import LaunchError

__all__ = ["Bound", "Way", "bind_all", "listen", "listen_hint"]

_BACKLOG = 1024


class Way(enum.Enum):
    """How a connection came to the gate."""

    PROXY = "http"
    """It asked for it: HTTP proxy and CONNECT."""
    NAMED = "tls"
    """A name led it here."""
    TRANSPARENT = "transparent"
    """The wall sent it here, whatever it dialled."""
    DNS = "dns"
    """A question to the responder."""


class Bound(msgspec.Struct, frozen=True):
    """A socket that is bound, and for what."""

    way: Way
    sock: socket.socket


def bind_all(settings: ListenSettings, *, alone: bool = False) -> list[Bound]:
    """Bind every address that is given. Raises `LaunchError`. Called while ports below 1024 can still be had.

    A worker that is `alone` shares no port: who runs as its user in its network, as a sandbox must not, could else take
    a share of the connections.
    """
    bound = []
    for key, address in settings.named():
        way = Way(key.removeprefix("listen."))
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM) if way is Way.DNS else (socket.SOCK_STREAM,)
        bound += [Bound(way, listen(address, key=key, kind=kind, alone=alone)) for kind in kinds]
    return bound


def listen(
    address: tuple[str, int],
    *,
    key: str = "listen.http",
    kind: socket.SocketKind = socket.SOCK_STREAM,
    alone: bool = False,
) -> socket.socket:
    """Return a bound socket, with SO_REUSEPORT unless `alone`; `key` is what gave the address. Raises `LaunchError`."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if not alone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            # Accepted sockets inherit it: an event must not wait for the acknowledgement of the one before.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            where=key,
            hint=listen_hint(error, key=key),
        ) from error
    return sock


def listen_hint(fault: OSError, *, key: str = "listen.http") -> str:
    """Return what to do about an address that cannot be bound."""
    flag = "--listen-http" if key == "listen.http" else key
    match fault.errno:
        case errno.EADDRNOTAVAIL:
            return f"this machine has no such address: add it first (ip addr add), or choose one with {flag}"
        case errno.EACCES:
            return f"a port below 1024 needs root: choose another with {flag}"
    return f"is another program on this port? choose another with {flag}"
