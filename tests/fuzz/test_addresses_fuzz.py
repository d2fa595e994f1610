"""However an IPv4 address is wrapped, it is judged no better than it is by itself."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.addresses import AddressKind, Site, classify, literal_reason, vet
from tidegate.policy.reasons import Reason

v4 = st.one_of(
    st.ip_addresses(v=4),
    st.sampled_from(["127.0.0.1", "169.254.169.254", "10.1.2.3", "168.63.129.16", "100.100.100.200", "8.8.8.8"]).map(
        IPv4Address
    ),
)
RANK = {AddressKind.PUBLIC: 0, AddressKind.SPECIAL: 1, AddressKind.METADATA: 2}
PREFIX = IPv6Network("2600:6464::/96")


def wraps(inner: IPv4Address, noise: int) -> list[IPv6Address]:
    n = int(inner)
    return [
        IPv6Address(0xFFFF << 32 | n),
        IPv6Address(n),
        IPv6Address(0xFFFF << 48 | n),
        IPv6Address(0x64FF9B << 96 | n),
        IPv6Address(0x64FF9B0001 << 80 | n),
        IPv6Address(0x2002 << 112 | n << 80 | noise),
        IPv6Address(0x20010000 << 96 | noise << 64 | (n ^ 0xFFFFFFFF)),
        IPv6Address(0x2600 << 112 | noise << 64 | 0x5EFE << 32 | n),
        IPv6Address(0x2600 << 112 | noise << 64 | 0x02005EFE << 32 | n),
        PREFIX[n],
    ]


@given(v4, st.integers(0, 2**32 - 1))
def test_a_wrapped_address_is_no_better_than_itself(inner: IPv4Address, noise: int) -> None:
    bare = classify(inner)
    for wrapped in wraps(inner, noise):
        facts = classify(wrapped, nat64_prefixes=(PREFIX,))
        if int(wrapped) > 1:
            assert RANK[facts.kind] >= RANK[bare.kind], wrapped
        assert facts.why


@given(st.lists(st.ip_addresses(), max_size=5), st.integers(1, 65535), st.booleans())
def test_vet_is_total_and_never_lets_metadata_through(
    addresses: list[IPv4Address | IPv6Address], port: int, everything: bool
) -> None:
    allowed = (ip_network("0.0.0.0/0"), ip_network("::/0")) if everything else ()
    site = Site(own_addresses=frozenset(addresses[:1]), own_ports=frozenset({8080}))
    outcome = vet(addresses, port=port, allowed=allowed, site=site)
    if isinstance(outcome, Reason):
        assert outcome in (
            Reason.DNS_FAILURE, Reason.RESOLVED_BLOCKED, Reason.RESOLVED_METADATA, Reason.SELF_OR_GATEWAY,
        )  # fmt: skip
        return
    assert outcome == tuple(addresses)
    for address in outcome:
        kind = classify(address).kind
        assert kind is not AddressKind.METADATA
        assert everything or kind is AddressKind.PUBLIC


@given(st.ip_addresses())
def test_a_literal_always_has_a_reason(address: IPv4Address | IPv6Address) -> None:
    expected = {
        AddressKind.PUBLIC: Reason.IP_LITERAL,
        AddressKind.SPECIAL: Reason.BLOCKED_ADDRESS,
        AddressKind.METADATA: Reason.METADATA,
    }
    assert literal_reason(address, Site()) is expected[classify(address).kind]


@given(st.ip_addresses())
def test_what_the_interpreter_calls_not_global_is_never_public(address: IPv4Address | IPv6Address) -> None:
    """Our table is stricter than the interpreter's, never laxer."""
    facts = classify(address)
    if facts.kind is AddressKind.PUBLIC:
        assert facts.address.is_global
        assert not facts.address.is_multicast
