"""Group A once more, on the real gate: each spelling through CONNECT and in absolute form, at a port that listens.

What the pure tests say of a spelling (`test_addresses.py`) is only worth something if no byte arrives: the servers of
the arena listen on loopback, so that any spelling of it that were dialled would be counted.
"""

import pytest

from tests.bypass.arena import Arena, arena_fixture
from tidegate.policy.reasons import Reason

arena = arena_fixture(deny_cidrs=["20.30.0.0/16"])

BAD = Reason.MALFORMED_HOST
META = Reason.METADATA
SPECIAL = Reason.BLOCKED_ADDRESS
OWN = Reason.SELF_OR_GATEWAY

SPELLINGS: dict[str, tuple[str, Reason]] = {
    "A_01_loopback": ("127.8.9.10", SPECIAL),
    "A_01_last_of_loopback": ("127.255.255.254", SPECIAL),
    "A_02_decimal": ("2130706433", BAD),
    "A_03_hexadecimal": ("0x7f000001", BAD),
    "A_03_short_hexadecimal": ("0x7f.1", BAD),
    "A_03_dotted_hexadecimal": ("0x7F.0.0.0x1", BAD),
    "A_04_octal": ("017700000001", BAD),
    "A_04_dotted_octal": ("0177.0.0.1", BAD),
    "A_05_two_parts": ("127.1", BAD),
    "A_05_three_parts": ("127.0.1", BAD),
    "A_06_decimal_metadata": ("2852039166", BAD),
    "A_06_hexadecimal_metadata": ("0xa9fea9fe", BAD),
    "A_06_octal_metadata": ("0251.0376.0251.0376", BAD),
    "A_06_short_metadata": ("169.254.43518", BAD),
    "A_07_leading_zero": ("012.0.0.1", BAD),
    "A_08_no_octal": ("08.8.8.8", BAD),
    "A_08_too_large": ("256.0.0.1", BAD),
    "A_08_five_parts": ("1.2.3.4.5", BAD),
    "A_09_unspecified": ("0.0.0.0", SPECIAL),
    "A_09_zero": ("0", BAD),
    "A_10_this_network": ("0.1.2.3", SPECIAL),
    "A_11_broadcast": ("255.255.255.255", SPECIAL),
    "A_11_reserved": ("240.0.0.1", SPECIAL),
    "A_12_multicast": ("224.0.0.1", SPECIAL),
    "A_12_multicast_6": ("[ff02::1]", SPECIAL),
    "A_13_private": ("172.16.0.0", SPECIAL),
    "A_13_private_end": ("172.31.255.255", SPECIAL),
    "A_13_beside": ("172.32.0.1", Reason.IP_LITERAL),
    "A_14_carrier_nat": ("100.64.0.1", SPECIAL),
    "A_15_alibaba": ("100.100.100.200", META),
    "A_16_azure": ("168.63.129.16", META),
    "A_17_ecs": ("169.254.170.2", META),
    "A_17_eks": ("[fd00:ec2::23]", META),
    "A_18_aws_6": ("[fd00:ec2::254]", META),
    "A_18_gcp_6": ("[fd20:ce::254]", META),
    "A_19_loopback_6": ("[::1]", OWN),
    "A_19_long_loopback_6": ("[0:0:0:0:0:0:0:1]", OWN),
    "A_19_zeros": ("[::0001]", OWN),
    "A_20_unspecified_6": ("[::]", SPECIAL),
    "A_21_mapped": ("[::ffff:127.0.0.1]", OWN),
    "A_21_mapped_metadata": ("[::ffff:a9fe:a9fe]", META),
    "A_21_long_mapped_metadata": ("[0:0:0:0:0:ffff:169.254.169.254]", META),
    "A_22_compatible": ("[::127.0.0.1]", SPECIAL),
    "A_22_compatible_metadata": ("[::a9fe:a9fe]", META),
    "A_23_nat64": ("[64:ff9b::7f00:1]", OWN),
    "A_23_nat64_metadata": ("[64:ff9b::a9fe:a9fe]", META),
    "A_24_six_to_four": ("[2002:7f00:1::]", SPECIAL),
    "A_24_six_to_four_metadata": ("[2002:a9fe:a9fe::1]", META),
    "A_25_teredo": ("[2001:0:53aa:64c:0:0:5601:5601]", META),
    "A_26_isatap": ("[2600:1f00::5efe:10.0.0.1]", SPECIAL),
    "A_27_zone": ("[fe80::1%25eth0]", BAD),
    "A_27_zone_of_loopback": ("[::1%lo]", BAD),
    "A_28_site_local": ("[fec0::1]", SPECIAL),
    "A_29_documentation": ("198.51.100.77", SPECIAL),
    "A_29_relay": ("192.88.99.1", SPECIAL),
    "A_30_recent": ("[5f00::1]", SPECIAL),
    "A_30_documentation_6": ("[3fff::1]", SPECIAL),
    "A_31_google": ("metadata.google.internal", META),
    "A_31_short": ("metadata", META),
    "A_31_dot": ("metadata.goog.", META),
    "A_31_ec2": ("instance-data.ec2.internal", META),
    "A_32_own": ("127.0.0.1", OWN),
    "A_32_docker": ("host.docker.internal", OWN),
    "A_32_podman": ("host.containers.internal", OWN),
    "A_33_kubernetes": ("kubernetes.default.svc", Reason.NOT_IN_ALLOWLIST),
    "A_34_mapped_public": ("[::ffff:8.8.8.8]", Reason.IP_LITERAL),
    "A_35_site": ("20.30.0.1", SPECIAL),
    # Bytes outside ASCII are no target of HTTP at all.
    "A_36_ideographic_dots": ("127。0。0。1", Reason.MALFORMED_TARGET),
    "A_36_fullwidth_dots": ("169．254．169．254", Reason.MALFORMED_TARGET),
    "A_37_dot": ("127.0.0.1.", OWN),
    "A_37_metadata_dot": ("169.254.169.254.", META),
    "A_38_bracketed_4": ("[127.0.0.1]", BAD),
    "A_38_bracketed_name": ("[one.allowed.test]", BAD),
    "A_38_empty": ("[]", BAD),
    "A_38_open": ("[::1", BAD),
    "A_38_behind": ("[::1]x", BAD),
    "A_39_space_behind": ("127.0.0.1 ", Reason.MALFORMED_TARGET),
    "A_39_space_before": (" 127.0.0.1", Reason.MALFORMED_TARGET),
}

