"""Who shares the gate's namespace: whatever they try, and whatever the kernel says for them, nothing leaves.

Counted in the next namespace, where every packet of the gate's side would arrive.
"""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.up import until
from tests.lab.gate import Gate, configuration, environment, gate, tidegate_command
from tests.lab.sockets import dial_in_namespace, in_namespace, udp_in_namespace
from tests.lab.unshared import unshared
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
        protocol, kind = (socket.IPPROTO_ICMPV6, 128) if six else (socket.IPPROTO_ICMP, 8)
        with socket.socket(family, socket.SOCK_DGRAM, protocol) as sock:
            sock.sendto(bytes([kind, 0, 0, 0, 0, 0, 0, 0]), (host, 0))
    elif way == "device":  # needs no capability, and the kernel then sends even a loopback address that way
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"uplink\\0")
            sock.sendto(b"secret", (host, int(sys.argv[4])))
    elif way == "source":  # somebody else's address as one's own: the answer to it is the gate's, and would leave
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
            claimed = socket.inet_pton(family, "2001:db8:beef::1") + struct.pack("i", 0)
            question = bytes.fromhex("000701000001000000000000") + b"\\6secret\\4test\\0\\0\\1\\0\\1"
            sock.sendmsg([question], [(socket.IPPROTO_IPV6, 50, claimed)], 0, (host, int(sys.argv[4])))
    elif way == "left":  # a connection that stands, by another device from now on, and left with what it has to send
        with socket.socket(family) as sock:
            sock.bind(("10.99.0.1", 0))
            sock.connect((host, int(sys.argv[4])))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"uplink\\0")
            sock.send(b"secret" * 1000)
        time.sleep(1)
    elif way == "before":  # a connection that is older than the wall, and what it holds when it is left
        with socket.create_connection((host, int(sys.argv[4])), 5) as sock:
            print("connected", flush=True)
            sys.stdin.read(1)
            sock.send(b"secret" * 1000)
        time.sleep(1)
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


MARK = 4242
"""The port of a packet that is sent after an attempt: what came of that has come when this has."""

GROUP6 = "ff05::dead:beef"
# The kernel's own talk is let by uncounted: neighbours, and group membership but for the report of GROUP6. What comes
# for ::1 it throws away before prerouting.
_COUNT = f"""
add table inet count
add chain inet count seen {{ type filter hook prerouting priority -300; }}
add rule inet count seen iifname != cable accept
add rule inet count seen udp dport {MARK} counter accept comment "mark"
add rule inet count seen icmpv6 type mld2-listener-report @th,192,32 0xdeadbeef counter accept comment "came"
add rule inet count seen icmpv6 type {{ 130, 131, 132, 133, 134, 135, 136, 143 }} accept
add rule inet count seen counter comment "came"
add table netdev count
add chain netdev count seen {{ type filter hook ingress device "cable" priority 0; }}
add rule netdev count seen ip6 daddr ::1 counter comment "came"
"""


@dataclass
class Side:
    """The gate's namespace, and what is counted of it in the next one."""

    place: World

    def attempt(self, uid: int, way: str, host: str, port: int = 0) -> str:
        command = [*self.place.gate_prefix, sys.executable, "-c", _TRY, str(uid), way, host, str(port)]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    def arrived(self, host: str = INTERNET) -> int:
        """Count what has come from the gate's side, until a packet has that root sends there now by `host`'s family."""
        six = ":" in host
        before = self._count("mark")
        with udp_in_namespace(self.place.gate, socket.AF_INET6 if six else socket.AF_INET) as sock:
            sock.sendto(b"mark", (BEYOND6 if six else INTERNET, MARK))
        until(lambda: self._count("mark") > before)
        return self._count("came")

    def _count(self, comment: str) -> int:
        listed = subprocess.run(
            ["ip", "netns", "exec", self.place.internet, "nft", "-j", "list", "ruleset"],
            capture_output=True,
            check=True,
        )
        rules = [one["rule"] for one in json.loads(listed.stdout)["nftables"] if "rule" in one]
        counters = [part["counter"] for rule in rules if rule.get("comment") == comment for part in rule["expr"]
                    if "counter" in part]  # fmt: skip
        assert counters, comment
        return sum(int(counter["packets"]) for counter in counters)


@dataclass
class Flat(Side):
    gate: Gate

    def dropped(self, rule: str) -> int:
        """Return how many packets a rule of the wall has dropped."""
        show = [*self.place.gate_prefix, *tidegate_command("wall", "show", "--shared", "-o", "json")]
        counts = json.loads(subprocess.run(show, capture_output=True, check=True, env=environment()).stdout)
        return int(counts[f"output: {rule}"]["packets"])

    def put_up(self) -> None:
        up = tidegate_command("wall", "shared", "--config", str(self.gate.config_file))
        subprocess.run([*self.place.gate_prefix, *up], env=environment(), timeout=40, check=True)


