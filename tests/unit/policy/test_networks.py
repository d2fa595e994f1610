"""Networks are merged at load; what is inside of them stays the same, address for address."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.policy.addresses import Site, classify, embed, parse_networks
from tidegate.policy.names import PolicyError

# Few bits, so that networks meet.
_v4 = st.builds(lambda number, length: str(ip_network((number << 24 >> (32 - length) << (32 - length), length))),
                st.integers(0, 255), st.integers(0, 12))  # fmt: skip
_v6 = st.builds(lambda number, length: str(ip_network((number << 120 >> (128 - length) << (128 - length), length))),
                st.integers(0, 255), st.integers(0, 12))  # fmt: skip


@given(st.lists(st.one_of(_v4, _v6), max_size=12))
@example(["10.0.0.0/9", "10.128.0.0/9"])
@example(["0.0.0.0/0", "::/0", "10.0.0.0/8"])
def test_merged_networks_hold_the_same_addresses(texts: list[str]) -> None:
    merged, plain = parse_networks(tuple(texts)), [ip_network(text) for text in texts]
    edges = [
        edge
        for network in plain
        for edge in (int(network[0]) - 1, int(network[0]), int(network[-1]), int(network[-1]) + 1)
    ]
    for number in edges:
        for kind, most in ((IPv4Address, 1 << 32), (IPv6Address, 1 << 128)):
            if 0 <= number < most:
                address = kind(number)
                assert any(address in it for it in merged) == any(address in it for it in plain), address
    assert len(merged) <= len(set(texts))


def test_neighbours_and_parts_become_one() -> None:
    site = Site.parse(deny_cidrs=["10.0.0.0/9", "10.128.0.0/9", "10.1.2.0/24", "fd00::/8"], nat64_prefixes=[])
    assert [str(network) for network in site.deny_cidrs] == ["10.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize("text", ["10.1/16", "10.0.0.1/8", "10", "::ffff:0:0/33x", ""])
def test_what_is_no_network_is_refused_before_it_is_merged(text: str) -> None:
    with pytest.raises(PolicyError, match="addresses"):
        parse_networks((text,))


@pytest.mark.parametrize("length", [32, 40, 48, 56, 64, 96])
@pytest.mark.parametrize("network", ["169.254.169.254/32", "10.0.0.0/8", "172.16.0.0/12", "198.18.0.0/15", "0.0.0.0/0"])
def test_where_a_prefix_has_a_network_is_read_back_as_that_network(length: int, network: str) -> None:
    prefix = IPv6Network(("2001:db8::", length))
    four = IPv4Network(network)
    made = embed(four, prefix)
    assert made.subnet_of(prefix)
    found = classify(made.network_address, nat64_prefixes=[prefix]).address
    assert found == four.network_address
    assert classify(made.broadcast_address, nat64_prefixes=[prefix]).address in four
