"""HTTP on unix sockets of three kinds: who gets in, for how long, and how many."""

import asyncio
import contextlib
import os
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


@pytest.mark.parametrize("callers", Callers, ids=lambda one: one.name.lower())
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
        pytest.param(Callers.OWNER, {"PermissionError"}, id="owner"),
        pytest.param(Callers.ANYBODY, {"HTTP/1.1 "}, id="anybody"),
        # Closed before a byte is read: what had come is thrown away, and some kernels say so.
        pytest.param(Callers.ROOT, {"closed", "ConnectionResetError", "BrokenPipeError"}, id="root"),
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


_HOLDING = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = [socket.socket(socket.AF_UNIX) for _ in range(8)]
for sock in held:
    sock.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hold connections as another user")
async def test_strangers_do_not_keep_root_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on open connections is for a socket that anybody may use: here it would be a way to silence a watch."""
    monkeypatch.setattr(unix_server, "_SHORT_CONNECTIONS", 1)
    with open_folder() as folder:
        async with serving(folder, Callers.ROOT) as path:
            stranger = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _HOLDING, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert stranger.stdout is not None
            assert await asyncio.wait_for(stranger.stdout.readline(), 10) == b"held\n"
            answers = [await ask(path) for _ in range(3)]
            assert stranger.returncode is None, "it holds them still"
            await stranger.communicate()
    assert all(answer.endswith(b"hello") for answer in answers)


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


@pytest.mark.parametrize(
    ("callers", "mode"),
    [
        pytest.param(Callers.OWNER, 0o600, id="owner"),
        pytest.param(Callers.ROOT, 0o666, id="root"),
        pytest.param(Callers.ANYBODY, 0o666, id="anybody"),
    ],
)
async def test_the_socket_never_has_another_mode(tmp_path: Path, callers: Callers, mode: int) -> None:
    async with serving(tmp_path, callers) as path:
        assert path.stat().st_mode & 0o777 == mode


async def test_a_path_that_cannot_be_bound_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot bind the socket"):
        await UnixServer(tmp_path / "no" / "sock", [], Callers.OWNER).start()