@contextlib.contextmanager
def counted() -> Iterator[World]:
    """Make a world of both families, where any user may send an echo, and count what leaves the gate's namespace."""
    with world() as place:
        for space, address, device in ((place.gate, UPLINK6, "uplink"), (place.internet, BEYOND6, "cable")):
            subprocess.run(["ip", "-n", space, "address", "add", f"{address}/64", "dev", device, "nodad"], check=True)
        subprocess.run(["ip", "-n", place.gate, "route", "add", "default", "via", BEYOND6], check=True)
        # A new namespace has «1 0»: nobody may, so that an attempt would be none (icmp(7)).
        allow = "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range"
        subprocess.run([*place.gate_prefix, "sh", "-c", allow], check=True)
        subprocess.run(["ip", "netns", "exec", place.internet, "nft", "-f", "-"], input=_COUNT, text=True, check=True)
        yield place


@pytest.fixture(scope="module")
def bare() -> Iterator[Side]:
    """The same without a wall."""
    with counted() as place:
        yield Side(place)


@pytest.fixture(scope="module")
def flat() -> Iterator[Flat]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(counted())
        config = configuration(sessions={"agent": {"policy": "default", "from": "127.0.0.1/32"}})
        config["listen"] = {"http": "127.0.0.1:8080", "dns": ["127.0.0.1:5353", "[::1]:5353"]}
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        made = Flat(place, running)
        made.put_up()
        yield made


_DROPPED = "[Errno 1] Operation not permitted"
_REFUSED = "[Errno 111] Connection refused"


def _way(way: str, host: str, port: int, *, closed: str, opened: str = "done") -> Any:
    """A way out, what its attempt prints where it is closed, and what where it is open."""
    return pytest.param(way, host, port, closed, opened, id=f"{way} {host}")


WAYS = [
    _way("tcp", INTERNET, 80, closed="timed out", opened=_REFUSED),
    _way("tcp", BEYOND6, 80, closed="timed out", opened=_REFUSED),
    _way("udp", INTERNET, 53, closed=_DROPPED),
    _way("udp", BEYOND6, 53, closed=_DROPPED),
    _way("udp", "224.0.0.251", 5353, closed=_DROPPED),
    _way("echo", INTERNET, 0, closed=_DROPPED),
    # Of these the kernel does not say what became: the first it pushes out itself, in groups it speaks for them later.
    _way("echo", BEYOND6, 0, closed="done"),
    _way("group", "239.83.69.67", 0, closed="done"),
    _way("group", GROUP6, 0, closed="done"),
    _way("device", "127.0.0.1", 5353, closed=_DROPPED),
    _way("device", "::1", 5353, closed=_DROPPED),
]
_COLUMNS = ("way", "host", "port", "closed", "opened")


@pytest.mark.parametrize(
    "uid",
    [
        pytest.param(65534, id="nobody"),
        pytest.param(1000, id="a person"),
        pytest.param(1, id="the first after root"),
        pytest.param(64731, id="below the gate's"),
        pytest.param(64733, id="above the gate's"),
    ],
)
@pytest.mark.parametrize(_COLUMNS, WAYS)
def test_nothing_of_theirs_leaves(
    flat: Flat, uid: int, way: str, host: str, port: int, closed: str, opened: str
) -> None:
    del opened
    before = flat.arrived(host)
    assert flat.attempt(uid, way, host, port) == closed
    assert flat.arrived(host) == before


@pytest.mark.parametrize("uid", [pytest.param(0, id="root"), pytest.param(65534, id="nobody")])
@pytest.mark.parametrize(_COLUMNS, WAYS)
def test_each_of_these_leaves_where_there_is_no_wall(
    bare: Side, uid: int, way: str, host: str, port: int, closed: str, opened: str
) -> None:
    """What the test above says is worth nothing where an attempt fails by itself, or is not counted."""
    del closed
    before = bare.arrived(host)
    assert bare.attempt(uid, way, host, port) == opened
    assert bare.arrived(host) > before


@pytest.mark.parametrize("uid", [pytest.param(0, id="root"), pytest.param(GATE_UID, id="the gate")])
@pytest.mark.parametrize(_COLUMNS, [one for one in WAYS if one.values[0] not in ("group", "device")])
def test_the_gate_and_root_go_on(
    flat: Flat, uid: int, way: str, host: str, port: int, closed: str, opened: str
) -> None:
    del closed
    before = flat.arrived(host)
    assert flat.attempt(uid, way, host, port) == opened
    assert flat.arrived(host) > before


def test_group_membership_is_not_said_by_ipv6_either(flat: Flat) -> None:
    """Twenty-eight bits of the group are the sandbox's own choice, and the kernel says them for it."""
    before = flat.dropped("nobody's")
    flat.attempt(65534, "group", GROUP6)
    assert flat.dropped("nobody's") > before


