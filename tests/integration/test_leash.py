"""The second line in a real kernel: what of a translation prefix the gate's own user may reach."""

import os

import pytest

from tests.lab.unshared import neighbour, unshared

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace and its rules")

_UID = 64732

# A namespace with a cable of which the other end is its own too, and routes to everywhere by it.
_EVERYWHERE = """
for words in ("link set lo up", "link add near type veth peer name far", "link set near up", "link set far up",
              "address add 198.41.0.4/24 dev near", "address add 2600:9::9/64 dev near nodad",
              "route add default dev near", "-6 route add default dev near"):
    subprocess.run(["ip", *words.split()], check=True)
"""

# Sends one datagram as the gate's user to each address; says which the rules let through.
_INSIDE = f"""
import os, socket, subprocess, sys
from ipaddress import IPv6Address, IPv6Network, ip_network
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction

{_EVERYWHERE}
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
    return [line.split()[1] for line in unshared(_INSIDE, prefix, *addresses).splitlines()]


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
    bad = ["64:ff9b:1:5::a9fe:a9fe", "64:ff9b:1:a9fe:1a9:fe00::", "64:ff9b:1:5:a9:fea9:fe00:0",
           "2001:0:808:808::5601:5601", "2002:6464:64c8::1",
           "fd12::5efe:a9fe:a9fe"]  # fmt: skip
    good = ["64:ff9b:1:5::808:808", "2001:0:808:808::1", "2002:808:808::1", "fd12::1"]
    assert sent("2001:db8:1:2::/64", *bad, *good) == ["dropped"] * len(bad) + ["passes"] * len(good)


# Has IPv6 datagrams of the gate's user go by a segment (RFC 8754), and IPv4 ones by a source route, which needs
# CAP_NET_RAW in newer kernels; says which the rules let through. The destination in the packet is a public address, or
# the resolver's; the one that is meant is metadata.
_BY_A_HOP = f"""
import ctypes, os, socket, subprocess, sys
from ipaddress import ip_address
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction

SRH, IP_OPTIONS, IPV6_RTHDR = 4, 4, 57
{_EVERYWHERE}
resolvers = ((ip_address("9.9.9.9"), 53), (ip_address("2620:fe::fe"), 53))
nft.apply(leash_transaction(Leash({_UID}, resolvers, ())))
# As the gate's user, with CAP_NET_RAW and no other.
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
os.setuid({_UID})
raw = 1 << 13
assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(raw, raw, 0, 0, 0, 0)) == 0

def segment(sock, first):
    there = socket.inet_pton(socket.AF_INET6, first)
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, bytes((0, 4, SRH, 1, 1, 0, 0, 0)) + bytes(16) + there)

def route(kind):
    def by(sock, first):
        sock.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, bytes((kind, 7, 4)) + socket.inet_aton(first) + bytes(1))
    return by

four, six = socket.AF_INET, socket.AF_INET6
for name, family, by, firsts, meant in (
    ("plain", six, None, ("2606:4700::1", "2620:fe::fe"), None),
    ("plain", four, None, ("1.1.1.1", "9.9.9.9"), None),
    ("segment", six, segment, ("2606:4700::1", "2620:fe::fe"), "fd00:ec2::254"),
    ("loose", four, route(131), ("1.1.1.1", "9.9.9.9"), "169.254.169.254"),
    ("strict", four, route(137), ("1.1.1.1", "9.9.9.9"), "169.254.169.254"),
):
    for first in firsts:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            if by:
                by(sock, first)
            try:
                sock.sendto(b"x", (meant or first, 53))
                print(name, "passes")
            except PermissionError:
                print(name, "dropped")
"""


def test_nothing_that_names_a_further_hop_is_let_through_to_the_first() -> None:
    told = [line.split() for line in unshared(_BY_A_HOP).splitlines()]
    assert told == [
        [name, verdict]
        for name, verdict in [("plain", "passes")] * 2 + [(one, "dropped") for one in ("segment", "loose", "strict")]
        for _ in range(2)
    ]


def test_what_the_well_known_prefix_and_a_tunnel_in_public_space_carry_is_judged() -> None:
    at = {"64:ff9b::808:808": "passes", "64:ff9b::a14:1": "passes", "64:ff9b::a00:1": "dropped",
          "64:ff9b::a9fe:a9fe": "dropped", "2600:1f00::5efe:a00:1": "dropped", "2600:1f00::1": "passes"}  # fmt: skip
    assert sent("2001:db8:1:2::/64", *at) == list(at.values())


# Opens an MPTCP connection as the gate's user, on a machine that joins addresses which a peer announces, to a server
# that announces the metadata address; says how many packets came there without rules, with those that hold what is
# nobody's, and with all.
_ANNOUNCED = f"""
import subprocess, sys
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction

