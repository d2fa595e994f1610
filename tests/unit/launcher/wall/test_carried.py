"""The second line and the first have one opinion of which IPv6 address means metadata by the IPv4 address in it."""

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegate.policy.address_table import ROWS, TRANSITION_V6
from tidegate.policy.addresses import AddressKind, classify
from tidegate_launcher.wall.carried import CARRIED, carried
from tidegate_launcher.wall.rules import Chain

METADATA = [IPv4Network(text) for text, kind, _ in ROWS if kind == "metadata" and ":" not in text]
IN_SIX = [IPv6Network(text) for text, kind, _ in ROWS if kind == "metadata" and ":" in text]
FORMS = [IPv6Network(text) for text, _, _ in TRANSITION_V6] + [IPv6Network("fd12::/16")]
DECLARED = IPv6Network("64:ff9b:1:a9fe::/96")


def rules(*declared: IPv6Network) -> list[dict[str, Any]]:
    made = carried(Chain("inet", "t", CARRIED), declared)
    return [one["rule"] for one in json.loads(json.dumps(list(made))) if "rule" in one]


RULES, BESIDE = rules(), rules(DECLARED)


def fate(made: list[dict[str, Any]], address: IPv6Address) -> str:
    """Judge an address as the kernel does: the first rule all of whose matches hold decides."""
    for rule in made:
        *matches, verdict = rule["expr"]
        if "log" not in verdict and all(_holds(one["match"], address) for one in matches if "match" in one):
            return str(next(iter(verdict)))
    return "on"


def _holds(match: dict[str, Any], address: IPv6Address) -> bool:
    assert match["op"] == "=="
    right = match["right"]
    several = right["set"] if isinstance(right, dict) and "set" in right else [right]
    where = match["left"]["payload"]
    if where.get("field") == "daddr":
        return any(address in _network(one) for one in several)
    shift = 128 - (where["offset"] - 24 * 8) - where["len"]
    return (int(address) >> shift & (2 ** where["len"] - 1)) in several


def _network(one: Any) -> IPv6Network:
    return IPv6Network((one["prefix"]["addr"], one["prefix"]["len"])) if isinstance(one, dict) else IPv6Network(one)


some_metadata = some.sampled_from(METADATA).flatmap(
    lambda network: some.integers(0, network.num_addresses - 1).map(lambda number: network[number])
)
any_four = some.one_of(some_metadata, some.integers(0, 2**32 - 1).map(IPv4Address))


@given(
    some.sampled_from(FORMS),
    some.integers(0, 2**128 - 1),
    any_four,
    some.sampled_from([16, 32, 48, 96]),
    some.booleans(),
    some.sampled_from([None, 0x5EFE, 0x02005EFE]),
)
def test_what_the_first_line_calls_metadata_by_what_it_carries_is_dropped(
    form: IPv6Network, rest: int, four: IPv4Address, at: int, inverted: bool, identifier: int | None
) -> None:
    number = int(four) ^ (0xFFFFFFFF if inverted else 0)
    bits = rest & ~(0xFFFFFFFF << 96 - at) | number << 96 - at
    if at == 48:  # around the reserved octet
        bits = rest & ~(0xFFFF << 64 | 0xFFFF << 40) | number >> 16 << 64 | (number & 0xFFFF) << 40
    if identifier is not None:
        bits = bits & ~(0xFFFFFFFF << 32) | identifier << 32
    address = IPv6Address(int(form.network_address) | bits & int(form.hostmask))
    if classify(address).kind is AddressKind.METADATA and not any(address in one for one in IN_SIX):
        assert fate(RULES, address) == "drop", address


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("::ffff:0:a9fe:a9fe", id="IPv4-translated"),
        pytest.param("64:ff9b::a9fe:a9fe", id="NAT64"),
        pytest.param("64:ff9b:1:5::a9fe:a9fe", id="local NAT64, a prefix of the site's"),
        pytest.param("64:ff9b:1:a9fe:1a9:fe00::", id="local NAT64, reserved octet"),
        pytest.param("64:ff9b:1:6464:64:c800::", id="local NAT64, in two pieces"),
        pytest.param("64:ff9b:1:7a9:fe:a9fe::", id="local NAT64, cut at 56"),
        pytest.param("64:ff9b:1:5:a9:fea9:fe00:0", id="local NAT64, cut at 64"),
        pytest.param("2002:6464:64c8::1", id="6to4"),
        pytest.param("2001:0:a9fe:a9fe::1", id="Teredo server"),
        pytest.param("2001:0:808:808::5601:5601", id="Teredo client"),
        pytest.param("fd12::200:5efe:a83f:8110", id="ISATAP"),
    ],
)
def test_each_form(address: str) -> None:
    assert classify(IPv6Address(address)).kind is AddressKind.METADATA
    assert fate(RULES, IPv6Address(address)) == "drop"


@pytest.mark.parametrize("address", ["2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "fd12::1"])
def test_what_carries_none_goes_on(address: str) -> None:
    assert fate(RULES, IPv6Address(address)) == "on"


def test_a_declared_prefix_is_judged_as_that_though_it_lies_in_a_form() -> None:
    within = IPv6Address("64:ff9b:1:a9fe::808:808")
    assert fate(RULES, within) == "drop"
    assert fate(BESIDE, within) == "return"


def test_no_two_rules_have_one_name() -> None:
    """They are counted by it."""
    names = [rule["comment"] for rule in BESIDE]
    assert len(set(names)) == len(names)
    assert max(len(name) for name in names) < 100, "the kernel's log has room for so much"
