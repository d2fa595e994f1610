"""Who a session is: its id, and the network it may be used from."""

import ipaddress
import secrets
from typing import NewType

import msgspec

__all__ = ["IPNetwork", "SessionId", "Source", "new_session_id", "parse_source"]

SessionId = NewType("SessionId", str)
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_LENGTH = 16  # with claims `sid` and `exp` the token has 182 characters; clients cut longer ones


class Source(msgspec.Struct, frozen=True):
    """Where a connection comes from: an address, or the session whose door it came by, whatever its address."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    door: SessionId | None

    def within(self, network: IPNetwork) -> bool:
        """Say if this peer stands in `network`; who came by a door stands in none."""
        return self.address is not None and self.address.version == network.version and self.address in network


def new_session_id() -> SessionId:
    """Return a fresh id of 80 random bits."""
    return SessionId("".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH)))


def parse_source(text: str) -> Source:
    """Read the peer as the worker gives it: an address, else `door:SESSION`.

    An IPv4 address seen through a dual-stack listener (`::ffff:a.b.c.d`) is the IPv4 address, or a
    session bound to an IPv4 network could be entered or missed by the form of the socket.
    """
    if text.startswith("door:"):
        return Source(None, SessionId(text.removeprefix("door:")))
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return Source(None, None)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return Source(address.ipv4_mapped, None)
    return Source(address, None)
