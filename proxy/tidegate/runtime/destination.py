"""What a client dialled whose connection the wall redirected here (netfilter's REDIRECT)."""

import socket
import struct
from ipaddress import ip_address

__all__ = ["original_destination"]

# linux/netfilter_ipv4.h and linux/netfilter_ipv6/ip6_tables.h: the same number for both families.
_SO_ORIGINAL_DST = 80


def original_destination(sock: socket.socket) -> tuple[str, int] | None:
    """Return the address and port that a redirected client dialled; None if this connection was not redirected."""
    try:
        if sock.family == socket.AF_INET6:
            raw = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
            port, address = struct.unpack_from("!2xH4x16s", raw)
        else:
            raw = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
            port, address = struct.unpack_from("!2xH4s", raw)
    except OSError:
        return None
    return str(ip_address(address)), port
