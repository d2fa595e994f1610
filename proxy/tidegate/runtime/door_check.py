"""Whether a socket that came over launch.sock can be a door: a listener, of the right kind, and nobody else's."""

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.session.door import DoorSpec

__all__ = ["check_doors"]

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_PROTOCOLS: Final = {socket.SOCK_STREAM: socket.IPPROTO_TCP, socket.SOCK_DGRAM: socket.IPPROTO_UDP}
# asm-generic/socket.h. The second is there since Linux 5.14: one value for each network namespace.
_SO_PROTOCOL: Final = 38
_HINT: Final = "a listener in a network namespace of the sandbox's own, or a unix socket in a folder of its own"
_SO_NETNS_COOKIE: Final = 71
_COOKIE_BYTES: Final = 8


def check_doors(doors: Sequence[DoorSpec], sockets: Sequence[socket.socket], state: Path) -> None:
    """Raise `LaunchError` unless the sockets are just what the doors need, each one once, and none is the gate's own.

    `state` is the gate's folder. A door in the gate's own network would be open to whoever has a foot there.
    """
    wanted = sum(door.sockets for door in doors)
    if len(sockets) != wanted:
        raise LaunchError(f"the doors need {wanted} sockets, and {len(sockets)} came", where="doors")
    seen: set[int] = set()
    left = iter(sockets)
    for place, door in enumerate(doors):
        kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM) if door.way == "dns" else (socket.SOCK_STREAM,)
        for kind in kinds:
            _check(door, next(left), kind, state, seen, where=f"doors[{place}] ({door.way})")


def _check(door: DoorSpec, sock: socket.socket, kind: int, state: Path, seen: set[int], *, where: str) -> None:
    try:
        number = os.fstat(sock.fileno()).st_ino
        problem = "came twice" if number in seen else _problem(door, sock, kind, state)
        seen.add(number)
    except OSError as fault:
        problem = f"cannot be used: {fault.strerror}"
    if problem is not None:
        raise LaunchError(f"what came as a door {problem}", where=where, hint=_HINT)


def _problem(door: DoorSpec, sock: socket.socket, kind: int, state: Path) -> str | None:
    if sock.type != kind:
        return "is of another type than this way needs"
    if kind == socket.SOCK_STREAM and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen"
    if sock.family == socket.AF_UNIX:
        return _unix_problem(door, sock, state)
    if sock.family not in _INTERNET or _protocol(sock) != _PROTOCOLS[socket.SocketKind(kind)]:
        return "is of another family than a door can be"
    host, port = sock.getsockname()[:2]
    if port == 0:
        return "is bound to no port"
    if ip_address(host.partition("%")[0]).is_unspecified:
        return "is bound to every address, where it must be the sandbox's neighbour alone"
    if _same_network(sock):
        return "stands in the gate's own network, where others could come by it"
    return "is connected" if kind == socket.SOCK_DGRAM and _connected(sock) else None


def _unix_problem(door: DoorSpec, sock: socket.socket, state: Path) -> str | None:
    if door.way not in ("http", "tls"):
        return "is a unix socket, by which nobody can come this way"
    if door.way == "tls" and door.port == 0:
        return "is a unix socket, and no port says what its clients dial"
    path, own = Path(os.fsdecode(sock.getsockname())), state.resolve()
    if not path.is_absolute():
        return "has no path"  # an abstract one is open to all of its network namespace
    return "is in a folder of the gate's own sockets" if path.parent.resolve() in (own, own / "gate") else None


def _protocol(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL)


def _connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _same_network(sock: socket.socket) -> bool:
    """Tell whether a socket was made in our own network namespace; where no kernel says (below 5.14), it was."""
    try:
        with socket.socket(sock.family, socket.SOCK_DGRAM) as own:
            return own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES) == sock.getsockopt(
                socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES
            )
    except OSError:
        return True
