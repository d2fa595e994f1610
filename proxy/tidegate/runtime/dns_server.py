"""The responder's sockets: UDP and TCP (RFC 7766), each question answered by the desk."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidegate.exchange.turn import now_or_later

__all__ = ["DnsTcp", "DnsUdp", "open_responder"]

_IDLE_SECONDS = 10.0
_MOST_TCP = 64
_MOST_A_SOURCE = 8
_PACE_SECONDS = 0.02
_MOST_WAITING = 1024

type Answer = Callable[[bytes, str], Awaitable[bytes | None]]
type Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


async def open_responder(
    sock: socket.socket, answer: Answer, spawn: Spawn
) -> asyncio.DatagramTransport | asyncio.Server:
    """Serve a bound socket, UDP or TCP."""
    if sock.type == socket.SOCK_DGRAM:
        loop = asyncio.get_running_loop()
        return (await loop.create_datagram_endpoint(lambda: DnsUdp(answer, spawn), sock=sock))[0]
    return await asyncio.start_server(DnsTcp(answer).serve, sock=sock, limit=1024)


class DnsUdp(asyncio.DatagramProtocol):
    """One datagram, one answer; what cannot be taken on is dropped, and asked again by its resolver."""

    def __init__(self, answer: Answer, spawn: Spawn) -> None:
        self._answer = answer
        self._spawn = spawn
        self._waiting = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for answers."""
        if isinstance(transport, asyncio.DatagramTransport):
            self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer a question, at once where nothing is to be waited for."""
        if self._waiting < _MOST_WAITING:
            self._waiting += 1
            waiting = now_or_later(self._serve(data, addr))
            if waiting is not None:
                self._spawn(_finish(waiting))

    async def _serve(self, data: bytes, peer: tuple[str, int]) -> None:
        try:
            reply = await self._answer(data, peer[0])
        finally:
            self._waiting -= 1
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, peer)


async def _finish(waiting: Awaitable[None]) -> None:
    await waiting


class DnsTcp:
    """Connections of length-prefixed questions: a bounded number, fewer from one source, and each at a pace.

    What is in the buffer already would else be answered in one turn of the loop, whoever waits meanwhile.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is idle or ends."""
        source = str(writer.get_extra_info("peername")[0])
        self._open[source] += 1
        try:
            if self._open.total() <= _MOST_TCP and self._open[source] <= _MOST_A_SOURCE:
                with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, OSError):
                    while await self._one(reader, writer, source):  # noqa: ASYNC110 - a pace, not a poll
                        await asyncio.sleep(_PACE_SECONDS)
        finally:
            self._open -= Counter([source])
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str) -> bool:
        async with asyncio.timeout(_IDLE_SECONDS):
            size = int.from_bytes(await reader.readexactly(2))
            data = await reader.readexactly(size)
            reply = await self._answer(data, source)
            if reply is None:
                return False
            writer.write(len(reply).to_bytes(2) + reply)
            await writer.drain()
        return True
