"""The second line in a real kernel: what of a translation prefix the gate's own user may reach."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace and its rules")

_UID = 64732

# Sends one datagram as the gate's user to each address; says which the rules let through.
_INSIDE = f"""
import os, socket, subprocess, sys
from ipaddress import IPv6Address, IPv6Network, ip_network
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction

everywhere = [f"-6 route add local {{one}} dev lo" for one in ("::/1", "8000::/1")]
for words in ("link set lo up", *everywhere):
    subprocess.run(["ip", *words.split()], check=True)
prefix = IPv6Network(sys.argv[1])
named = map(ip_network, ("10.20.0.0/16", "169.254.0.0/16", "64:ff9b:1::/48", "2001::/32", "fd12::/64", "2002::/16"))
leash = Leash({_UID}, (), tuple(named), (prefix,))
nft.apply(leash_transaction(leash))
assert len(nft.read().rules("tidegate-the-user-of-the-gate")) > 5
os.setuid({_UID})
for text in sys.argv[2:]:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"x", (text, 9))
            print(text, "passes")
        except PermissionError:
            print(text, "dropped")
"""


def sent(prefix: str, *addresses: str) -> list[str]:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", _INSIDE, prefix, *addresses],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("prefix", "whole"),
    [
        # Octets of the address before and after u, which is the high half of the fifth group (RFC 6052, section 2.2).
        pytest.param("2001:db8:1:2::/64", "2001:db8:1:2:{u}%02x:%02x%02x:%02x00::", id="64"),
        pytest.param("2001:db8:1::/56", "2001:db8:1:%02x:{u}%02x:%02x%02x::", id="56"),
        pytest.param("2001:db8:1::/48", "2001:db8:1:%02x%02x:{u}%02x:%02x00::", id="48"),
        pytest.param("2001:db8::/40", "2001:db8:%02x:%02x%02x:{u}%02x::", id="40"),
    ],
)
def test_an_address_with_a_reserved_octet_is_dropped_whatever_it_stands_for(prefix: str, whole: str) -> None:
    public, private, named, metadata = (8, 8, 8, 8), (10, 0, 0, 1), (10, 20, 0, 1), (169, 254, 169, 254)
    four = [whole % octets for octets in (public, private, named, metadata)]
    assert sent(prefix, *(one.format(u="00") for one in four)) == ["passes", "dropped", "passes", "dropped"]
    for octet in ("01", "80", "ff"):
        assert sent(prefix, *(one.format(u=octet) for one in four)) == ["dropped"] * 4


def test_an_address_that_carries_metadata_is_dropped_though_a_rule_names_all_of_its_form() -> None:
    bad = ["64:ff9b:1:5::a9fe:a9fe", "64:ff9b:1:a9fe:1a9:fe00::", "2001:0:808:808::5601:5601", "2002:6464:64c8::1",
           "fd12::5efe:a9fe:a9fe"]  # fmt: skip
    good = ["64:ff9b:1:5::808:808", "2001:0:808:808::1", "2002:808:808::1", "fd12::1"]
    assert sent("2001:db8:1:2::/64", *bad, *good) == ["dropped"] * len(bad) + ["passes"] * len(good)
