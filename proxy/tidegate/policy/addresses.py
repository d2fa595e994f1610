"""Addresses: judged as numbers, by our own dated table, with embedded IPv4 taken out first.

Theory of operation. `classify` unwraps an address, then looks it up:

| form                                     | judged as                                            |
|------------------------------------------|------------------------------------------------------|
| IPv4-mapped                              | the IPv4 address; that is also its canonical form    |
| NAT64, well-known or configured prefix   | the IPv4 address; what is dialled keeps the form     |
| 6to4, Teredo, ISATAP, IPv4-compatible,   | special whatever they carry, since a tunnel's end is |
| IPv4-translated, local-use NAT64         | not ours to judge; metadata if they carry that       |
| outside 2000::/3                         | special                                              |
| anything else                            | the first row of the table, else public              |

`vet` judges a whole DNS answer: one bad address refuses the name, because a rebinding answer
needs only one of them to be dialled (invariant 3).
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

import msgspec
from netaddr import IPNetwork as AnyNetwork
from netaddr import cidr_merge

from tidegate.policy.address_table import GLOBAL_UNICAST_V6, ROWS, TABLE_VERSION, TRANSITION_V6
from tidegate.policy.names import IPAddress, PolicyError
from tidegate.policy.reasons import Reason

__all__ = [
    "NO_SITE",
    "TABLE_VERSION",
    "AddressFacts",
    "AddressKind",
    "IPNetwork",
    "Site",
    "classify",
    "embed",
    "literal_reason",
    "parse_networks",
    "vet",
]

type IPNetwork = IPv4Network | IPv6Network


class AddressKind(enum.Enum):
    """What an address is for, as far as egress cares."""

    PUBLIC = "public"
    SPECIAL = "special"
    METADATA = "metadata"


class AddressFacts(msgspec.Struct, frozen=True):
    """An address in canonical form (mapped and NAT64 unwrapped), its kind, and why it has it."""

    address: IPv4Address | IPv6Address
    kind: AddressKind
    why: str


class Site(msgspec.Struct, frozen=True):
    """What the gate knows about its own place: its addresses and listener ports, the operator's
    closed networks, and the NAT64 prefixes in use."""

    own_addresses: frozenset[IPv4Address | IPv6Address] = frozenset()
    own_ports: frozenset[int] = frozenset()
    deny_cidrs: tuple[IPv4Network | IPv6Network, ...] = ()
    nat64_prefixes: tuple[IPv6Network, ...] = ()

    @classmethod
    def parse(
        cls,
        *,
        deny_cidrs: Iterable[str],
        nat64_prefixes: Iterable[str],
        own_addresses: Iterable[str] = (),
        own_ports: frozenset[int] = frozenset(),
    ) -> Self:
        """Return the site that settings describe, whose texts the loader has checked."""
        return cls(
            own_addresses=frozenset(ip_address(text) for text in own_addresses),
            own_ports=own_ports,
            deny_cidrs=_merged(ip_network(text) for text in deny_cidrs),
            nat64_prefixes=tuple(IPv6Network(text) for text in nat64_prefixes),
        )


NO_SITE = Site()
"""A site that knows nothing of itself."""

# A row as numbers: an address is inside when its upper bits agree.
type _Row = tuple[int, int, AddressKind, str]


def _numbers(network: IPNetwork) -> tuple[int, int]:
    return int(network.netmask), int(network.network_address)


def _rows(version: int) -> tuple[_Row, ...]:
    parsed = ((ip_network(text), kind, why) for text, kind, why in ROWS)
    return tuple((*_numbers(net), AddressKind(kind), why) for net, kind, why in parsed if net.version == version)


_ROWS4 = _rows(4)
_ROWS6 = _rows(6)
_UNICAST6 = _numbers(IPv6Network(GLOBAL_UNICAST_V6))
_FORMS = tuple(
    (*_numbers(IPv6Network(text)), IPv6Network(text).prefixlen, form, why) for text, form, why in TRANSITION_V6
)
_TRANSLATION_LENGTHS = frozenset({32, 40, 48, 56, 64, 96})  # RFC 6052 section 2.2 knows no other
_LOW32 = 0xFFFFFFFF
# RFC 5214 section 6.1: the interface identifier 00-00-5E-FE or 02-00-5E-FE, then the IPv4 address.
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
_LOOPBACK4 = _numbers(IPv4Network("127.0.0.0/8"))
_THIS4 = _numbers(IPv4Network("0.0.0.0/8"))


@lru_cache(maxsize=4096)
def parse_networks(texts: tuple[str, ...]) -> tuple[IPNetwork, ...]:
    """Return the networks of a rule's `addresses`, merged; raise `PolicyError` for one that is none."""
    networks = []
    for text in texts:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise PolicyError(f"addresses: {error}", hint="write a network such as 10.20.0.0/16") from error
    return _merged(networks)


