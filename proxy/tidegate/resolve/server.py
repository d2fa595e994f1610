"""Which DNS servers a name is asked of: the zone's, else the configured, else the system's.

Only the `nameserver` lines of resolv.conf count. Search lists, hosts files and options would let a
name mean something that no rule was written for.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.config.nameserver import Nameserver, parse_nameserver
from tidegate.errors import ConfigError
from tidegate.policy.names import HostName

__all__ = ["ServerMap", "system_nameservers"]


def system_nameservers(path: Path = Path("/etc/resolv.conf")) -> tuple[Nameserver, ...]:
    """Return the servers of resolv.conf, or loopback's, which is what resolv.conf(5) falls back to."""
    found = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                # A zone id (fe80::1%eth0) names an interface of the gate; asyncio takes it as part of the address.
                found.append(Nameserver(str(ipaddress.ip_address(words[1]))))
            except ValueError:
                continue
    return tuple(found) or (Nameserver("127.0.0.1"),)


class ServerMap:
    """Servers by zone, the longest matching zone first; `.` and no zone at all mean the default."""

    def __init__(self, servers: Sequence[str], zones: Mapping[str, Sequence[str]]) -> None:
        self._default = tuple(parse_nameserver(text) for text in servers)
        self._zones: dict[str, tuple[Nameserver, ...]] = {}
        for zone, texts in zones.items():
            if not texts:
                raise ConfigError(f"zone {zone!r} has no server", where="resolver.zones")
            self._zones[zone.strip(".").lower()] = tuple(parse_nameserver(text) for text in texts)
        if not self._default:
            self._default = self._zones.get("") or system_nameservers()

    def of(self, name: HostName) -> tuple[Nameserver, ...]:
        """Return the servers for `name`. There is no fallback from a zone's servers to the default's."""
        rest = str(name)
        while rest:
            if rest in self._zones:
                return self._zones[rest]
            rest = rest.partition(".")[2]
        return self._default
