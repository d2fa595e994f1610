"""Who is at the other end of a unix socket, as the kernel says (SO_PEERCRED, unix(7)): no byte of theirs is read."""

import socket
import struct
from typing import Final, NamedTuple

__all__ = ["Peer", "peer_of"]

_UCRED: Final = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid."""


class Peer(NamedTuple):
    """Process and user that connected, or that listen; pid 0 is one of another pid namespace."""

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer | None:
    """Return the peer of a unix socket; None where the kernel does not say."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, _ = _UCRED.unpack(packed)
    except (OSError, struct.error):
        return None
    return Peer(pid, uid) if pid >= 0 and uid >= 0 else None
