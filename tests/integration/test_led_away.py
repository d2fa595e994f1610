"""Another's table where packets come in: by which words it leads a sandbox's past the wall, and that this is told."""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from tests.lab.sockets import in_namespace
from tests.lab.world import Leg, World, leg, why_no_world, world
from tidegate_launcher.wall.link import Link, transaction

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

FAR = "198.51.100.7"
_COUNT = """
table ip count {
    chain came {
        type filter hook prerouting priority -300
        iifname "cable" ip saddr 10.78.0.2 counter
    }
}
"""
_SERVE = """
import select, socket, sys
taking = {}
for host, port, name in (("10.78.0.1", 8443, b"wall"), ("10.78.0.1", 22, b"ssh"), ("0.0.0.0", 9999, b"elsewhere")):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
    sock.bind((host, port))
    sock.listen()
    taking[sock] = name
print(flush=True)
while True:
    for sock in select.select(list(taking), [], [])[0]:
        one = sock.accept()[0]
        one.send(taking[sock])
        one.close()
"""
_DIAL = f"""
import socket
try:
    with socket.create_connection(("{FAR}", 443), 2) as sock:
        print(sock.recv(20).decode())
except OSError:
    print("nobody")
"""
_ASK = """
import socket, sys
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.sendto(b"x", (sys.argv[1], 53))
"""
_TELL = """
import sys
from tidegate_launcher.wall import nft
print(*nft.read().past(sys.argv[1], ours=lambda table: table.startswith("tidegate-")), sep="; ")
"""


@dataclass
class Post:
    place: World
    leg: Leg

    def nft(self, rules: str) -> None:
        subprocess.run([*self.place.gate_prefix, "nft", "-f", "-"], input=rules, text=True, check=True)

    def run(self, prefix: list[str], script: str, *words: str) -> str:
        command = [*prefix, sys.executable, "-c", script, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    def arrived(self) -> int:
        listed = ["ip", "netns", "exec", self.place.internet, "nft", "list", "chain", "ip", "count", "came"]
        told = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        return int(told.partition("packets ")[2].split()[0])


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world())
        here = stack.enter_context(leg(place, 0))
        gate = ip_address(here.gate[0])
        sandbox = tuple(map(ip_address, here.own))
        link = Link(here.device, sandbox, transparent=((gate, 8443),), dns=((gate, 5353),), gate=(gate,))
        made = Post(place, here)
        command = [*place.gate_prefix, "nft", "-j", "-f", "-"]
        subprocess.run(command, input=json.dumps(transaction(link)), text=True, check=True)
        far = ["ip", "netns", "exec", place.internet, "nft", "-f", "-"]
        subprocess.run(far, input=_COUNT, text=True, check=True)
        server = subprocess.Popen([*place.gate_prefix, sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline()
        yield made


def test_another_destination_written_into_a_packet_leads_it_to_another_listener_and_is_told(post: Post) -> None:
    rule = f"iifname {post.leg.device} udp dport 5353 udp dport set 5555"
    post.nft(f"table ip beside {{\nchain first {{\ntype filter hook prerouting priority -50\n{rule}\n}}\n}}\n")
    gate = in_namespace(post.place.gate)
    try:
        with gate(post.leg.gate[0], 5555, socket.SOCK_DGRAM) as other:
            other.settimeout(5)
            post.run(post.leg.prefix, _ASK, FAR)
            assert other.recv(9) == b"x"
        assert post.run(post.place.gate_prefix, _TELL, post.leg.device) == "table ip beside (another destination)"
    finally:
        post.nft("delete table ip beside\n")


@pytest.mark.parametrize(
    ("chain", "taken", "told"),
    [
        pytest.param("filter -150 accept", "wall", "", id="accepts before"),
        pytest.param("filter -300 notrack", "nobody", "", id="tells no connection"),
        pytest.param("nat -150 meta l4proto tcp dnat to 10.78.0.1:22", "nobody", "", id="dnat to another port"),
        pytest.param("nat -150 meta l4proto tcp dnat to 10.99.0.2:80", "nobody", "", id="dnat to another machine"),
        pytest.param("filter -50 meta l4proto tcp tproxy to :9999", "elsewhere", "tproxy", id="tproxy"),
        pytest.param('filter -150 dup to 10.99.0.2 device "uplink"', "wall", "dup", id="a copy before"),
        pytest.param('filter -50 dup to 10.99.0.2 device "uplink"', "wall", "dup", id="a copy after"),
    ],
)
def test_what_leads_packets_past_the_wall_is_told_and_nothing_else(
    post: Post, chain: str, taken: str, told: str
) -> None:
    kind, priority, rule = chain.split(" ", 2)
    before = post.arrived()
    hook = f"type {kind} hook prerouting priority {priority}"
    post.nft(f"table ip beside {{\nchain first {{\n{hook}\niifname {post.leg.device} {rule}\n}}\n}}\n")
    try:
        assert post.run(post.leg.prefix, _DIAL) == taken
        assert post.run(post.place.gate_prefix, _TELL, post.leg.device) == (f"table ip beside ({told})" if told else "")
        assert post.run(post.place.gate_prefix, _TELL, "another0") == ""
    finally:
        post.nft("delete table ip beside\n")
    assert (post.arrived() > before) is (told == "dup")
