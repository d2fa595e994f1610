"""Brings every session's doors to every worker, and to each that starts later.

The sockets stay open here, so that a worker's successor gets them too. The supervisor's loop never waits for a
worker: what it does not take yet waits in its wire's outbox, in order.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections import deque
from collections.abc import Sequence

from tidegate.runtime.door import DoorClose, DoorOpen, close_all, door_pair, send_door
from tidegate.session.identity import SessionId

__all__ = ["DoorPost", "Wire"]

_log = logging.getLogger(__name__)

_SHUT_SECONDS = 0.05
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


class Wire:
    """The way to one worker."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox: deque[DoorOpen | DoorClose] = deque()
        self._waiting = False

    def put(self, message: DoorOpen | DoorClose, doors: "dict[SessionId, _Doors]") -> None:
        """Send a message, now or as soon as the worker takes it; doors that are gone by then are not sent."""
        self._outbox.append(message)
        self._flush(doors)

    def _flush(self, doors: "dict[SessionId, _Doors]") -> None:
        loop = asyncio.get_running_loop()
        while self._outbox:
            message = self._outbox[0]
            held = doors.get(message.id) if isinstance(message, DoorOpen) else None
            try:
                if held is not None or isinstance(message, DoorClose):
                    send_door(self._sock, message, held.sockets if held is not None else ())
            except BlockingIOError:
                if not self._waiting:
                    self._waiting = True
                    loop.add_writer(self._sock, self._flush, doors)
                return
            except OSError as fault:
                if fault.errno not in _GONE:  # else its successor has a wire of its own
                    _log.error("a door could not be handed to a worker: %s", fault.strerror)
            self._outbox.popleft()
        if self._waiting:
            self._waiting = False
            loop.remove_writer(self._sock)

    def close(self) -> None:
        """Drop what waits, and the socket."""
        self._outbox.clear()
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._sock)
        self._sock.close()


class _Doors:
    def __init__(self, message: DoorOpen, sockets: Sequence[socket.socket]) -> None:
        self.message = message
        self.sockets = tuple(sockets)


class DoorPost:
    """All doors, and the wires of all workers."""

    def __init__(self) -> None:
        self._doors: dict[SessionId, _Doors] = {}
        self._wires: set[Wire] = set()

    def join(self) -> tuple[Wire, socket.socket]:
        """Return a new worker's wire and the worker's end of it; the doors of now are on the way."""
        ours, theirs = door_pair()
        wire = Wire(ours)
        self._wires.add(wire)
        for doors in self._doors.values():
            wire.put(doors.message, self._doors)
        return wire, theirs

    def leave(self, wire: Wire) -> None:
        """Drop the wire of a worker that is gone."""
        self._wires.discard(wire)
        wire.close()

    def open(self, message: DoorOpen, sockets: Sequence[socket.socket]) -> None:
        """Have every worker serve the sockets, which are ours from here on."""
        self._doors[message.id] = _Doors(message, sockets)
        for wire in self._wires:
            wire.put(message, self._doors)

    def close(self, session: SessionId) -> None:
        """Have every worker close the session's doors; soon after nobody gets in, whoever still holds a copy."""
        doors = self._doors.pop(session, None)
        if doors is None:
            return
        for wire in self._wires:
            wire.put(DoorClose(session), self._doors)
        # Not at once: a worker that still accepts must not find a listener that is none.
        asyncio.get_running_loop().call_later(_SHUT_SECONDS, _shut, doors.sockets)


def _shut(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # a listener's copies stop listening with it
    close_all(sockets)
