"""A host that parses has one spelling, and no libc would read an address where we read a name."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.policy.names import Authority, PolicyError, host_text, parse_authority, parse_host, parse_pattern
from tidegate.policy.reasons import Reason

_numbers = st.one_of(
    st.integers(0, 2**32).map(str),
    st.integers(0, 2**32).map(hex),
    st.integers(0, 2**32).map(lambda n: f"0{n:o}"),
    st.integers(0, 300).map(str),
    st.sampled_from(["", "0x", "00", "08", "a", "test", "xn--a"]),
)
numeric = st.lists(_numbers, min_size=1, max_size=5).map(".".join)
hostile = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="aA0x.:-_[]%@/\\ \t\0#?é。1279", max_size=40),
    numeric,
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda a: f"[{a}]"),
    st.from_regex(r"[a-z0-9-]{1,10}(\.[a-z0-9-]{1,10}){0,4}\.?", fullmatch=True),
)


@given(hostile)
@example("127.0.0.1.")
@example("[::ffff:127.0.0.1]")
def test_parsed_host_is_canonical(text: str) -> None:
    host = parse_host(text)
    assert parse_host(text.encode("utf-8", "surrogatepass")) == host
    if isinstance(host, Reason):
        assert host is Reason.MALFORMED_HOST
        return
    assert parse_host(host_text(host)) == host
    assert parse_host(text.upper() if text.isascii() else text) == host
    if isinstance(host, str):
        assert host == host.lower()
        assert host.isascii()
        assert not host.endswith(".")
        assert 0 < len(host) <= 253
        assert all(0 < len(label) <= 63 for label in host.split("."))


@given(st.one_of(numeric, hostile))
def test_no_name_is_an_address_to_the_c_library(text: str) -> None:
    host = parse_host(text)
    if not isinstance(host, str):
        return
    try:
        packed = socket.inet_aton(host)
    except OSError:
        return
    raise AssertionError(f"{text!r} is a name to us and {socket.inet_ntoa(packed)} to inet_aton")


@given(st.ip_addresses())
def test_every_address_has_one_reading(address: IPv4Address | IPv6Address) -> None:
    expected = getattr(address, "ipv4_mapped", None) or address
    assert parse_host(host_text(address)) == expected


@given(hostile, st.text(alphabet="0123456789:+- ", max_size=7))
def test_authority_comes_back_as_it_went(host: str, port: str) -> None:
    authority = parse_authority(f"{host}:{port}", default_port=None)
    if isinstance(authority, Authority):
        assert 1 <= authority.port <= 65535
        again = parse_authority(f"{host_text(authority.host)}:{authority.port}", default_port=None)
        assert again == authority


@given(hostile)
def test_pattern_is_refused_or_matches_what_it_names(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except PolicyError:
        return
    assert parse_pattern(str(pattern)) == pattern
    if pattern.kind == "address":
        assert pattern.matches(ip_address(pattern.text))
        return
    host = parse_host("x." + pattern.text if pattern.kind == "suffix" else pattern.text)
    if not isinstance(host, Reason):
        assert pattern.matches(host)
