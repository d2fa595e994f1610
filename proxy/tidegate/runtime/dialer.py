"""The only place that opens a socket to the outside: to a pinned address, and to no other.

A pin is the outcome of one look-up whose every address was vetted (invariant 3). The race among its
addresses follows RFC 8305: one attempt after another, each with a head start of a quarter second,
so that a broken IPv6 costs no more than that.
"""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin

__all__ = ["DialFault", "dial"]

_HEAD_START = 0.25

IPAddress = IPv4Address | IPv6Address


class DialFault(Exception):
    """No address of the pin took the connection; `reason` says how it failed."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


async def dial(pin: Pin, protocol: asyncio.Protocol, *, timeout_seconds: float) -> asyncio.Transport:
    """Connect `protocol` to one of the pin's addresses within `timeout_seconds`.

    Raises `DialFault` with `upstream_timeout` or `bad_upstream`; never dials a name.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_seconds):
            sock = await _race(_interleave(pin.addresses), pin.port)
            try:
                _check_peer(sock, pin)
                transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
            except BaseException:
                sock.close()
                raise
    except TimeoutError:
        raise DialFault(Reason.UPSTREAM_TIMEOUT) from None
    except OSError:
        raise DialFault(Reason.BAD_UPSTREAM) from None
    return transport


def _interleave(addresses: tuple[IPAddress, ...]) -> list[IPAddress]:
    """Order by family in turn, IPv6 first (RFC 8305 section 4)."""
    six = [address for address in addresses if address.version == 6]
    four = [address for address in addresses if address.version == 4]
    out: list[IPAddress] = []
    for index in range(max(len(six), len(four))):
        out.extend(six[index : index + 1])
        out.extend(four[index : index + 1])
    return out


async def _race(addresses: list[IPAddress], port: int) -> socket.socket:
    """Start the attempts one by one; the first socket to connect wins and the others are closed."""
    if len(addresses) == 1:
        return await _connect(addresses[0], port)
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[socket.socket]] = set()
    queue = list(addresses)
    fault: BaseException = OSError("no address")
    try:
        while queue or running:
            if queue:
                running.add(loop.create_task(_connect(queue.pop(0), port)))
            done, _ = await asyncio.wait(
                running, timeout=_HEAD_START if queue else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                # Taken out one by one: what connects in the same moment as the winner is closed below.
                running.discard(task)
                error = task.exception()
                if error is None:
                    return task.result()
                fault = error
        raise fault
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_discard)


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def _check_peer(sock: socket.socket, pin: Pin) -> None:
    """Compare the peer after connect: a difference would be a fault of ours, so nothing is sent."""
    if ip_address(sock.getpeername()[0]) not in pin.addresses:
        raise OSError("the peer is not a pinned address")
