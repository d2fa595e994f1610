"""The only place that dials: pinned addresses, on real sockets of the loopback."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_address

import pytest

from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin
from tidegate.runtime import dialer
from tidegate.runtime.dialer import DialFault, dial


def pinned(port: int, *addresses: str) -> Pin:
    return Pin(HostName("api.test"), port, tuple(map(ip_address, addresses)), 0.0, 60.0)


@contextlib.asynccontextmanager
async def server(address: str = "127.0.0.1") -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    made = await asyncio.start_server(serve, address, 0)
    async with made:
        yield made.sockets[0].getsockname()[1]


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def silent(address: str) -> Iterator[int]:
    """A port whose backlog is full, so that a further connection hangs without an answer."""
    with (
        socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener,
        contextlib.ExitStack() as held,
    ):
        listener.bind((address, 0))
        listener.listen(0)
        port = int(listener.getsockname()[1])
        for _ in range(3):
            sock = held.enter_context(socket.socket(listener.family))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect((address, port))
        yield port


async def reach(pin: Pin, seconds: float = 5.0) -> str:
    transport = await dial(pin, asyncio.Protocol(), timeout_seconds=seconds)
    try:
        return str(transport.get_extra_info("peername")[0])
    finally:
        transport.abort()


async def test_the_pinned_address_is_dialled() -> None:
    async with server() as port:
        assert await reach(pinned(port, "127.0.0.1")) == "127.0.0.1"
        assert await reach(pinned(port, "127.0.0.2", "127.0.0.1")) == "127.0.0.1"


async def test_nothing_is_dialled_without_an_address() -> None:
    with pytest.raises(DialFault) as fault:
        await reach(pinned(443))
    assert fault.value.reason is Reason.BAD_UPSTREAM


async def test_a_refused_connection_is_a_bad_upstream() -> None:
    with pytest.raises(DialFault) as fault:
        await reach(pinned(closed_port(), "127.0.0.1", "127.0.0.2"))
    assert fault.value.reason is Reason.BAD_UPSTREAM


async def test_V_16_an_upstream_that_does_not_answer_is_a_time_out() -> None:
    with silent("127.0.0.1") as port, pytest.raises(DialFault) as fault:
        await reach(pinned(port, "127.0.0.1"), 0.2)
    assert fault.value.reason is Reason.UPSTREAM_TIMEOUT


async def test_a_dead_ipv6_costs_its_head_start_and_no_more() -> None:
    with silent("::1") as port, socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        began = time.monotonic()
        assert await reach(pinned(port, "127.0.0.1", "::1")) == "127.0.0.1"
        assert time.monotonic() - began < 2.0


async def test_a_refusal_starts_the_next_attempt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "_HEAD_START", 60.0)
    async with server() as port:
        assert await reach(pinned(port, "::1", "127.0.0.2", "127.0.0.1")) == "127.0.0.1"


async def test_families_take_turns_beginning_with_ipv6() -> None:
    pin = pinned(1, "192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.3")
    order = [str(address) for address in dialer._interleave(pin.addresses)]
    assert order == ["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]


async def test_a_peer_that_is_not_pinned_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server() as port:

        async def elsewhere(_: object, __: int) -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            return sock

        monkeypatch.setattr(dialer, "_connect", elsewhere)
        protocol = _Watching()
        with pytest.raises(DialFault) as fault:
            await dial(pinned(port, "127.0.0.9"), protocol, timeout_seconds=5.0)
    assert fault.value.reason is Reason.BAD_UPSTREAM
    assert not protocol.made


class _Watching(asyncio.Protocol):
    made = False

    def connection_made(self, _: asyncio.BaseTransport) -> None:
        self.made = True


async def test_every_socket_but_the_winners_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    together = asyncio.Barrier(3)
    monkeypatch.setattr(dialer, "_HEAD_START", 0.0)

    async def connect(_: object, __: int) -> socket.socket:
        sock, other = socket.socketpair()
        made.append(sock)
        other.close()
        await together.wait()
        return sock

    monkeypatch.setattr(dialer, "_connect", connect)
    winner = await dialer._race([ip_address("127.0.0.1"), ip_address("127.0.0.2"), ip_address("127.0.0.3")], 1)
    async with asyncio.timeout(2):
        while [sock.fileno() >= 0 for sock in made].count(True) > 1:  # noqa: ASYNC110 - only a closed socket tells
            await asyncio.sleep(0)  # the losers' tasks have their turn
    assert len(made) == 3
    assert [sock.fileno() >= 0 for sock in made].count(True) == 1
    winner.close()
