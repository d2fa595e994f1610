"""STATE/launch.sock: where a launcher opens the session of a sandbox with its doors, and holds it by staying there.

The socket's mode lets anybody connect, since root without capabilities is held by modes as others are; the kernel is
asked who the peer is (SO_PEERCRED, unix(7)) before a byte is read, and only root and our own user are served. A
connection that has not asked for its session within seconds is closed, and so is one whose process has ended, whoever
has its other end by then. What is said: `tidegate.session.door`.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tidegate.errors import LaunchError, TidegateError
from tidegate.keeper.tasks import OwnedTasks
from tidegate.peer import peer_of
from tidegate.runtime.door import close_all, receive
from tidegate.runtime.unix_server import bind_unix
from tidegate.session.door import MESSAGE_BYTES, Answer, LaunchNote, Opened, Opening, Refusal, decode_request
from tidegate.session.identity import SessionId

__all__ = ["LaunchServer", "Launches"]

_log = logging.getLogger(__name__)

_MOST_LAUNCHERS: Final = 512
_FIRST_SECONDS: Final = 5.0
_SEND_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0
_ANYBODY: Final = 0o666


class Launches(Protocol):
    """What a launcher's connection causes."""

    async def open(self, asked: Opening, sockets: Sequence[socket.socket]) -> Opened:
        """Open a session with its doors; the sockets are its own then. Raises `TidegateError`, and leaves nothing."""
        ...

    async def note(self, session: SessionId, note: LaunchNote) -> None:
        """Put a launch on record, before the session's end. Raises `TidegateError`."""
        ...

    def end(self, session: SessionId) -> None:
        """Close the doors and revoke the session."""
        ...


class LaunchServer:
    """Serves launch.sock."""

    def __init__(self, path: Path, launches: Launches) -> None:
        self._path = path
        self._launches = launches
        self._sock: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._tasks = OwnedTasks()

    async def start(self) -> None:
        """Bind and serve. Raises `ConfigError` when the path cannot be bound."""
        self._sock = bind_unix(self._path, _ANYBODY, kind=socket.SOCK_SEQPACKET)
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Stop serving, end every launcher's session, and remove the socket."""
        if self._sock is None:
            return
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        self._sock = None
        await self._tasks.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        if self._sock is None:
            return
        try:
            sock = self._sock.accept()[0]
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError as fault:
            _log.error("launchers wait: %s", fault.strerror)
            self._pause()
            return
        peer = peer_of(sock)
        if len(self._open) >= _MOST_LAUNCHERS or peer is None or peer.uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.setblocking(False)
        self._open.add(sock)
        self._tasks.spawn(self._serve(sock, peer.pid), name="launcher")

    def _pause(self) -> None:
        """Accept nobody for a moment: without descriptors the loop would else do nothing but try."""
        loop, sock = asyncio.get_running_loop(), self._sock
        if sock is not None:
            loop.remove_reader(sock)
            loop.call_later(_PAUSE_SECONDS, lambda: self._sock is sock and loop.add_reader(sock, self._accept))

    async def _serve(self, sock: socket.socket, pid: int) -> None:
        try:
            with _shut_with(pid, sock):
                await _Launcher(sock, self._launches).serve()
        finally:
            self._open.discard(sock)
            sock.close()


class _Launcher:
    """One connection: the first message opens, the others record, the end ends."""

    def __init__(self, sock: socket.socket, launches: Launches) -> None:
        self._sock = sock
        self._launches = launches

    async def serve(self) -> None:
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                data, sockets = await self._receive()
                asked = _first(data, sockets)
        except TimeoutError:
            return
        except TidegateError as fault:
            await self._refuse(fault)
            return
        if asked is not None:
            await self._lease(asked, sockets)

    async def _lease(self, asked: Opening, sockets: list[socket.socket]) -> None:
        try:
            opened = await self._launches.open(asked, sockets)
        except TidegateError as fault:
            close_all(sockets)
            await self._refuse(fault)
            return
        except BaseException:
            close_all(sockets)
            raise
        try:
            await self._send(Answer(opened=opened))
            while await self._one(opened.id):
                pass
        except (OSError, TimeoutError):
            pass  # it has gone in the middle of a word
        finally:
            self._launches.end(opened.id)

    async def _one(self, session: SessionId) -> bool:
        """Serve one message of a launcher that has its session; False at the end."""
        try:
            data, sockets = await self._receive()
            close_all(sockets)  # what comes with a record is nobody's
            if not data:
                return False
            note = decode_request(data).launch
            if note is None:
                raise LaunchError("the session is open already", where="launch.sock", hint="one connection a session")
            await self._launches.note(session, note)
        except TidegateError as fault:
            await self._refuse(fault)
        else:
            await self._send(Answer())
        return True

    async def _receive(self) -> tuple[bytes, list[socket.socket]]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return receive(self._sock)
            except BlockingIOError:
                await _until(self._sock, loop.add_reader, loop.remove_reader)
            except ConnectionError:
                return b"", []

    async def _refuse(self, fault: TidegateError) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await self._send(Answer(error=Refusal(fault.what, fault.where, fault.hint)))

    async def _send(self, answer: Answer) -> None:
        data = msgspec.msgpack.encode(answer)
        if len(data) > MESSAGE_BYTES:
            raise LaunchError("the answer is too long")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_SEND_SECONDS):
            while True:
                try:
                    self._sock.send(data)
                    return
                except BlockingIOError:
                    await _until(self._sock, loop.add_writer, loop.remove_writer)


@contextlib.contextmanager
def _shut_with(pid: int, sock: socket.socket) -> Iterator[None]:
    """Shut a connection when the process has ended that made it: one that it forked may hold its other end open."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # of another pid namespace, or gone: the connection's own end is what we have
        yield
        return

    def shut() -> None:
        loop.remove_reader(pidfd)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    loop.add_reader(pidfd, shut)
    try:
        yield
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _first(data: bytes, sockets: Sequence[socket.socket]) -> Opening | None:
    """Return what the first message asks for, None if there is none; its sockets are closed where it is no opening."""
    try:
        if not data:
            return None
        opening = decode_request(data).open
        if opening is None:
            raise LaunchError("a launch is recorded by who has opened a session", where="launch.sock")
    except BaseException:
        close_all(sockets)
        raise
    return opening


async def _until(
    sock: socket.socket,
    add: Callable[[socket.socket, Callable[[], object]], object],
    remove: Callable[[socket.socket], object],
) -> None:
    """Wait until the loop says that a socket is ready."""
    ready = asyncio.Event()
    add(sock, ready.set)
    try:
        await ready.wait()
    finally:
        remove(sock)
