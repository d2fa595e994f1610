"""From a name to its addresses of one family, along CNAMEs, within bounds.

| step                         | outcome                                                       |
|------------------------------|---------------------------------------------------------------|
| CNAME in the reply           | follow it; target checked against the metadata names          |
| addresses at the chain's end | done                                                          |
| chain moved, no addresses    | ask again for its end (a server that does not follow)         |
| nothing                      | empty, which is an answer (AAAA of a name with A only)        |
| more than 10 steps, a loop   | fault                                                         |
| more than 128 addresses      | fault: an answer is vetted whole or not used (D-12)           |

Records of other owners, other types (HTTPS hints among them, D-13) and PTR are never read.
"""

from ipaddress import IPv4Address, IPv6Address

import dns.message
import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.CNAME
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
import msgspec

from tidegate.errors import ResolveError
from tidegate.policy.names import HostName, IPAddress, is_metadata_name
from tidegate.resolve.query import ask
from tidegate.resolve.server import ServerMap

__all__ = ["MAX_ADDRESSES", "MAX_CNAMES", "Chain", "MetadataAlias", "follow"]

MAX_CNAMES = 10
MAX_ADDRESSES = 128
_LABEL_ALPHABET = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


class MetadataAlias(ResolveError):
    """A CNAME that leads to a name of a metadata service."""


class Chain(msgspec.Struct, frozen=True):
    """The end of a chain: addresses in the server's order, the names on the way, the lowest TTL."""

    addresses: tuple[IPAddress, ...]
    cnames: tuple[HostName, ...]
    ttl: float


def _host_name(name: dns.name.Name) -> HostName:
    # A target is written by whoever holds the zone, and ends up in the log: plain labels only.
    labels = [label.lower() for label in name.labels if label]
    if not labels or any(not _LABEL_ALPHABET.issuperset(label) for label in labels):
        raise ResolveError("a CNAME target that is no host name", where=repr(name.to_text()))
    return HostName(b".".join(labels).decode("ascii"))


class _Walk:
    def __init__(self, name: HostName, rdtype: dns.rdatatype.RdataType) -> None:
        self.start = name
        self.rdtype = rdtype
        self.end = dns.name.from_text(name + ".")
        self.cnames: list[HostName] = []
        self.ttl = float("inf")

    def step(self, message: dns.message.Message) -> tuple[IPAddress, ...] | None:
        """Follow the reply as far as it goes; return the addresses, () for none, None to ask again."""
        before = self.end
        while (
            alias := message.get_rrset(message.answer, self.end, dns.rdataclass.IN, dns.rdatatype.CNAME)
        ) is not None:
            self.ttl = min(self.ttl, alias.ttl)
            self._move(next(iter(alias)))
        found = message.get_rrset(message.answer, self.end, dns.rdataclass.IN, self.rdtype)
        if found is not None:
            if len(found) > MAX_ADDRESSES:
                raise ResolveError(f"more than {MAX_ADDRESSES} addresses", where=self.start)
            self.ttl = min(self.ttl, found.ttl)
            return tuple(_address(record) for record in found)
        return () if self.end == before else None

    def _move(self, record: object) -> None:
        if not isinstance(record, dns.rdtypes.ANY.CNAME.CNAME):
            raise ResolveError("a malformed CNAME", where=self.start)
        # Bounds a loop as well.
        if len(self.cnames) == MAX_CNAMES:
            raise ResolveError(f"a CNAME loop, or a chain longer than {MAX_CNAMES}", where=self.start)
        target = _host_name(record.target)
        if is_metadata_name(target):
            raise MetadataAlias("a CNAME to a metadata service", where=self.start)
        self.end = record.target
        self.cnames.append(target)


def _address(record: object) -> IPAddress:
    if isinstance(record, dns.rdtypes.IN.A.A):
        return IPv4Address(record.address)
    if isinstance(record, dns.rdtypes.IN.AAAA.AAAA):
        return IPv6Address(record.address)
    raise ResolveError("a malformed address record")


async def follow(name: HostName, rdtype: dns.rdatatype.RdataType, servers: ServerMap) -> Chain:
    """Return the addresses of `name` in one family; raise `ResolveError` for anything but a clear answer.

    NXDOMAIN counts as no addresses: some servers say so for AAAA of a name that has A, and
    the caller refuses a name that has none in either family.
    """
    walk = _Walk(name, rdtype)
    # Each round moves at least one CNAME on, or ends.
    for _round in range(MAX_CNAMES + 1):
        where = walk.cnames[-1] if walk.cnames else name
        found = walk.step(await ask(walk.end, rdtype, servers.of(where)))
        if found is not None:
            return Chain(found, tuple(walk.cnames), walk.ttl)
    raise ResolveError(f"a CNAME chain longer than {MAX_CNAMES}", where=name)