def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout

far = ("nsenter", "-t", sys.argv[1], "-n")
run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", sys.argv[1])
for where, name, host in ((), "near", 1), (far, "far", 2):
    run(*where, "ip", "address", "add", f"192.1.1.{{host}}/24", "dev", name)
    run(*where, "ip", "link", "set", name, "up")
    run(*where, "ip", "mptcp", "limits", "set", "subflow", "4", "add_addr_accepted", "4")
run("ip", "route", "add", "default", "via", "192.1.1.2")
run(*far, "ip", "address", "add", "169.254.169.254/32", "dev", "far")
run(*far, "ip", "mptcp", "endpoint", "add", "169.254.169.254", "signal")
run(*far, "nft", "add table ip t; add chain ip t c {{ type filter hook input priority 0; }}; "
    "add rule ip t c ip daddr 169.254.169.254 counter")
serve = '''
import socket
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as sock:
    sock.bind(("0.0.0.0", 80))
    sock.listen()
    print(flush=True)
    while True:
        one = sock.accept()[0]
        one.send(one.recv(1))
        one.recv(1)
'''
dial = '''
import os, socket, time
os.setuid({_UID})
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as sock:
    sock.settimeout(10)
    sock.connect(("192.1.1.2", 80))
    sock.send(b"x")
    sock.recv(1)
    time.sleep(1)
'''
whole = leash_transaction(Leash({_UID}, (), ()))["nftables"]
some = [one for one in whole if "'comment': 'MPTCP" not in str(one)]
assert len(whole) - len(some) == 2
server = subprocess.Popen([*far, sys.executable, "-c", serve], stdout=subprocess.PIPE)
try:
    server.stdout.readline()
    for rules in (None, some, whole):
        if rules:
            nft.apply({{"nftables": rules}})
        run(*far, "nft", "flush chain ip t c; add rule ip t c ip daddr 169.254.169.254 counter")
        run(sys.executable, "-c", dial)
        print(run(*far, "nft", "list chain ip t c").partition("packets ")[2].split()[0])
finally:
    server.kill()
"""


def test_no_address_that_a_peer_announces_leads_to_metadata() -> None:
    with neighbour() as far:
        told = unshared(_ANNOUNCED, str(far), seconds=40)
    free, nobodys, held = map(int, told.split())
    assert free > 0, "this kernel joins what is announced, as nobody"
    assert (nobodys, held) == (0, 0)


# Sends to each address of this machine as the gate's user.
_ITSELF = f"""
import os, socket, subprocess, sys
from ipaddress import ip_network
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction
{_EVERYWHERE}
if sys.argv[1] != "unheld":
    nft.apply(leash_transaction(Leash({_UID}, (), tuple(map(ip_network, sys.argv[2:])))))
os.setuid({_UID})
for host in ("198.41.0.4", "2600:9::9", "127.0.0.1", "::1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"x", (host, 22))
            print("passes")
        except PermissionError:
            print("dropped")
"""


@pytest.mark.parametrize(
    ("words", "verdicts"),
    [
        pytest.param(("unheld",), ["passes"] * 4, id="without the rules"),
        pytest.param(("held",), ["dropped"] * 4, id="with them"),
        pytest.param(("held", "198.41.0.4/32", "2600:9::/64"), ["passes"] * 2 + ["dropped"] * 2, id="named by a rule"),
    ],
)
def test_the_machine_itself_is_not_reached_by_a_public_address_of_its_own(
    words: tuple[str, ...], verdicts: list[str]
) -> None:
    """By loopback, where a firewall of the machine lets everything in."""
    assert unshared(_ITSELF, *words).split() == verdicts


# Has the gate's user listen at a port, and send to it by the broadcast address of a public network of this machine's.
_ALL_HERE = f"""
import os, socket, subprocess, sys
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import Leash, leash_transaction
{_EVERYWHERE}
subprocess.run(["ip", "address", "add", "198.41.1.4/24", "broadcast", "198.41.1.255", "dev", "near"], check=True)
if sys.argv[1] == "held":
    nft.apply(leash_transaction(Leash({_UID}, (), ())))
os.setuid({_UID})
with socket.socket(type=socket.SOCK_DGRAM) as here, socket.socket(type=socket.SOCK_DGRAM) as sock:
    here.bind(("", 7777))
    here.settimeout(1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        sock.sendto(b"x", ("198.41.1.255", 7777))
        print(here.recv(9).decode())
    except OSError as fault:
        print(fault.strerror)
"""


@pytest.mark.parametrize(("words", "came"), [("unheld", "x"), ("held", "Operation not permitted")])
def test_the_machine_itself_is_not_reached_by_what_is_for_all_of_its_network(words: str, came: str) -> None:
    assert unshared(_ALL_HERE, words).strip() == came
