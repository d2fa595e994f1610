"""What the first line refuses by its address, the second drops, and what the first dials the second lets through.

Two exceptions: a reserved octet that is not zero, which the second drops, and IPv4-mapped addresses, which are in no
packet of IPv6.
"""

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tidegate.policy.address_table import ROWS, TRANSITION_V6
from tidegate.policy.addresses import Site, parse_networks, vet
from tidegate_launcher.wall.leash import Leash, leash_transaction
from tidegate_launcher.wall.rules import Address

MAPPED = IPv6Network("::ffff:0:0/96")
DECLARED = ("64:ff9b::/96", "64:ff9b:1:a9fe::/96", "2001:db8:1:2::/64", "2600:1:2:300::/56", "fd64::/96")
NAMED = ("10.0.0.0/8", "169.254.0.0/16", "::/0", "fc00::/7", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "fd12::/64")
CLOSED = ("198.41.0.0/24", "2606:4700::/32", "2600:1:2::/48", "64:ff9b::c629:0/112")
NETWORKS = [ip_network(text) for text in (*(row[0] for row in (*ROWS, *TRANSITION_V6)), *DECLARED, *NAMED, *CLOSED)]
FOUR = [one for one in NETWORKS if isinstance(one, IPv4Network)]
SIX = [one for one in NETWORKS if isinstance(one, IPv6Network)]


class Lines:
    """Both, of one configuration."""

    def __init__(self, named: tuple[str, ...], declared: tuple[str, ...], closed: tuple[str, ...] = ()) -> None:
        self.nat64 = tuple(IPv6Network(text) for text in declared)
        self.site = Site.parse(deny_cidrs=closed, nat64_prefixes=declared)
        self.allowed = parse_networks(named)
        leash = Leash(1, (), tuple(map(ip_network, named)), self.nat64, tuple(map(ip_network, closed)))
        steps: Any = json.loads(json.dumps(leash_transaction(leash)))["nftables"]
        self.chains: dict[str, list[Any]] = {}
        for rule in (step["add"]["rule"] for step in steps if "rule" in step.get("add", {})):
            self.chains.setdefault(rule["chain"], []).append(rule["expr"])

    def first(self, address: Address) -> bool:
        return isinstance(vet((address,), port=443, allowed=self.allowed, site=self.site), tuple)

    def second(self, address: Address) -> bool:
        return self._fate("held", address) != "drop"

    def _fate(self, chain: str, address: Address) -> str | None:
        """Judge as the kernel does: the first rule all of whose matches hold decides."""
        for *matches, verdict in self.chains[chain]:
            if "log" in verdict or not all(_holds(one["match"], address) for one in matches if "match" in one):
                continue
            if "jump" not in verdict:
                return None if "return" in verdict else next(iter(verdict))
            if (found := self._fate(verdict["jump"]["target"], address)) is not None:
                return found
        return None

    def differ(self, address: Address) -> bool:
        octet = int(address) >> 56 & 255
        return address in MAPPED or (octet != 0 and any(address in one for one in self.nat64 if one.prefixlen < 96))


def _holds(match: Any, address: Address) -> bool:
    left, right = match["left"], match["right"]
    if "meta" in left:
        return bool(right == f"ipv{address.version}")
    connection = left.get("ct", {})
    if connection.get("key") == "direction":
        return bool(right == "original")
    several = right["set"] if isinstance(right, dict) and "set" in right else [right]
    if connection.get("dir") == "original":
        where = {"protocol": connection["key"].removesuffix(" daddr"), "field": "daddr"}
    elif "payload" in left:
        where = left["payload"]
    else:
        return False  # a plain packet, of no connection that stands, to another machine
    if "field" not in where:
        shift = 128 - (where["offset"] - 24 * 8) - where["len"]
        found = (int(address) >> shift & (2 ** where["len"] - 1)) in several
    elif where["protocol"] != ("ip" if address.version == 4 else "ip6"):
        return False
    else:
        found = any(address in _network(one) for one in several)
    return found is (match["op"] == "==")


def _network(one: Any) -> IPv4Network | IPv6Network:
    return ip_network((one["prefix"]["addr"], one["prefix"]["len"]) if isinstance(one, dict) else one)


