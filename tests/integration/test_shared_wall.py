"""Who shares the gate's namespace: whatever they try, and whatever the kernel says for them, nothing leaves.

Counted in the next namespace, where every packet of the gate's side would arrive.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.lab.gate import Gate, configuration, environment, gate, tidegate_command
from tests.lab.sockets import dial_in_namespace
from tests.lab.world import INTERNET, UPLINK, World, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

GATE_UID = 64732
UPLINK6, BEYOND6 = "fd99::1", "fd99::2"
# Becomes the user, and loses every capability by it; then tries one way, and says how it went.
_TRY = """
import encodings.idna, os, socket, struct, sys, time
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
way, host = sys.argv[2], sys.argv[3]
six = ":" in host
family = socket.AF_INET6 if six else socket.AF_INET
try:
    if way == "tcp":
        socket.create_connection((host, int(sys.argv[4])), 1.5).close()
    elif way == "udp":
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"secret", (host, int(sys.argv[4])))
    elif way == "group":
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            index = struct.pack("@I", socket.if_nametoindex("uplink"))
            if six:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(family, host) + index)
            else:
                here = socket.inet_aton("10.99.0.1")
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(host) + here)
            time.sleep(1.5)
    elif way == "echo":
        with socket.socket(family, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
            sock.sendto(b"\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00", (host, 0))
    elif way == "serve":
        with socket.socket(family) as sock:
            sock.bind(("", int(sys.argv[4])))
            sock.listen(0)
            print("listening", flush=True)
            sock.settimeout(25)
            sock.accept()
    print("done")
except OSError as fault:
    print(fault)
"""


@dataclass
class Flat:
    place: World
    gate: Gate

    def attempt(self, uid: int, way: str, host: str, port: int = 0) -> str:
        command = [*self.place.gate_prefix, sys.executable, "-c", _TRY, str(uid), way, host, str(port)]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    def arrived(self) -> int:
        """Count what has come from the gate's side, but for neighbour discovery."""
        listed = subprocess.run(
            ["ip", "netns", "exec", self.place.internet, "nft", "-j", "list", "table", "inet", "count"],
            capture_output=True, check=True,
        )  # fmt: skip
        [rule] = [one["rule"] for one in json.loads(listed.stdout)["nftables"] if "rule" in one]
        return int(rule["expr"][-1]["counter"]["packets"])


@pytest.fixture(scope="module")
def flat() -> Iterator[Flat]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world())
        for space, address, device in ((place.gate, UPLINK6, "uplink"), (place.internet, BEYOND6, "cable")):
            subprocess.run(["ip", "-n", space, "address", "add", f"{address}/64", "dev", device, "nodad"], check=True)
        config = configuration(sessions={"agent": {"policy": "default", "from": "127.0.0.1/32"}})
        config["listen"] = {"http": "127.0.0.1:8080", "dns": "127.0.0.1:5353"}
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        up = tidegate_command("wall", "shared", "--config", str(running.config_file))
        subprocess.run([*place.gate_prefix, *up], env=environment(), timeout=40, check=True)
        count = "add table inet count; add chain inet count seen { type filter hook prerouting priority -300; }; "
        count += "add rule inet count seen meta l4proto != ipv6-icmp iifname cable counter"
        subprocess.run(["ip", "netns", "exec", place.internet, "nft", count], check=True)
        yield Flat(place, running)


@pytest.mark.parametrize("uid", [65534, 1000, 1, 64731, 64733])
@pytest.mark.parametrize(
    ("way", "host", "port"),
    [
        ("tcp", INTERNET, 80),
        ("tcp", BEYOND6, 80),
        ("udp", INTERNET, 53),
        ("udp", BEYOND6, 53),
        ("udp", "224.0.0.251", 5353),
        ("group", "239.83.69.67", 0),
        ("echo", INTERNET, 0),
    ],
)
def test_nothing_of_theirs_leaves(flat: Flat, uid: int, way: str, host: str, port: int) -> None:
    before = flat.arrived()
    flat.attempt(uid, way, host, port)
    assert flat.arrived() == before


def test_group_membership_is_not_said_by_ipv6_either(flat: Flat) -> None:
    """Twenty-eight bits of the group are the sandbox's own choice, and the kernel says them for it."""
    table = "tidegate-users-of-one-namespace"

    def dropped() -> int:
        listed = subprocess.run(
            [*flat.place.gate_prefix, "nft", "-j", "list", "table", "inet", table], capture_output=True, check=True
        )
        rules = [one["rule"] for one in json.loads(listed.stdout)["nftables"] if "rule" in one]
        return sum(
            int(rule["expr"][-2]["counter"]["packets"]) for rule in rules if rule["comment"] == "group membership ip6"
        )

    before = dropped()
    flat.attempt(65534, "group", "ff05::dead:beef")
    assert dropped() > before


@pytest.mark.parametrize("host", [UPLINK, UPLINK6])
def test_nobody_of_them_is_called(flat: Flat, host: str) -> None:
    """The answer to a full backlog, and what a socket that was left has still to send, are nobody's packets."""
    command = [*flat.place.gate_prefix, sys.executable, "-c", _TRY, "65534", "serve", host, "7777"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    assert serving.stdout.readline() == "listening\n"
    before = flat.arrived()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            dial_in_namespace(flat.place.internet, host, 7777)
    assert flat.arrived() == before
    assert "timed out" in serving.communicate(timeout=20)[0]


def test_the_gates_listeners_on_loopback_are_theirs_and_nothing_else_there(flat: Flat) -> None:
    assert flat.attempt(65534, "tcp", "127.0.0.1", 8080) == "done"
    for address, port in (("127.0.0.1", 9), ("127.0.0.2", 8080), (UPLINK, 8080)):
        assert flat.attempt(65534, "tcp", address, port) == "timed out"


def test_the_gate_and_root_go_on(flat: Flat) -> None:
    for uid in (GATE_UID, 0):
        before = flat.arrived()
        flat.attempt(uid, "udp", INTERNET, 53)
        assert flat.arrived() > before
