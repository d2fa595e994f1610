"""The doors that a worker serves: each a listening socket, given by the supervisor, of one session.

They come and go over a socket of their own. A door is closed when the supervisor says so, or as soon as its session is
over; whoever came by it is cut then.
"""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from ipaddress import ip_address
from typing import Any, Final, Protocol

from tidegate.exchange.dns_desk import DnsDesk
from tidegate.exchange.door import Door
from tidegate.exchange.ending import End
from tidegate.exchange.gate import Gate
from tidegate.exchange.sessions import LiveSession
from tidegate.policy.reasons import Reason
from tidegate.runtime.dns_server import open_responder
from tidegate.runtime.door import DoorClose, DoorOpen, close_all, receive_door
from tidegate.runtime.handler import ConnectionHandler
from tidegate.runtime.listener import Way
from tidegate.runtime.place import fault_place
from tidegate.session.door import DoorSpec
from tidegate.session.identity import SessionId

__all__ = ["Doors"]

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.5
_DENIALS: Final = 3

type _Listening = asyncio.Server | asyncio.DatagramTransport


class _Worker(Protocol):
    """What doors need of the worker around them."""

    gate: Gate
    handlers: set[ConnectionHandler]

    def admit(self, way: Way, door: Door | None = None, port: int = 0) -> asyncio.Protocol:
        """Return the protocol of a connection that is accepted next."""
        ...

    async def answer(self, desk: DnsDesk, wire: bytes, source: str) -> bytes | None:
        """Answer a question."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in a task that the worker owns."""
        ...


class _Open:
    """What is served for one session."""

    def __init__(self) -> None:
        self.doors: list[Door] = []
        self.listening: list[_Listening] = []

    def close(self) -> None:
        """Let nobody in any more."""
        for door in self.doors:
            door.open = False
        for listening in self.listening:
            with contextlib.suppress(OSError):
                listening.close()


class Doors:
    """Serves what comes over `sock`. `ended` is told of a session that is over here."""

    def __init__(self, worker: _Worker, sock: socket.socket, ended: Callable[[SessionId], None]) -> None:
        self._worker = worker
        self._sock = sock
        self._ended = ended
        self._open: dict[SessionId, _Open] = {}
        self._reading = False

    def start(self) -> None:
        """Begin to serve what was sent, and what will be."""
        self._sock.setblocking(False)
        self._reading = True
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def stop(self) -> None:
        """Accept nobody any more; who is there stays."""
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._sock)
        for session in list(self._open):
            self._close_listeners(session)

    def _read(self) -> None:
        """Take what has come. A message that cannot be read is a fault of ours: it is told, and nothing is served."""
        try:
            found = receive_door(self._sock)
        except BlockingIOError:
            return
        except Exception as fault:
            _log.error("a door could not be taken: %s", fault_place(fault))
            self._worker.gate.recorder.fault("door", where=fault_place(fault))
            return
        if found is None:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._sock)  # the supervisor is gone, and so are we, soon
            return
        message, sockets = found
        if isinstance(message, DoorClose):
            self.close(message.id)
        else:
            served = self._open[message.id] = _Open()
            self._worker.spawn(self._serve(message, sockets, served))

    async def _serve(self, message: DoorOpen, sockets: list[socket.socket], served: _Open) -> None:
        left = list(sockets)
        try:
            for spec in message.ways:
                door = Door(message.id, message.token, spec.way)
                served.doors.append(door)
                listening = await self._listen(door, spec, left[0])
                left.pop(0)
                served.listening.append(listening)
                if message.id not in self._open:  # closed while this was under way
                    served.close()
                    break
        except OSError as fault:
            _log.error("a door could not be served: %s", fault_place(fault))
            self._worker.gate.recorder.fault("door", where=fault_place(fault))
        finally:
            close_all(left)
        await self._greet(message)

    async def _greet(self, message: DoorOpen) -> None:
        """Have the session opened here before anybody comes, so that its end is heard of."""
        door = Door(message.id, message.token, "session")
        denials = 0
        while message.id in self._open:
            found = await self._worker.gate.sessions.open(door.token, door.source, door.listener)
            if isinstance(found, LiveSession):
                return
            # Once may be a reload that has not come here yet.
            denials += found is Reason.SESSION_INVALID
            if denials > _DENIALS:
                self.over(message.id)
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen(self, door: Door, spec: DoorSpec, sock: socket.socket) -> _Listening:
        way = Way(spec.way)
        sock.setblocking(False)
        if way is Way.DNS:
            host, port = sock.getsockname()[:2]
            desk = DnsDesk(self._worker.gate, (host, port), ip_address(host.partition("%")[0]), door)
            answer = functools.partial(self._worker.answer, desk)
            return await open_responder(sock, answer, self._worker.spawn)
        accept = functools.partial(self._worker.admit, way, door, spec.port)
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            # Not with `cleanup_socket`: the path is the launcher's.
            return await loop.create_unix_server(accept, sock=sock, backlog=1024, cleanup_socket=False)
        return await loop.create_server(accept, sock=sock, backlog=1024)

    def over(self, session: SessionId) -> None:
        """Close the doors of a session that is over, and tell the supervisor, so that no other worker serves them."""
        if session not in self._open:
            return
        self._close_listeners(session)
        for handler in _came_by(self._worker.handlers, session):
            if handler.channel.session is None:  # those that are the session's end with it, by its own word
                handler.cut(Reason.SESSION_INVALID, None)
        self._ended(session)

    def close(self, session: SessionId) -> None:
        """Close a session's doors and cut whoever came by one."""
        self._close_listeners(session)
        for handler in _came_by(self._worker.handlers, session):
            handler.cut(Reason.SESSION_INVALID, End.REVOKED)

    def _close_listeners(self, session: SessionId) -> None:
        served = self._open.pop(session, None)
        if served is not None:
            served.close()


def _came_by(handlers: Iterable[ConnectionHandler], session: SessionId) -> list[ConnectionHandler]:
    return [one for one in handlers if one.door is not None and one.door.session == session and hasattr(one, "channel")]
