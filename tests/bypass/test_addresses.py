"""Group A: every form in which an address can be written, carried or hidden, and the verdict on it.

Each case is tried where it can bite: as a host of a request, and as an answer of the resolver.
Invariants 1 and 3.

Longer than a module should be, by its table: a line a spelling.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest

from tidegate.policy.addresses import TABLE_VERSION, AddressKind, Site, classify, literal_reason, vet
from tidegate.policy.decide import Ask, Decision, compile_policy, decide
from tidegate.policy.names import Host, IPAddress, parse_authority, parse_host, parse_pattern
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec, Rule

GATE = Site(
    own_addresses=frozenset({ip_address("172.17.0.1"), ip_address("198.51.0.7"), ip_address("2600:1f00::7")}),
    own_ports=frozenset({8080, 9090}),
    deny_cidrs=(ip_network("20.30.0.0/16"), ip_network("2a01:4f8::/32")),
)
EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


def rule(host: str, **fields: object) -> Rule:
    return Rule(id=host, host=parse_pattern(host), **fields)  # type: ignore[arg-type]


def ask(host: Host, *rules: Rule, port: int = 443, site: Site = GATE) -> Decision:
    policy = compile_policy(PolicySpec("p", allow=(rule("api.allowed.test"), *rules)), site=site)
    return decide(Ask(host, port, "https"), policy, 0.0)


def as_host(text: str) -> Reason | None:
    """Return the reason for the text as a CONNECT authority, parsed and decided as a request is."""
    authority = parse_authority(f"{text}:443", default_port=None)
    return authority if isinstance(authority, Reason) else ask(authority.host).reason


def as_answer(*texts: str, port: int = 443, site: Site = GATE, allowed: object = ()) -> object:
    return vet(tuple(ip_address(text) for text in texts), port=port, allowed=allowed, site=site)  # type: ignore[arg-type]


def refused(text: str, *, host: Reason = Reason.BLOCKED_ADDRESS, answer: Reason = Reason.RESOLVED_BLOCKED) -> None:
    literal = f"[{text}]" if ":" in text else text
    assert as_host(literal) is host
    assert as_answer(text) is answer
    assert as_answer("93.184.215.14", text) is answer, "one bad address refuses the name"


def metadata(text: str) -> None:
    refused(text, host=Reason.METADATA, answer=Reason.RESOLVED_METADATA)
    assert as_answer(text, allowed=EVERYTHING) is Reason.RESOLVED_METADATA, "no rule opens metadata"


@pytest.mark.parametrize("text", ["127.0.0.1", "127.8.9.10", "127.255.255.254"])
def test_A_01_whole_loopback_block(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["2130706433", "1", "4294967295", "00000000"])
def test_A_02_decimal_address(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST
    assert parse_host(text) is Reason.MALFORMED_HOST, "as SNI"


@pytest.mark.parametrize("text", ["0x7f000001", "0x7f.1", "0x7F.0.0.0x1", "0X7F000001", "0x", "foo.0x1"])
def test_A_03_hexadecimal_address(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["017700000001", "0177.0.0.1", "0177.0.0.01"])
def test_A_04_octal_address(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["127.1", "127.0.1", "1.1", "foo.1", "allowed.test.127"])
def test_A_05_short_dotted_form(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"])
def test_A_06_spellings_of_the_metadata_address(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["012.0.0.1", "10.0.0.01", "10.00.0.1"])
def test_A_07_leading_zero_is_read_in_no_way(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["08.8.8.8", "256.0.0.1", "4294967296", "1.2.3.4.5", "1.2.3.4.5.6.7.8", "999.1.1.1"])
def test_A_08_numeric_but_no_address_is_not_a_name(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


def test_A_09_unspecified_address() -> None:
    refused("0.0.0.0")
    assert as_host("0") is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["0.1.2.3", "0.255.255.255"])
def test_A_10_this_network(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["255.255.255.255", "240.0.0.1"])
def test_A_11_broadcast_and_reserved(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"])
def test_A_12_multicast(text: str) -> None:
    refused(text)


BLOCKS = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
    "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32",
    "2001::/23", "2002::/16", "3fff::/20",
]  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
def test_A_13_both_edges_of_every_block(block: str) -> None:
    network = ip_network(block)
    for inside in (network[0], network[-1]):
        assert classify(inside).kind is AddressKind.SPECIAL, inside
    for outside in (int(network[0]) - 1, int(network[-1]) + 1):
        if outside > 0:
            address = type(network[0])(outside)
            assert classify(address).kind is AddressKind.PUBLIC, address


@pytest.mark.parametrize("text", ["172.15.255.255", "172.32.0.1"])
def test_A_13_beside_the_private_block_is_public(text: str) -> None:
    assert as_answer(text) == (ip_address(text),)
    assert as_host(text) is Reason.IP_LITERAL


@pytest.mark.parametrize("text", ["172.16.0.0", "172.31.255.255", "10.0.0.0", "10.255.255.255", "192.168.255.255"])
def test_A_13_private_block(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["100.64.0.1", "100.127.255.255"])
def test_A_14_carrier_grade_nat(text: str) -> None:
    refused(text)


def test_A_15_alibaba_metadata() -> None:
    metadata("100.100.100.200")


def test_A_16_azure_wireserver_is_metadata_though_public() -> None:
    metadata("168.63.129.16")
    assert classify(ip_address("168.63.129.17")).kind is AddressKind.PUBLIC


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42", "169.254.0.1", "fd00:ec2::23"]
)
def test_A_17_container_and_pod_credentials(text: str) -> None:
    metadata(text)


@pytest.mark.parametrize("text", ["fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe"])
def test_A_18_metadata_over_ipv6(text: str) -> None:
    metadata(text)


@pytest.mark.parametrize("text", ["fc00::1", "fd12:3456::1", "fdff:ffff::1"])
def test_A_18_unique_local(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["::1", "0:0:0:0:0:0:0:1", "::0001", "0000::1", "::0:1"])
def test_A_19_spellings_of_ipv6_loopback(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["::", "0:0:0:0:0:0:0:0"])
def test_A_20_ipv6_unspecified(text: str) -> None:
    refused(text)


def test_A_21_mapped_loopback() -> None:
    refused("::ffff:127.0.0.1")
    refused("::ffff:7f00:1")


@pytest.mark.parametrize("text", ["::ffff:a9fe:a9fe", "0:0:0:0:0:ffff:169.254.169.254", "::FFFF:168.63.129.16"])
def test_A_21_mapped_metadata(text: str) -> None:
    metadata(text)


def test_A_22_ipv4_compatible() -> None:
    refused("::127.0.0.1")
    metadata("::a9fe:a9fe")
    refused("::8.8.8.8")


def test_A_23_nat64_well_known_prefix() -> None:
    metadata("64:ff9b::a9fe:a9fe")
    refused("64:ff9b::7f00:1")
    refused("64:ff9b:1::7f00:1")
    metadata("64:ff9b:1::a9fe:a9fe")
    metadata("64:ff9b:1:a9fe:a9:fe00::")
    public = ip_address("64:ff9b::808:808")
    assert vet((public,), port=443, allowed=(), site=GATE) == (public,), "dialled in the form that was given"


# RFC 6052 section 2.4, with 192.0.2.33 for each length of prefix.
@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        ("2600:db8::/32", "2600:db8:c000:221::"),
        ("2600:db8:100::/40", "2600:db8:1c0:2:21::"),
        ("2600:db8:122::/48", "2600:db8:122:c000:2:2100::"),
        ("2600:db8:122:300::/56", "2600:db8:122:3c0:0:221::"),
        ("2600:db8:122:344::/64", "2600:db8:122:344:c0:2:2100::"),
        ("2600:db8:122:344::/96", "2600:db8:122:344::192.0.2.33"),
    ],
)
def test_A_23_configured_nat64_prefix(prefix: str, text: str) -> None:
    site = Site(nat64_prefixes=(IPv6Network(prefix),))
    facts = classify(ip_address(text), nat64_prefixes=site.nat64_prefixes)
    assert facts.address == IPv4Address("192.0.2.33")
    assert as_answer(text, site=site) is Reason.RESOLVED_BLOCKED
    assert classify(ip_address(text)).kind is AddressKind.PUBLIC, "only the prefix makes it special"


def test_A_24_six_to_four() -> None:
    refused("2002:7f00:1::")
    metadata("2002:a9fe:a9fe::1")
    refused("2002:a00:1::")
    refused("2002:808:808::1")


def test_A_25_teredo() -> None:
    metadata("2001:0:53aa:64c:0:0:5601:5601")
    refused("2001:0:53aa:64c:0:0:f7f7:f7f7")
    metadata("2001:0:a9fe:a9fe::f7f7:f7f7")


def test_A_26_isatap() -> None:
    refused("fe80::5efe:a00:1")
    refused("2600:1f00::5efe:a00:1")
    refused("2600:1f00::200:5efe:10.0.0.1")
    metadata("2600:1f00::5efe:a9fe:a9fe")


@pytest.mark.parametrize("text", ["[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%lo]", "[::1%1]"])
def test_A_27_zone_id(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["fe80::1%eth0", "::1%lo", "::1", "fe80::1"])
def test_A_27_ipv6_without_brackets(text: str) -> None:
    assert parse_host(text) is Reason.MALFORMED_HOST


def test_A_27_zone_id_in_an_answer() -> None:
    assert vet((IPv6Address("fe80::1%eth0"),), port=443, allowed=(), site=GATE) is Reason.RESOLVED_BLOCKED


def test_A_28_site_local() -> None:
    refused("fec0::1")


@pytest.mark.parametrize(
    "text", ["192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1", "192.0.0.8"]
)
def test_A_29_documentation_and_protocol_blocks(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", ["5f00::1", "100:0:0:1::1", "3fff::1", "2001:db8::1", "100::1", "200::1", "4000::1"])
def test_A_30_recent_registrations(text: str) -> None:
    refused(text)


def test_A_30_the_table_is_dated() -> None:
    assert TABLE_VERSION >= "2025-10-09"


METADATA_NAMES = [
    "metadata.google.internal", "metadata", "metadata.goog", "instance-data.ec2.internal",
    "instance-data.eu-west-1.compute.internal", "Metadata.Google.Internal",
]  # fmt: skip


@pytest.mark.parametrize("dot", ["", "."], ids=["bare", "trailing_dot"])
@pytest.mark.parametrize("name", METADATA_NAMES)
def test_A_31_metadata_by_name(name: str, dot: str) -> None:
    assert as_host(name + dot) is Reason.METADATA


@pytest.mark.parametrize("name", METADATA_NAMES)
def test_A_31_no_rule_opens_a_metadata_name(name: str) -> None:
    host = parse_host(name)
    assert not isinstance(host, Reason)
    assert ask(host, rule(name, addresses=("0.0.0.0/0",))).reason is Reason.METADATA


@pytest.mark.parametrize("text", ["172.17.0.1", "198.51.0.7", "2600:1f00::7"])
def test_A_32_own_address_as_a_host(text: str) -> None:
    assert as_host(f"[{text}]" if ":" in text else text) is Reason.SELF_OR_GATEWAY


@pytest.mark.parametrize("port", [8080, 9090])
@pytest.mark.parametrize(
    "text",
    ["172.17.0.1", "198.51.0.7", "2600:1f00::7", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::ffff:172.17.0.1"],
)
def test_A_32_own_listener_is_refused_even_if_allowed(text: str, port: int) -> None:
    assert as_answer(text, port=port, allowed=EVERYTHING) is Reason.SELF_OR_GATEWAY


def test_A_32_own_address_on_another_port_needs_a_rule() -> None:
    assert as_answer("198.51.0.7", port=5432) is Reason.RESOLVED_BLOCKED
    assert as_answer("198.51.0.7", port=5432, allowed=(ip_network("198.51.0.7/32"),)) == (ip_address("198.51.0.7"),)


@pytest.mark.parametrize(
    "name", ["host.docker.internal", "host.containers.internal", "gateway.docker.internal", "host.docker.internal."]
)
def test_A_32_engine_names_need_addresses(name: str) -> None:
    host = parse_host(name)
    assert not isinstance(host, Reason)
    assert ask(host).reason is Reason.SELF_OR_GATEWAY
    assert ask(host, rule("*.internal")).reason is Reason.SELF_OR_GATEWAY
    assert ask(host, rule(name)).reason is Reason.SELF_OR_GATEWAY
    assert ask(host, rule(name, addresses=("172.17.0.1/32",))).allowed


def test_A_33_operator_networks_close_public_pods() -> None:
    assert as_answer("20.30.4.5") is Reason.RESOLVED_BLOCKED
    assert as_answer("2a01:4f8::1") is Reason.RESOLVED_BLOCKED
    assert as_host("20.30.4.5") is Reason.BLOCKED_ADDRESS
    assert as_host("kubernetes.default.svc") is Reason.NOT_IN_ALLOWLIST


def test_A_34_mapped_public_is_the_ipv4_address() -> None:
    assert parse_host("[::ffff:8.8.8.8]") == IPv4Address("8.8.8.8")
    mapped = ip_address("::ffff:8.8.8.8")
    assert classify(mapped).address == IPv4Address("8.8.8.8")
    assert as_host("[::ffff:8.8.8.8]") is as_host("8.8.8.8") is Reason.IP_LITERAL
    opened = rule("8.8.8.8", addresses=("8.8.8.8/32",))
    host = parse_host("[::ffff:808:808]")
    assert not isinstance(host, Reason)
    assert ask(host, opened).allowed


def test_A_35_site_addresses_behind_the_same_nat() -> None:
    for form in ("20.30.0.1", "::ffff:20.30.0.1", "64:ff9b::20.30.0.1"):
        assert as_answer(form) is Reason.RESOLVED_BLOCKED
    assert as_answer("20.31.0.1") == (ip_address("20.31.0.1"),)


@pytest.mark.parametrize("text", ["127。0。0。1", "169．254．169．254", "127｡0｡0｡1", "①②⑦.0.0.1", "١٢٧.0.0.1"])
def test_A_36_unicode_dots_and_digits(text: str) -> None:
    assert parse_host(text) is Reason.MALFORMED_HOST
    assert parse_host(text.encode()) is Reason.MALFORMED_HOST


def test_A_37_trailing_dot_is_stripped_then_classified() -> None:
    assert as_host("127.0.0.1.") is Reason.BLOCKED_ADDRESS
    assert as_host("169.254.169.254.") is Reason.METADATA
    assert as_host("127.0.0.1..") is Reason.MALFORMED_HOST
    assert as_host("[::1].") is Reason.MALFORMED_HOST


@pytest.mark.parametrize(
    "text",
    [
        "[127.0.0.1]",
        "[example.test]",
        "[]",
        "[::1",
        "[::1]x",
        "::1]",
        "[[::1]]",
        "[v1.fe80]",
        "[::1]]",
        "[:]",
        "[::1 ]",
    ],
)
def test_A_38_brackets_hold_ipv6_only(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize(
    "text", ["127.0.0.1 ", " 127.0.0.1", "127.0.0.1\t", "\t127.0.0.1", "127.0.0.1\n", "127.0.0.1\0"]
)
def test_A_39_blanks_around_an_address(text: str) -> None:
    assert as_host(text) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("text", ["10.20.0.9", "127.0.0.5", "::1", "fd12::9"])
def test_a_named_network_opens_a_special_address(text: str) -> None:
    address: IPAddress = ip_address(text)
    assert vet((address,), port=5432, allowed=(ip_network(text),), site=GATE) == (address,)
    assert literal_reason(address, GATE) is Reason.BLOCKED_ADDRESS


def test_a_tunnel_form_is_not_opened_by_what_it_carries() -> None:
    assert as_answer("2002:a14:9::1", allowed=(ip_network("10.20.0.0/16"),)) is Reason.RESOLVED_BLOCKED


def test_an_empty_answer_is_a_dns_failure() -> None:
    assert vet((), port=443, allowed=EVERYTHING, site=GATE) is Reason.DNS_FAILURE


def test_the_worst_of_an_answer_names_the_reason() -> None:
    assert as_answer("10.0.0.1", "127.0.0.1", "169.254.169.254", port=8080) is Reason.RESOLVED_METADATA
    assert as_answer("10.0.0.1", "127.0.0.1", port=8080) is Reason.SELF_OR_GATEWAY
