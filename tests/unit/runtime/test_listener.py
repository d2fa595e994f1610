"""The listening socket: what its accepted sockets are like."""

import asyncio
import socket

import pytest

from tests.lab.sockets import free_port
from tidegate.errors import LaunchError
from tidegate.runtime.listener import listen


async def test_an_accepted_socket_sends_at_once() -> None:
    """An event of a stream must not wait for the acknowledgement of the one before (RFC 896)."""
    listener = listen(("127.0.0.1", 0))
    accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport.get_extra_info("socket"))

    server = await asyncio.get_running_loop().create_server(Accept, sock=listener)
    async with server:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert (await accepted).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


def test_workers_share_a_port_and_one_alone_shares_none() -> None:
    address = ("127.0.0.1", free_port())
    with listen(address), listen(address):
        pass
    with listen(address, alone=True), pytest.raises(LaunchError, match="cannot listen"):
        listen(address)