spellings = pytest.mark.parametrize(("spelling", "reason"), SPELLINGS.values(), ids=SPELLINGS.keys())


@spellings
def test_A_through_connect(arena: Arena, spelling: str, reason: Reason) -> None:
    authority = f"{spelling}:{arena.one.port}".encode()
    with arena.quiet(spelling.strip()), arena.connect() as raw:
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, arena.proof))
        reply = raw.reply(method="CONNECT")
        if reply.status == 200:
            assert reason is Reason.NOT_IN_ALLOWLIST
            raw.start_tls(spelling, ca=arena.ca)
            reply = raw.request("GET", "/", host=authority.decode())
        story = arena.story(raw)
    story.denied(reply, reason)


@spellings
def test_A_in_absolute_form(arena: Arena, spelling: str, reason: Reason) -> None:
    authority = f"{spelling}:{arena.plain.port}".encode()
    with arena.quiet(spelling.strip()), arena.connect() as raw:
        raw.send(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, arena.proof))
        reply = raw.reply()
        story = arena.story(raw)
    story.denied(reply, reason)


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("2130706433", BAD),
        ("0x7f.1", BAD),
        ("127.0.0.1", Reason.AUTHORITY_MISMATCH),
        ("[::1]", Reason.AUTHORITY_MISMATCH),
        ("169.254.169.254", Reason.AUTHORITY_MISMATCH),
    ],
)
def test_A_as_sni_and_host(arena: Arena, spelling: str, reason: Reason) -> None:
    with arena.quiet(), arena.tunnel(arena.one) as raw:
        reply = raw.request("GET", "/", host=f"{spelling}:{arena.one.port}")
        story = arena.story(raw)
    story.denied(reply, reason)


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [("127.0.0.1", OWN), ("[::1]", OWN), ("169.254.169.254", META), ("2130706433", BAD)],
)
def test_A_without_a_session_says_no_more(arena: Arena, spelling: str, reason: Reason) -> None:
    authority = f"{spelling}:{arena.one.port}".encode()
    with arena.quiet(), arena.connect() as raw:
        raw.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority))
        reply = raw.reply(method="CONNECT")
        story = arena.story(raw)
    story.denied(reply, reason)
