"""Packets of the kernel's log, read: whatever a sandbox has put into their headers."""

import errno
import os
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate.errors import LaunchError
from tidegate_launcher.wall import nflog
from tidegate_launcher.wall.nflog import Dropped, PacketLog, read_packet, read_packets


def four(protocol: int, rest: bytes, *, options: int = 0, fragment: int = 0) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s", 0x45 + options, 0, 20 + 4 * options + len(rest), 1, fragment, 64, protocol, 0,
        ip_address("10.77.0.2").packed, ip_address("192.0.2.7").packed,
    )  # fmt: skip
    return head + bytes(4 * options) + rest


def six(header: int, rest: bytes) -> bytes:
    ends = ip_address("fd77::2").packed + ip_address("2001:db8::7").packed
    return struct.pack("!IHBB", 6 << 28, len(rest), header, 64) + ends + rest


PORTS = struct.pack("!HH", 40000, 443)


@pytest.mark.parametrize(
    ("packet", "told"),
    [
        pytest.param(four(17, PORTS), ("10.77.0.2", "udp", "192.0.2.7", 443), id="udp"),
        pytest.param(four(6, PORTS), ("10.77.0.2", "tcp", "192.0.2.7", 443), id="tcp"),
        pytest.param(four(17, PORTS, options=3), ("10.77.0.2", "udp", "192.0.2.7", 443), id="options"),
        pytest.param(four(17, PORTS, fragment=5), ("10.77.0.2", "other", "192.0.2.7", None), id="later fragment"),
        pytest.param(four(17, PORTS[:3]), ("10.77.0.2", "other", "192.0.2.7", None), id="cut"),
        pytest.param(four(1, b"\x08"), ("10.77.0.2", "icmp", "192.0.2.7", None), id="icmp"),
        pytest.param(four(47, b""), ("10.77.0.2", "other", "192.0.2.7", None), id="gre"),
        pytest.param(six(17, PORTS), ("fd77::2", "udp", "2001:db8::7", 443), id="udp, IPv6"),
        pytest.param(six(58, b"\x80"), ("fd77::2", "icmp", "2001:db8::7", None), id="icmpv6"),
        pytest.param(six(0, bytes(8) + PORTS), ("fd77::2", "other", "2001:db8::7", None), id="hop by hop"),
        pytest.param(b"", (None, "other", None, None), id="nothing"),
        pytest.param(b"\x45" + bytes(10), (None, "other", None, None), id="cut head"),
        pytest.param(b"\x00" * 64, (None, "other", None, None), id="no version"),
        pytest.param(b"\x41" + four(17, PORTS)[1:], ("10.77.0.2", "other", "192.0.2.7", None), id="lying length"),
    ],
)
def test_what_the_headers_say(packet: bytes, told: tuple[object, ...]) -> None:
    assert read_packet(packet) == told


def message(*attributes: tuple[int, bytes], kind: int = 0x400) -> bytes:
    body = bytes(4)
    for number, value in attributes:
        body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


LO = (4, struct.pack("!I", 1))


def test_a_datagram_holds_several() -> None:
    one = message((10, b"tidegate everything else \0"), LO, (9, four(17, PORTS)))
    two = message((10, b"tidegate another source \0"), LO, (9, four(1, b"")))
    assert list(read_packets(one + two)) == [
        Dropped("lo", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443),
        Dropped("lo", "another source", "10.77.0.2", "icmp", "192.0.2.7", None),
    ]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(message((10, b"other "), LO), id="another's prefix"),
        pytest.param(message((10, b"tidegate x ")), id="no device"),
        pytest.param(message((10, b"tidegate x "), (4, struct.pack("!I", 1 << 30))), id="a device that is gone"),
        pytest.param(message((10, b"tidegate x "), LO, kind=3), id="no packet"),
        pytest.param(message((10, b"tidegate x "), LO)[:-8], id="cut"),
        pytest.param(b"\0" * 15, id="short"),
    ],
)
def test_what_is_no_packet_of_the_wall_is_left_out(data: bytes) -> None:
    assert list(read_packets(data)) == []


@given(some.binary(max_size=200))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    read_packet(data)
    list(read_packets(data))
    list(read_packets(message((10, b"tidegate x "), LO, (9, data))))


@pytest.mark.parametrize(
    ("number", "may", "hint"),
    [
        pytest.param(errno.EBUSY, True, "another `tidegate wall watch` may run here already", id="busy"),
        pytest.param(errno.EPERM, True, "another `tidegate wall watch` may run here already", id="another's"),
        pytest.param(errno.EPERM, False, "this needs root, or CAP_NET_ADMIN in this namespace", id="no right"),
        pytest.param(errno.EINVAL, True, "", id="else"),
    ],
)
def test_why_the_log_cannot_be_had_leads_to_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, may: bool, hint: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(PacketLog, "_configure", refuse)
    monkeypatch.setattr(nflog, "holds", lambda _: may)
    with pytest.raises(LaunchError) as caught:
        PacketLog(5)
    assert hint in caught.value.hint
    assert bool(hint) is bool(caught.value.hint)
