"""The machine's own addresses, read from the kernel's tables."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from tidegate.config.model import Listener
from tidegate.runtime.leg import names_lead_to
from tidegate.runtime.own import device_beside, own_addresses, own_devices

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.5
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
"""
ROUTE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
IF6 = """fe800000000000000000000000000005 02 40 20 80     eth0
20010db8000000000000000000000005 02 40 00 80     eth0
"""
ROUTE6 = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
    "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
)


def test_addresses_and_gateways_of_both_families(tmp_path: Path) -> None:
    for name, text in (("fib_trie", TRIE), ("route", ROUTE), ("if_inet6", IF6), ("ipv6_route", ROUTE6)):
        (tmp_path / name).write_text(text)
    assert own_addresses(tmp_path) == {
        "127.0.0.1", "::1", "10.0.0.5", "10.0.0.1", "fe80::5", "2001:db8::5", "fe80::1",
    }  # fmt: skip


def test_a_kernel_without_the_tables_still_has_loopback(tmp_path: Path) -> None:
    assert own_addresses(tmp_path) == {"127.0.0.1", "::1"}


def test_this_machine_has_loopback_at_least() -> None:
    assert own_addresses() >= {"127.0.0.1", "::1"}


def test_every_address_has_its_device() -> None:
    found = own_devices()
    assert ("127.0.0.1", "lo") in found
    assert {address for address, _ in found} <= own_addresses()


DEVICES = frozenset(
    {("10.0.1.1", "a"), ("fd01::1", "a"), ("10.0.2.1", "b"), ("10.0.2.9", "b"), ("fd02::1", "b"), ("10.0.3.1", "c")}
)
LEGS = tuple((host, 443) for host in ("10.0.1.1", "fd01::1", "10.0.2.1", "fd02::1"))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("10.0.1.1", "10.0.1.1"),
        ("fd01::1", "fd01::1"),
        ("10.0.2.1", "10.0.2.1"),
        ("10.0.2.9", "10.0.2.1"),
        ("10.0.3.1", "10.0.3.1"),
    ],
)
def test_a_name_leads_to_the_gate_on_the_network_that_asked(asked: str, answer: str) -> None:
    assert str(names_lead_to((asked, 53), LEGS, DEVICES)) == answer


@pytest.mark.parametrize("listeners", [(), ((("10.0.1.1"), 443),)])
def test_an_address_on_no_known_device_is_its_own_network(listeners: tuple[Listener, ...]) -> None:
    assert str(names_lead_to(("10.0.1.1", 53), listeners, ())) == "10.0.1.1"


@pytest.mark.parametrize(
    ("address", "device"),
    [
        pytest.param("10.0.0.9", "eth0", id="a neighbour"),
        pytest.param("10.0.0.17", "eth1", id="the narrower network"),
        pytest.param("10.9.0.1", None, id="behind a gateway"),
        pytest.param("2001:db8::9", "eth0", id="ip6"),
        pytest.param("2001:db9::9", None, id="ip6 behind a gateway"),
    ],
)
def test_the_device_beside_which_an_address_is(tmp_path: Path, address: str, device: str | None) -> None:
    narrow = "eth1\t1000000A\t00000000\t0001\t0\t0\t0\tF8FFFFFF\t0\t0\t0\n"
    (tmp_path / "route").write_text(ROUTE + narrow)
    (tmp_path / "ipv6_route").write_text(ROUTE6)
    assert device_beside(ip_address(address), tmp_path) == device


def test_without_tables_no_device_is_known(tmp_path: Path) -> None:
    assert device_beside(ip_address("10.0.0.9"), tmp_path) is None
