"""The doors of a sandbox without a network: unix sockets in a folder, which alone is mounted into it."""

import os
import socket
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.session.door import DoorSpec, DoorWay
from tidegate_launcher.lease import Door
from tidegate_launcher.net.shim import SOCKETS

__all__ = ["listen_in"]

_WAYS: Final[dict[int, DoorWay]] = {8080: "http", 443: "tls", 80: "tls"}
_BACKLOG: Final = 1024


def listen_in(folder: Path) -> tuple[Door, ...]:
    """Make a folder with a listening socket for each port that the shim leads to, and return them as doors.

    Any user may connect, since the sandbox is another one; the folder's own parent is what keeps others out. Raises
    `LaunchError`.
    """
    made: list[socket.socket] = []
    try:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        return tuple(
            Door(DoorSpec(_WAYS[port], port), (_listening(folder / name, made),)) for port, name in SOCKETS.items()
        )
    except OSError as fault:
        for sock in made:
            sock.close()
        raise LaunchError(f"the gate's doors cannot be made: {fault.strerror}", where=str(folder)) from fault


def _listening(path: Path, made: list[socket.socket]) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.append(sock)
    # By descriptor: a launch's folder may lie deeper than a socket's name is long (unix(7)).
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)
    path.chmod(0o666)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock
