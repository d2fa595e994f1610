"""Addresses: judged as numbers, by our own dated table, with embedded IPv4 taken out first."""

import enum
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import msgspec

from tidegate.policy.names import IPAddress
from tidegate.policy.reasons import Reason

__all__ = ["AddressFacts", "AddressKind", "IPNetwork", "NO_SITE", "Site", "classify", "literal_reason", "parse_networks", "vet"]

type IPNetwork = IPv4Network | IPv6Network


class AddressKind(enum.Enum):
    """What an address is for."""

    PUBLIC = "public"
    SPECIAL = "special"
    METADATA = "metadata"


class AddressFacts(msgspec.Struct, frozen=True):
    """An address, unwrapped, with its kind and why it has it."""

    address: IPv4Address | IPv6Address
    kind: AddressKind
    why: str


class Site(msgspec.Struct, frozen=True):
    """What the gate knows about its own place in the network."""

    own_addresses: frozenset[IPv4Address | IPv6Address] = frozenset()
    own_ports: frozenset[int] = frozenset()
    deny_cidrs: tuple[IPv4Network | IPv6Network, ...] = ()
    nat64_prefixes: tuple[IPv6Network, ...] = ()


NO_SITE = Site()


def parse_networks(texts: tuple[str, ...]) -> tuple[IPNetwork, ...]:
    """Return the networks of a rule's `addresses`; raise `PolicyError` for a bad one. Cached."""
    raise NotImplementedError


def classify(
    address: IPAddress, *, nat64_prefixes: Sequence[IPv6Network] = (), deny_cidrs: Sequence[IPNetwork] = ()
) -> AddressFacts:
    """Return what the address is."""
    raise NotImplementedError


def vet(
    addresses: Sequence[IPAddress], *, port: int, allowed: Sequence[IPNetwork], site: Site
) -> tuple[IPAddress, ...] | Reason:
    """Return the addresses to dial, as given and in order, or why the whole answer is refused."""
    raise NotImplementedError


def literal_reason(address: IPAddress, site: Site) -> Reason:
    """Return why an address may not be used as a host."""
    raise NotImplementedError
