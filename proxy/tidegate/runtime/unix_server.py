"""HTTP on a unix socket, for those who may: by the socket's mode, or by who the kernel says that they are."""

import asyncio
import enum
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from tidegate.errors import ConfigError
from tidegate.peer import peer_of

__all__ = ["Callers", "UnixServer", "bind_unix"]

_SHORT_SECONDS: Final = 10.0
_SHORT_CONNECTIONS: Final = 64


class Callers(enum.Enum):
    """Who is served.

    | callers | the socket's mode | what else holds them |
    |---|---|---|
    | `OWNER`: the user who serves, and root | 0600 | nothing |
    | `ROOT`: the same | 0666 | the kernel is asked for the peer before a byte of it is read |
    | `ANYBODY`: any local user | 0666 | a connection lives ten seconds, whatever it does, and there are sixty-four |

    `ROOT` is for a root without capabilities, which modes hold as they hold others.
    """

    OWNER = enum.auto()
    ROOT = enum.auto()
    ANYBODY = enum.auto()


_BODY_BYTES: Final = {Callers.OWNER: 64 * 1024, Callers.ROOT: 4 * 1024 * 1024, Callers.ANYBODY: 64 * 1024}
"""What a request may hold: the wall's watch, which is root, reports on a thousand links at a time."""
_MODES: Final = {Callers.OWNER: 0o600, Callers.ROOT: 0o666, Callers.ANYBODY: 0o666}


class UnixServer:
    """Serves routes on a unix socket, to `callers` alone."""

    def __init__(self, path: Path, routes: list[web.RouteDef], callers: Callers) -> None:
        self._path = path
        self._callers = callers
        self._app = web.Application(client_max_size=_BODY_BYTES[callers])
        self._app.add_routes(routes)
        self._runner = web.AppRunner(self._app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.BaseProtocol, float] = {}

    async def start(self) -> None:
        """Bind and serve. Raises `ConfigError` when the path cannot be bound."""
        await self._runner.setup()
        sock = bind_unix(self._path, _MODES[self._callers])
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=sock)

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None:
            return _Closed()
        if self._callers is Callers.ROOT:
            return _Asked(server)
        return self._bounded(server) if self._callers is Callers.ANYBODY else server()

    def _bounded(self, server: web.Server) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        # One that has had its second and has no transport is over; a younger one may not have got its transport yet.
        self._open = {
            protocol: since
            for protocol, since in self._open.items()
            if loop.time() - since < 1 or getattr(protocol, "transport", None) is not None
        }
        if len(self._open) >= _SHORT_CONNECTIONS:
            return _Closed()
        protocol = server()
        self._open[protocol] = loop.time()
        loop.call_later(_SHORT_SECONDS, self._expire, protocol)
        return protocol

    def _expire(self, protocol: asyncio.BaseProtocol) -> None:
        self._open.pop(protocol, None)
        transport = getattr(protocol, "transport", None)
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class _Closed(asyncio.Protocol):
    """A connection beyond the bound: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Asked(asyncio.Protocol):
    """A connection whose peer is looked at first: root and our own user go on to what `serve` makes.

    Nothing is made for others, who may come by the thousand.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = peer_of(transport.get_extra_info("socket"))
        known = peer is not None and peer.uid in (0, os.geteuid())
        if known and isinstance(transport, asyncio.Transport):
            served = self._serve()
            transport.set_protocol(served)
            served.connection_made(transport)
        else:
            transport.close()


def bind_unix(path: Path, mode: int, *, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that listens at a path, with this mode. Raises `ConfigError`."""
    sock = socket.socket(socket.AF_UNIX, kind)
    mask = os.umask(0o777 & ~mode)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        sock.listen(128)
        sock.setblocking(False)
    except OSError as fault:
        sock.close()
        raise ConfigError(f"cannot bind the socket: {fault.strerror}", where=str(path)) from fault
    finally:
        os.umask(mask)
    return sock
