"""The responder's sockets, real ones: who gets an answer, who waits, and who is let go."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidegate.runtime import dns_server
from tidegate.runtime.dns_server import DnsTcp, DnsUdp, open_responder

type Answer = Callable[[bytes, str], Awaitable[bytes | None]]


async def echo(data: bytes, source: str) -> bytes | None:
    """Say what was asked and by whom; nothing to a question that is malformed."""
    return None if data == b"malformed" else data + source.encode()


@asynccontextmanager
async def serving(kind: socket.SocketKind, answer: Answer) -> AsyncIterator[tuple[str, int]]:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.add(task := asyncio.get_running_loop().create_task(work))
        return task

    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    place = sock.getsockname()
    responder = await open_responder(sock, answer, spawn)
    try:
        yield place
    finally:
        responder.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


async def told(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(5):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))


async def test_questions_over_tcp_are_answered_in_order_and_at_a_pace():
    loop = asyncio.get_running_loop()
    async with serving(socket.SOCK_STREAM, echo) as place:
        reader, writer = await asyncio.open_connection(*place)
        writer.write(b"".join(framed(b"%d" % number) for number in range(5)))
        begun = loop.time()
        assert [await told(reader) for _ in range(5)] == [b"%d127.0.0.1" % number for number in range(5)]
        assert loop.time() - begun >= 4 * dns_server._PACE_SECONDS
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(framed(b"malformed"), id="malformed"),
        pytest.param(b"\x00\x09short", id="cut"),
    ],
)
async def test_a_bad_question_over_tcp_ends_its_connection_alone(said: bytes):
    async with serving(socket.SOCK_STREAM, echo) as place:
        good_reader, good = await asyncio.open_connection(*place)
        reader, writer = await asyncio.open_connection(*place)
        writer.write(said)
        writer.write_eof()
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        good.write(framed(b"q"))
        assert await told(good_reader) == b"q127.0.0.1"
        for one in (good, writer):
            one.close()


async def test_one_source_has_so_many_connections_and_another_has_its_own():
    async with serving(socket.SOCK_STREAM, echo) as place:
        several = [await asyncio.open_connection(*place) for _ in range(dns_server._MOST_A_SOURCE)]
        for reader, writer in several:
            writer.write(framed(b"q"))
            assert await told(reader) == b"q127.0.0.1"
        reader, writer = await asyncio.open_connection(*place)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(*place, local_addr=("127.0.0.2", 0))
        writer.write(framed(b"q"))
        assert await told(reader) == b"q127.0.0.2"
        for _, one in (*several, (reader, writer)):
            one.close()


async def test_a_place_that_was_left_is_free_again():
    server = DnsTcp(echo)
    served = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    place = served.sockets[0].getsockname()
    async with served:
        for _ in range(3 * dns_server._MOST_A_SOURCE):
            reader, writer = await asyncio.open_connection(*place)
            writer.write(framed(b"malformed"))
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()
    assert not server._open


async def test_a_silent_connection_is_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "_IDLE_SECONDS", 0.05)
    async with serving(socket.SOCK_STREAM, echo) as place:
        reader, writer = await asyncio.open_connection(*place)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


class _Asking(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.answers.put_nowait(data)


async def test_what_waits_over_udp_is_bounded_and_what_is_over_that_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "_MOST_WAITING", 2)
    free = asyncio.Event()
    asked: list[bytes] = []

    async def slow(data: bytes, source: str) -> bytes | None:
        asked.append(data)
        await free.wait()
        return await echo(data, source)

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        server, responder = await loop.create_datagram_endpoint(
            lambda: DnsUdp(slow, group.create_task), local_addr=("127.0.0.1", 0)
        )
        place = server.get_extra_info("sockname")
        transport, asking = await loop.create_datagram_endpoint(_Asking, remote_addr=place)
        peer = transport.get_extra_info("sockname")
        for question in (b"1", b"malformed", b"3"):
            responder.datagram_received(question, peer)
        assert asked == [b"1", b"malformed"]
        free.set()
        assert await asking.answers.get() == b"1127.0.0.1"
        transport.sendto(b"4")  # there is room again, and nothing was said to the two others
        assert await asking.answers.get() == b"4127.0.0.1"
        transport.close()
        server.close()
