"""HTTP on unix sockets of three kinds: who gets in, for how long, and how many."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.lab.folder import open_folder
from tidegate.errors import ConfigError
from tidegate.runtime import unix_server
from tidegate.runtime.unix_server import Callers, UnixServer

ASK = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def _hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


@asynccontextmanager
async def serving(folder: Path, callers: Callers) -> AsyncIterator[Path]:
    path = folder / "sock"
    server = UnixServer(path, [web.get("/", _hello)], callers)
    await server.start()
    try:
        yield path
    finally:
        await server.close()
    assert not path.exists()


async def ask(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(ASK)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


@pytest.mark.parametrize("callers", Callers)
async def test_its_own_user_is_served_by_each(tmp_path: Path, callers: Callers) -> None:
    async with serving(tmp_path, callers) as path:
        assert (await ask(path)).endswith(b"hello")


_AS_ANOTHER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(10)
try:
    sock.connect(sys.argv[1])
    sock.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print(sock.recv(9).decode() or "closed")
except OSError as fault:
    print(type(fault).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
@pytest.mark.parametrize(
    ("callers", "comes"),
    [
        (Callers.OWNER, {"PermissionError"}),
        (Callers.ANYBODY, {"HTTP/1.1 "}),
        # Closed before a byte is read: what had come is thrown away, and some kernels say so.
        (Callers.ROOT, {"closed", "ConnectionResetError", "BrokenPipeError"}),
    ],
)
async def test_another_user_is_served_where_anybody_is(callers: Callers, comes: set[str]) -> None:
    with open_folder() as folder:
        async with serving(folder, callers) as path:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _AS_ANOTHER, str(path), stdout=asyncio.subprocess.PIPE
            )
            out, _ = await child.communicate()
            assert out.decode().rstrip("\n") in comes
            assert (await ask(path)).endswith(b"hello"), "who may is served all the same"


async def test_strangers_do_not_keep_root_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on open connections is for a socket that anybody may use: here it would be a way to silence a watch."""
    monkeypatch.setattr(unix_server, "_SHORT_CONNECTIONS", 1)
    async with serving(tmp_path, Callers.ROOT) as path:
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        assert (await ask(path)).endswith(b"hello")
        for _, writer in held:
            writer.close()


async def test_a_stranger_cannot_hold_the_public_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As V-01, here for the session socket: a connection lives for its time, and there are so many and no more."""
    monkeypatch.setattr(unix_server, "_SHORT_SECONDS", 1.0)
    monkeypatch.setattr(unix_server, "_SHORT_CONNECTIONS", 3)
    async with serving(tmp_path, Callers.ANYBODY) as path:
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET / HTTP/1.1\r\nX: ")
        # Connections are accepted in the order in which they came.
        reader, writer = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(reader.read(), 0.5) == b"", "one more is closed at once"
        writer.close()
        for reader, writer in held:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert (await ask(path)).endswith(b"hello")


@pytest.mark.parametrize(("callers", "mode"), [(Callers.OWNER, 0o600), (Callers.ROOT, 0o666), (Callers.ANYBODY, 0o666)])
async def test_the_socket_never_has_another_mode(tmp_path: Path, callers: Callers, mode: int) -> None:
    async with serving(tmp_path, callers) as path:
        assert path.stat().st_mode & 0o777 == mode


async def test_a_path_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot bind the socket"):
        await UnixServer(tmp_path / "no" / "sock", [], Callers.OWNER).start()


def test_a_peer_is_who_the_kernel_says() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert unix_server.peer_uid(left) == os.geteuid()