@pytest.mark.parametrize(
    ("way", "host", "port", "rule"),
    [
        pytest.param("source", "::1", 5353, "loopback on another device, ip6 saddr", id="the gate's own answer"),
        pytest.param("left", "127.0.0.1", 8080, "loopback on another device, ip daddr", id="a socket that was left"),
    ],
)
def test_what_others_send_for_them_does_not_leave_either(flat: Flat, way: str, host: str, port: int, rule: str) -> None:
    before, dropped = flat.arrived(), flat.dropped(rule)
    assert flat.attempt(65534, way, host, port) == "done"
    assert flat.arrived() == before
    assert flat.dropped(rule) > dropped, "it was tried"


def test_what_is_older_than_the_wall_sends_nothing_more(flat: Flat) -> None:
    down = tidegate_command("wall", "down", "--shared")
    subprocess.run([*flat.place.gate_prefix, *down], env=environment(), timeout=40, check=True)
    with in_namespace(flat.place.internet)(INTERNET, 7778, socket.SOCK_STREAM):
        command = [*flat.place.gate_prefix, sys.executable, "-c", _TRY, "65534", "before", INTERNET, "7778"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        flat.put_up()
        before, dropped = flat.arrived(), flat.dropped("nobody's")
        assert process.communicate("x", timeout=20)[0] == "done\n"
        assert flat.arrived() == before
        assert flat.dropped("nobody's") > dropped, "it was tried"


@pytest.mark.parametrize("host", [pytest.param(UPLINK, id="IPv4"), pytest.param(UPLINK6, id="IPv6")])
def test_nobody_of_them_is_called(flat: Flat, host: str) -> None:
    """The answer to a full backlog, and what a socket that was left has still to send, are nobody's packets."""
    command = [*flat.place.gate_prefix, sys.executable, "-c", _TRY, "65534", "serve", host, "7777"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    assert serving.stdout.readline() == "listening\n"
    before = flat.arrived(host)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            dial_in_namespace(flat.place.internet, host, 7777)
    assert flat.arrived(host) == before
    assert "timed out" in serving.communicate(timeout=20)[0]


@pytest.mark.parametrize(
    ("address", "port", "printed"),
    [
        pytest.param("127.0.0.1", 8080, "done", id="the gate's listener"),
        pytest.param("127.0.0.1", 9, "timed out", id="another port"),
        pytest.param("127.0.0.2", 8080, "timed out", id="another address"),
        pytest.param(UPLINK, 8080, "timed out", id="the uplink's address"),
    ],
)
def test_the_gates_listeners_on_loopback_are_theirs_and_nothing_else_there(
    flat: Flat, address: str, port: int, printed: str
) -> None:
    assert flat.attempt(65534, "tcp", address, port) == printed


# Opens an MPTCP connection on loopback of one who is held, before that, to a server of root's, which then announces
# another address of loopback. Says how many call that, without rules, with the others, and with all.
_JOINED = """
import subprocess, sys, time
from ipaddress import ip_address
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.shared import SHARED_TABLE, Shared, shared_transaction

def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout

def calls():
    return int(run("nft", "list", "chain", "ip", "count", "called").partition("packets ")[2].split()[0])

run("ip", "link", "set", "lo", "up")
run("ip", "mptcp", "limits", "set", "subflow", "4", "add_addr_accepted", "4")
run("nft", "add table ip count; add chain ip count called { type filter hook input priority 0; }; "
    "add rule ip count called ip daddr 127.0.0.2 tcp flags & (syn | ack) == syn counter")
both = '''
import os, socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
os.seteuid(1234)
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
os.seteuid(0)
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen()
client.connect(("127.0.0.1", int(sys.argv[1])))
taken = server.accept()[0]
client.send(b"x"), taken.send(taken.recv(1)), client.recv(1)
print(flush=True)
sys.stdin.read()
'''
whole = shared_transaction(Shared(64732, ((ip_address("127.0.0.1"), 8080),)))["nftables"]
some = [one for one in whole if "nobody's by MPTCP" not in str(one)]
assert len(whole) - len(some) == 1
for port, rules in ((8001, None), (8002, some), (8003, whole)):
    nft.remove(SHARED_TABLE)
    pair = subprocess.Popen([sys.executable, "-c", both, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        pair.stdout.readline()
        if rules:
            nft.apply({"nftables": rules})
        before = calls()
        run("ip", "mptcp", "endpoint", "add", "127.0.0.2", "signal")
        end = time.monotonic() + 2
        while calls() == before and time.monotonic() < end:
            time.sleep(0.05)
        print(calls() - before > 0)
        run("ip", "mptcp", "endpoint", "flush")
    finally:
        pair.kill()
        pair.wait()
"""


def test_nothing_that_mptcp_begins_for_them_goes_by_loopback_as_nobodys() -> None:
    assert unshared(_JOINED, seconds=40).split() == ["True", "True", "False"], (
        "the kernel joins what is announced, and calls it so"
    )
