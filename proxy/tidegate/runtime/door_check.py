"""Whether a socket that came over launch.sock can be a door: a listener, of the right kind, and nobody else's."""

import os
import socket
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.session.door import DoorSpec

__all__ = ["GroundOfOurs", "check_doors"]

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_PROTOCOLS: Final = {socket.SOCK_STREAM: socket.IPPROTO_TCP, socket.SOCK_DGRAM: socket.IPPROTO_UDP}
# asm-generic/socket.h; since Linux 5.14. One value for each network namespace.
_SO_NETNS_COOKIE: Final = 71
_COOKIE_BYTES: Final = 8


class GroundOfOurs:
    """Where the gate itself listens: no door may be one of these."""

    def __init__(self, state: Path, addresses: Collection[tuple[str, int]]) -> None:
        self._state = state.resolve()
        self._addresses = frozenset(addresses)

    def holds(self, sock: socket.socket) -> bool:
        """Tell whether a socket stands where the gate itself listens, or in the folder of its own sockets."""
        if sock.family == socket.AF_UNIX:
            parent = Path(str(sock.getsockname())).parent.resolve()
            return parent in (self._state, self._state / "gate")
        return tuple(sock.getsockname()[:2]) in self._addresses and _same_network(sock)


def check_doors(doors: Sequence[DoorSpec], sockets: Sequence[socket.socket], ours: GroundOfOurs) -> None:
    """Raise `LaunchError` unless the sockets are just what the doors need, each one once."""
    wanted = sum(door.sockets for door in doors)
    if len(sockets) != wanted:
        raise LaunchError(f"the doors need {wanted} sockets, and {len(sockets)} came", where="doors")
    seen: set[int] = set()
    left = iter(sockets)
    for place, door in enumerate(doors):
        kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM) if door.way == "dns" else (socket.SOCK_STREAM,)
        for kind in kinds:
            _check(door, next(left), kind, ours, seen, where=f"doors[{place}] ({door.way})")


def _check(door: DoorSpec, sock: socket.socket, kind: int, ours: GroundOfOurs, seen: set[int], *, where: str) -> None:
    try:
        number = os.fstat(sock.fileno()).st_ino
        problem = "came twice" if number in seen else _problem(door, sock, kind)
        seen.add(number)
        if problem is None and ours.holds(sock):
            problem = "is where the gate itself listens"
    except OSError as fault:
        problem = f"cannot be used: {fault.strerror}"
    if problem is not None:
        raise LaunchError(f"what came as a door {problem}", where=where, hint="pass listening sockets of your own")


def _problem(door: DoorSpec, sock: socket.socket, kind: int) -> str | None:
    if sock.type != kind:
        return "is of another type than this way needs"
    if kind == socket.SOCK_STREAM and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen"
    if sock.family == socket.AF_UNIX:
        return _unix_problem(door, sock)
    if sock.family not in _INTERNET or sock.proto != _PROTOCOLS[socket.SocketKind(kind)]:
        return "is of another family than a door can be"
    host, port = sock.getsockname()[:2]
    if port == 0:
        return "is bound to no port"
    if ip_address(host.partition("%")[0]).is_unspecified:
        return "is bound to every address, where it must be the sandbox's neighbour alone"
    return "is connected" if kind == socket.SOCK_DGRAM and _connected(sock) else None


def _unix_problem(door: DoorSpec, sock: socket.socket) -> str | None:
    if door.way not in ("http", "tls"):
        return "is a unix socket, by which nobody can come this way"
    if door.way == "tls" and door.port == 0:
        return "is a unix socket, and no port says what its clients dial"
    # An abstract one is open to all of its network namespace.
    return None if str(sock.getsockname()).startswith("/") else "has no path"


def _connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _same_network(sock: socket.socket) -> bool:
    """Tell whether a socket was made in our own network namespace; where the kernel does not say, it may have been."""
    try:
        with socket.socket(sock.family, socket.SOCK_DGRAM) as own:
            return own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES) == sock.getsockopt(
                socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES
            )
    except OSError:
        return True
