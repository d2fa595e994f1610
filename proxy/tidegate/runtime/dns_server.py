"""The responder's sockets: UDP and TCP (RFC 7766), each question answered by the desk."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidegate.exchange.turn import now_or_later

__all__ = ["DnsTcp", "DnsUdp"]

_IDLE_SECONDS = 10.0
_MOST_TCP = 64
_MOST_WAITING = 1024

type Answer = Callable[[bytes, str], Awaitable[bytes | None]]
type Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


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
    """Connections of length-prefixed questions, a bounded number of them."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is idle or ends."""
        self._open += 1
        try:
            if self._open <= _MOST_TCP:
                with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, OSError):
                    while await self._one(reader, writer):
                        pass
        finally:
            self._open -= 1
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        async with asyncio.timeout(_IDLE_SECONDS):
            size = int.from_bytes(await reader.readexactly(2))
            data = await reader.readexactly(size)
            reply = await self._answer(data, writer.get_extra_info("peername")[0])
            if reply is None:
                return False
            writer.write(len(reply).to_bytes(2) + reply)
            await writer.drain()
        return True
