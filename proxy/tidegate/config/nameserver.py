"""One DNS server as it is written: an address with a port, never a name."""

import ipaddress
from typing import Final

import msgspec

from tidegate.errors import ConfigError

__all__ = ["Nameserver", "parse_nameserver"]

_PORT: Final = 53


class Nameserver(msgspec.Struct, frozen=True):
    """Address and port of a DNS server; its text is `address:port`, IPv6 in brackets."""

    address: str
    port: int = _PORT

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def parse_nameserver(text: str) -> Nameserver:
    """Return the server in `address`, `address:port` or `[IPv6]:port`; raise `ConfigError` for a name."""
    host, port = text, str(_PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is None or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is no DNS server", hint="write address or address:port, IPv6 in brackets")
    return Nameserver(str(address), int(port))
