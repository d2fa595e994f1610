"""What the wall has dropped, read from the kernel's log (NFLOG, linux/netfilter/nfnetlink_log.h).

A packet's headers are the sandbox's own words: they are read here within bounds, and nothing of its content is.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final, Literal, NamedTuple

from tidegate.errors import LaunchError
from tidegate_launcher.privilege import CAP_NET_ADMIN, NEEDS_NET_ADMIN, holds
from tidegate_launcher.wall.rules import LOG_PREFIX, LOGGED_BYTES

__all__ = [
    "GATE_USER",
    "GATE_USER_PREFIX",
    "USERS",
    "USERS_PREFIX",
    "Dropped",
    "PacketLog",
    "read_packet",
    "read_packets",
]

type Transport = Literal["tcp", "udp", "icmp", "other"]

_NETLINK_NETFILTER: Final = 12
_SUBSYSTEM_LOG: Final = 4 << 8
_PACKET, _CONFIG = _SUBSYSTEM_LOG | 0, _SUBSYSTEM_LOG | 1
_REQUEST_ACK: Final = 0x5
_ERROR: Final = 2
_ATTRIBUTE_COMMAND, _ATTRIBUTE_MODE, _ATTRIBUTE_THRESHOLD = 1, 2, 5
_BIND, _COPY_PACKET = 1, 2
_INDEV, _PAYLOAD, _PREFIX = 4, 9, 10
_TYPE_MASK: Final = 0x3FFF
_BUFFER: Final = 1 << 20
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_FIXED: Final = _HEADER.size + 4
GATE_USER: Final = "the gate's user"
"""Where a packet was dropped that came in nowhere, since the gate's own user sent it."""
GATE_USER_PREFIX: Final = f"{LOG_PREFIX}gate "
USERS: Final = "users of the gate's namespace"
"""Where one was dropped that came in nowhere, since someone sent it who shares the gate's namespace."""
USERS_PREFIX: Final = f"{LOG_PREFIX}users "
_NOWHERE: Final = {GATE_USER_PREFIX: GATE_USER, USERS_PREFIX: USERS}
_TCP, _UDP, _ICMP, _ICMPV6 = 6, 17, 1, 58


def _hint(fault: OSError) -> str:
    """Return what to do where the log cannot be had; the kernel gives a group to one reader alone."""
    if fault.errno == errno.EPERM and not holds(CAP_NET_ADMIN):
        return NEEDS_NET_ADMIN
    if fault.errno in (errno.EBUSY, errno.EPERM):
        return "another `tidegate wall watch` may run here already: one watch is for all places (repeat --device)"
    return ""


class Dropped(NamedTuple):
    """A packet that was dropped: where it came in, by which rule, and what its headers say.

    `client` is the source address; its port tells nothing that repeats should be told apart by.
    """

    device: str
    rule: str
    client: str | None
    transport: Transport
    address: str | None
    port: int | None


class PacketLog:
    """The socket of one log group. Raises `LaunchError` when it cannot be had: CAP_NET_ADMIN is needed."""

    def __init__(self, group: int) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self.socket.bind((0, 0))
            for kind, value in (
                (_ATTRIBUTE_COMMAND, struct.pack("B", _BIND)),
                (_ATTRIBUTE_MODE, struct.pack("!IBB", LOGGED_BYTES, _COPY_PACKET, 0)),
                (_ATTRIBUTE_THRESHOLD, struct.pack("!I", 1)),  # each at once: the rules bound how many there are
            ):
                self._configure(group, kind, value)
        except OSError as fault:
            self.socket.close()
            raise LaunchError(
                f"the kernel's packet log cannot be read: {fault.strerror or fault}",
                where=f"NFLOG group {group}",
                hint=_hint(fault),
            ) from fault

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self.socket.fileno()

    def read(self) -> list[Dropped]:
        """Return what has come; what the kernel could not keep for us is known by the counters."""
        found: list[Dropped] = []
        for _ in range(64):
            try:
                found += read_packets(self.socket.recv(1 << 16))
            except BlockingIOError:
                break
            except OSError:
                continue  # ENOBUFS: more came than there is room for
        return found

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def _configure(self, group: int, kind: int, value: bytes) -> None:
        attribute = _ATTRIBUTE.pack(4 + len(value), kind) + value
        attribute += bytes(-len(attribute) % 4)
        body = struct.pack("!BBH", socket.AF_UNSPEC, 0, group) + attribute
        self.socket.send(_HEADER.pack(_HEADER.size + len(body), _CONFIG, _REQUEST_ACK, 1, 0) + body)
        self.socket.settimeout(2.0)
        while True:
            answer = self.socket.recv(1 << 16)
            _, kind, *_ = _HEADER.unpack_from(answer)
            if kind == _ERROR:
                break  # else a packet, which may come as soon as the group is bound: the counters have it
        self.socket.setblocking(False)
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))


def read_packets(data: bytes) -> Iterator[Dropped]:
    """Read the netlink messages of one datagram; what is not a packet that the wall dropped is left out."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            return
        if kind == _PACKET:
            found = _message(dict(_attributes(data[at + _FIXED : at + size])))
            if found is not None:
                yield found
        at += size + -size % 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size or at + size > len(data):
            return
        yield kind & _TYPE_MASK, data[at + 4 : at + size]
        at += size + -size % 4


def _message(attributes: dict[int, bytes]) -> Dropped | None:
    prefix = attributes.get(_PREFIX, b"").rstrip(b"\0").decode("ascii", "replace")
    headers = read_packet(attributes.get(_PAYLOAD, b""))
    for whose, place in _NOWHERE.items():
        if prefix.startswith(whose):
            return Dropped(place, prefix.removeprefix(whose).strip(), *headers)
    index = attributes.get(_INDEV, b"")
    if not prefix.startswith(LOG_PREFIX) or len(index) != 4:
        return None
    try:
        device = socket.if_indextoname(int.from_bytes(index))
    except OSError:
        return None  # the link is gone already
    return Dropped(device, prefix.removeprefix(LOG_PREFIX).strip(), *headers)


def read_packet(packet: bytes) -> tuple[str | None, Transport, str | None, int | None]:
    """Return client, transport, address and port of an IP packet, as far as its headers can be read.

    The ports of IPv6 are read where no other header stands before them: what hides behind one is `other`.
    """
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        start, protocol = (packet[0] & 15) * 4, packet[9]
        ends = packet[12:16], packet[16:20]
        first = struct.unpack_from("!H", packet, 6)[0] & 0x1FFF == 0  # a later fragment has no ports
    elif version == 6 and len(packet) >= 40:
        start, protocol = 40, packet[6]
        ends = packet[8:24], packet[24:40]
        first = True
    else:
        return None, "other", None, None
    source, destination = (str(ip_address(end)) for end in ends)
    if protocol in (_ICMP, _ICMPV6):
        return source, "icmp", destination, None
    if protocol not in (_TCP, _UDP) or not first or start < 20 or len(packet) < start + 4:
        return source, "other", destination, None
    (port,) = struct.unpack_from("!H", packet, start + 2)
    return source, "tcp" if protocol == _TCP else "udp", destination, port