def _merged(networks: Iterable[IPNetwork]) -> tuple[IPNetwork, ...]:
    """Return the fewest networks that cover the same addresses: a site may list hundreds that overlap or adjoin."""
    given = [AnyNetwork(str(network)) for network in networks]
    return tuple(ip_network(str(network)) for network in cidr_merge(given))


def _look_up(number: int, rows: tuple[_Row, ...]) -> tuple[AddressKind, str]:
    for mask, network, kind, why in rows:
        if number & mask == network:
            return kind, why
    return AddressKind.PUBLIC, "public"


def _embedded(number: int, prefix_length: int) -> IPv4Address:
    """Return the IPv4 address at its place after a translation prefix (RFC 6052 section 2.2)."""
    octets = number.to_bytes(16)
    if prefix_length == 96:
        return IPv4Address(octets[12:])
    at = prefix_length // 8
    # Octet 8 is reserved and carries nothing: shorter prefixes go around it.
    return IPv4Address((octets[:8] + octets[9:])[at : at + 4])


def embed(network: IPv4Network, prefix: IPv6Network) -> IPv6Network:
    """Return where a translation prefix has the addresses of an IPv4 network (RFC 6052 section 2.2)."""
    octets = bytearray(prefix.network_address.packed)
    places = [place for place in range(prefix.prefixlen // 8, 16) if place != 8 or prefix.prefixlen == 96][:4]
    for place, octet in zip(places, network.network_address.packed, strict=True):
        octets[place] = octet
    whole, rest = divmod(network.prefixlen, 8)
    length = (places[whole] * 8 if whole < 4 else places[3] * 8 + 8) + rest if network.prefixlen else prefix.prefixlen
    return IPv6Network((bytes(octets), length))


def _carried(number: int) -> Iterator[tuple[IPv4Address, str, str]]:
    """Yield each IPv4 address that the number may carry, with the form and its reason."""
    for mask, network, length, form, why in _FORMS:
        if number & mask != network:
            continue
        if length == 16:
            yield IPv4Address(number >> 80 & _LOW32), form, why
        elif length == 32:  # Teredo: the server, then the client with all bits inverted
            yield IPv4Address(number >> 64 & _LOW32), form, why
            yield IPv4Address(~number & _LOW32), form, why
        elif number > 1 or length != 96:  # :: and ::1 are no IPv4-compatible addresses
            yield _embedded(number, length), form, why
            if length == 48:  # sites put longer prefixes of their own inside the local-use /48
                for longer in (56, 64, 96):
                    yield _embedded(number, longer), form, why
    if number >> 32 & _LOW32 in _ISATAP:
        yield IPv4Address(number & _LOW32), "tunnel", "ISATAP (RFC 5214)"


def _classify6(address: IPv6Address, nat64_prefixes: Sequence[IPv6Network]) -> AddressFacts:
    number = int(address)
    for prefix in nat64_prefixes:
        if prefix.prefixlen in _TRANSLATION_LENGTHS and address in prefix:
            return _classify4(_embedded(number, prefix.prefixlen))
    tunnel = ""
    for inner, form, why in _carried(number):
        facts = _classify4(inner)
        if form != "tunnel":
            return facts
        if facts.kind is AddressKind.METADATA:
            return AddressFacts(address, AddressKind.METADATA, f"{why}, carrying {facts.why}")
        tunnel = why
    kind, why = _look_up(number, _ROWS6)
    if tunnel and kind is not AddressKind.METADATA:
        return AddressFacts(address, AddressKind.SPECIAL, tunnel)
    if kind is AddressKind.PUBLIC and number & _UNICAST6[0] != _UNICAST6[1]:
        return AddressFacts(address, AddressKind.SPECIAL, "outside global unicast space (RFC 4291)")
    return AddressFacts(address, kind, why)


def _classify4(address: IPv4Address) -> AddressFacts:
    return AddressFacts(address, *_look_up(int(address), _ROWS4))


def classify(
    address: IPAddress, *, nat64_prefixes: Sequence[IPv6Network] = (), deny_cidrs: Sequence[IPNetwork] = ()
) -> AddressFacts:
    """Return what the address is; the operator's `deny_cidrs` make a public address special."""
    facts = _classify4(address) if isinstance(address, IPv4Address) else _classify6(address, nat64_prefixes)
    if facts.kind is AddressKind.PUBLIC and (_inside(facts.address, deny_cidrs) or _inside(address, deny_cidrs)):
        return AddressFacts(facts.address, AddressKind.SPECIAL, "closed by deny_cidrs")
    return facts


def _inside(address: IPAddress, networks: Sequence[IPNetwork]) -> bool:
    return any(address in network for network in networks)


def _is_this_machine(address: IPAddress) -> bool:
    """Tell loopback and unspecified: with a wildcard listener, all of them lead to the gate."""
    if isinstance(address, IPv4Address):
        number = int(address)
        return number & _LOOPBACK4[0] == _LOOPBACK4[1] or number & _THIS4[0] == _THIS4[1]
    return int(address) <= 1


def _judge(address: IPAddress, port: int, allowed: Sequence[IPNetwork], site: Site) -> Reason | None:
    facts = classify(address, nat64_prefixes=site.nat64_prefixes, deny_cidrs=site.deny_cidrs)
    if facts.kind is AddressKind.METADATA:
        return Reason.RESOLVED_METADATA
    own = facts.address in site.own_addresses or address in site.own_addresses
    if port in site.own_ports and (own or _is_this_machine(facts.address)):
        return Reason.SELF_OR_GATEWAY
    if not own and facts.kind is AddressKind.PUBLIC:
        return None
    return None if _inside(facts.address, allowed) else Reason.RESOLVED_BLOCKED


_WORST_FIRST = (Reason.RESOLVED_METADATA, Reason.SELF_OR_GATEWAY, Reason.RESOLVED_BLOCKED)


def vet(
    addresses: Sequence[IPAddress], *, port: int, allowed: Sequence[IPNetwork], site: Site
) -> tuple[IPAddress, ...] | Reason:
    """Return the addresses to dial, as given and in order, or why the whole answer is refused.

    `allowed` are the networks of the rule (`parse_networks(rule.addresses)`): the only way to a
    special range or to the gate's own machine, never to metadata or a port of the gate itself.
    """
    if not addresses:
        return Reason.DNS_FAILURE
    found = {_judge(address, port, allowed, site) for address in addresses}
    for reason in _WORST_FIRST:
        if reason in found:
            return reason
    return tuple(addresses)


def literal_reason(address: IPAddress, site: Site) -> Reason:
    """Return why an address may not be used as a host: policies name names (A, N-19)."""
    facts = classify(address, nat64_prefixes=site.nat64_prefixes, deny_cidrs=site.deny_cidrs)
    if facts.kind is AddressKind.METADATA:
        return Reason.METADATA
    if facts.address in site.own_addresses or address in site.own_addresses:
        return Reason.SELF_OR_GATEWAY
    return Reason.IP_LITERAL if facts.kind is AddressKind.PUBLIC else Reason.BLOCKED_ADDRESS