LINES = [
    Lines((), ()),
    Lines(("10.0.0.0/8",), ()),
    Lines(("64:ff9b::/96",), ("64:ff9b::/96",), CLOSED),
    Lines(("::/0",), ("2001:db8:1:2::/64", "64:ff9b:1:a9fe::/96")),
    Lines(("fc00::/7", "fd12::/64"), ("fd64::/96",)),
    Lines(("169.254.0.0/16", "64:ff9b:1::/48", "2002::/16"), ("2600:1:2:300::/56",), CLOSED),
]
four = some.sampled_from(FOUR).flatmap(
    lambda network: some.integers(0, network.num_addresses - 1).map(lambda number: network[number])
)


@some.composite
def six(draw: some.DrawFn) -> IPv6Address:
    """Draw an address of some network that has an IPv4 address somewhere, perhaps around the reserved octet."""
    network = draw(some.sampled_from(SIX))
    octets = bytearray(draw(some.sampled_from([0, 2**128 - 1, 0x0606 << 56])).to_bytes(16))
    at = draw(some.sampled_from([2, 4, 5, 6, 7, 8, 9, 12]))
    if draw(some.booleans()):
        octets[8:12] = draw(some.sampled_from([b"\0\0\x5e\xfe", b"\2\0\x5e\xfe"]))
    octets[8] &= draw(some.sampled_from([0, 255]))
    inner = bytes(octet ^ draw(some.sampled_from([0, 255])) for octet in draw(four).packed)
    for place, octet in zip([one for one in range(at, 16) if one != 8 or at < 4][:4], inner, strict=True):
        octets[place] = octet
    return IPv6Address(int.from_bytes(octets) & int(network.hostmask) | int(network.network_address))


@given(some.sampled_from(LINES), some.one_of(four, six()))
@example(LINES[0], IPv6Address("64:ff9b::808:808"))
@example(LINES[1], IPv6Address("64:ff9b::a01:203"))
@example(LINES[2], IPv6Address("64:ff9b::a01:203"))
@example(LINES[2], IPv4Address("198.41.0.4"))
@example(LINES[2], IPv6Address("64:ff9b::c629:4"))
@example(LINES[5], IPv6Address("2600:1:2:308:8:808::"))
@example(LINES[0], IPv6Address("2600:1f00::5efe:a00:1"))
@example(LINES[4], IPv6Address("fd00:ec2::5efe:808:808"))
@example(LINES[5], IPv6Address("64:ff9b:1:5:a9:fea9:fe00:0"))
def test_they_are_of_one_opinion(lines: Lines, address: Address) -> None:
    if not lines.differ(address):
        assert lines.first(address) == lines.second(address), address
    elif address not in MAPPED:
        assert not lines.second(address), address


@pytest.mark.parametrize(
    ("lines", "address", "passes"),
    [
        pytest.param(0, "64:ff9b::808:808", True, id="the well-known prefix wants no declaration"),
        pytest.param(0, "64:ff9b::a01:203", False, id="and carries what is private"),
        pytest.param(1, "64:ff9b::a01:203", True, id="which a rule may name"),
        pytest.param(2, "64:ff9b::a01:203", False, id="but not by the name of the prefix"),
        pytest.param(2, "64:ff9b::c629:4", False, id="nor is what the site has closed reached by it"),
        pytest.param(2, "64:ff9b::c62a:0", True, id="which its neighbour is"),
        pytest.param(5, "2600:1:2:308:8:808::", False, id="nor a prefix that it has closed"),
        pytest.param(0, "2600:1f00::5efe:a00:1", False, id="ISATAP in public space"),
        pytest.param(4, "fd00:ec2::5efe:808:808", False, id="metadata that looks like a tunnel"),
        pytest.param(5, "64:ff9b:1:a9:fe:a9fe::", False, id="local NAT64, cut at 56"),
        pytest.param(5, "64:ff9b:1:5:a9:fea9:fe00:0", False, id="local NAT64, cut at 64"),
    ],
)
def test_by_example(lines: int, address: str, passes: bool) -> None:
    at = IPv6Address(address)
    assert (LINES[lines].first(at), LINES[lines].second(at)) == (passes, passes)
