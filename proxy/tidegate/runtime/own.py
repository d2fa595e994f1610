"""The machine's own addresses and gateways: never a destination, unless a rule names their network.

Read from the kernel's tables, once at start and again on each reload.
"""

import contextlib
import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from tidegate.errors import LaunchError

__all__ = ["device_beside", "own_addresses", "own_devices"]

# linux/sockios.h: one `struct ifreq` for each IPv4 address, of a name and a `struct sockaddr_in` (netdevice(7)).
_SIOCGIFCONF = 0x8912
_IFREQ = 40


def own_addresses(proc: Path = Path("/proc/net")) -> frozenset[str]:
    """Return every local address and default gateway, as text."""
    found: set[str] = {"127.0.0.1", "::1"}
    with contextlib.suppress(OSError):
        found |= _local_four((proc / "fib_trie").read_text())
    with contextlib.suppress(OSError):
        found |= {
            str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in (proc / "if_inet6").read_text().splitlines()
        }
    with contextlib.suppress(OSError):
        found |= _gateways_four((proc / "route").read_text())
    with contextlib.suppress(OSError):
        found |= _gateways_six((proc / "ipv6_route").read_text())
    return frozenset(found)


def own_devices(proc: Path = Path("/proc/net")) -> frozenset[tuple[str, str]]:
    """Return every local address with its device; an address may stand on several. Raises `LaunchError`."""
    found: set[tuple[str, str]] = set()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            found |= _devices_four(sock)
    except OSError as fault:
        raise LaunchError(f"the kernel does not tell this machine's addresses: {fault.strerror}") from fault
    with contextlib.suppress(FileNotFoundError):  # without IPv6 there is no such table
        for line in (proc / "if_inet6").read_text().splitlines():
            address, *_, device = line.split()
            found.add((str(IPv6Address(bytes.fromhex(address))), device))
    return frozenset(found)


def device_beside(address: IPv4Address | IPv6Address, proc: Path = Path("/proc/net")) -> str | None:
    """Return the device behind which an address is a neighbour: of the routes without a gateway, the narrowest."""
    with contextlib.suppress(OSError):
        table = _links_four((proc / "route").read_text()) if address.version == 4 else _links_six(proc)
        found = [(network.prefixlen, device) for network, device in table if address in network]
        return max(found)[1] if found else None
    return None


def _links_four(table: str) -> Iterator[tuple[IPv4Network, str]]:
    for line in table.splitlines()[1:]:
        device, destination, gateway, *_, mask = line.split()[:8]
        if int(gateway, 16) == 0 and int(mask, 16):
            bits = int(mask, 16).bit_count()
            yield IPv4Network((socket.inet_ntoa(struct.pack("<I", int(destination, 16))), bits)), device


def _links_six(proc: Path) -> Iterator[tuple[IPv6Network, str]]:
    for line in (proc / "ipv6_route").read_text().splitlines():
        destination, bits, _, _, hop, *_, device = line.split()
        if int(hop, 16) == 0 and int(bits, 16) and device != "lo":
            yield IPv6Network((bytes.fromhex(destination), int(bits, 16))), device


def _devices_four(sock: socket.socket) -> set[tuple[str, str]]:
    size = _IFREQ * 64
    while True:
        buffer = (ctypes.c_char * size)()
        asked = bytearray(struct.pack("iP", size, ctypes.addressof(buffer)))
        fcntl.ioctl(sock, _SIOCGIFCONF, asked)
        (used,) = struct.unpack_from("i", asked)
        if used <= size - _IFREQ:
            break
        size *= 2  # it was filled to the end: there may be more
    rows = (buffer.raw[at : at + _IFREQ] for at in range(0, used, _IFREQ))
    return {(str(IPv4Address(row[20:24])), row[:16].partition(b"\0")[0].decode().partition(":")[0]) for row in rows}


def _local_four(trie: str) -> set[str]:
    """Entries of the local table stand as `|-- ADDRESS` with `/32 host LOCAL` below."""
    found: set[str] = set()
    address = ""
    for line in trie.splitlines():
        text = line.strip()
        if text.startswith(("|--", "+--")):
            address = text.split()[1].partition("/")[0]
        elif text.startswith("/32 host LOCAL"):
            found.add(str(IPv4Address(address)))
    return found


def _gateways_four(table: str) -> set[str]:
    found = set()
    for line in table.splitlines()[1:]:
        gateway = int(line.split()[2], 16)
        if gateway:
            found.add(socket.inet_ntoa(struct.pack("<I", gateway)))
    return found


def _gateways_six(table: str) -> set[str]:
    hops = {line.split()[4] for line in table.splitlines()}
    return {str(IPv6Address(bytes.fromhex(hop))) for hop in hops if int(hop, 16)}
