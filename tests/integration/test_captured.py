"""A client that knows of no proxy: its names lead to the gate, or the wall sends there whatever it dials.

All of it between real namespaces, with real nftables rules and the sandbox's own resolver asking the gate.
Longer than a module should be, since all of it is asked of one cage.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import dns.message
import pytest

from tests.lab import inside
from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.sockets import dial_in_namespace, in_namespace
from tests.lab.upstream import Connection, Upstream, says, upstream
from tests.lab.world import CLIENT, GATE, INTERNET, UPLINK, World, resolver_of, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

API, OTHER, PLAIN = "api.allowed.test", "other.test", "plain.allowed.test"
HOME, FAR = "10.98.0.5", "198.41.0.4"


async def endless(_: Connection, request: Request) -> Reply:
    async def ticks() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b"tick"
            await asyncio.sleep(0.05)

    return Reply(200, [], ticks(), framing="chunked")


async def alternative(_: Connection, request: Request) -> Reply:
    return Reply(200, [("alt-svc", 'h3=":443"; ma=3600')], b"here")


@dataclass
class Cage:
    place: World
    gate: Gate
    dns: DnsServer
    server: Upstream
    decoy: Upstream

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the sandbox, which has no proxy variable."""
        return inside.run(self.place.client_prefix, *command)

    def curl(self, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inside.curl(self.place.client_prefix, self.gate.state / "ca.pem", url, *arguments)

    def ask(self, name: str, rrtype: str = "A", *, server: str = GATE, tcp: bool = False) -> inside.Answer:
        return inside.ask(self.place.client_prefix, name, rrtype, server=server, tcp=tcp)

    def wall(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tidegate wall` at the gate's end of the link."""
        return inside.wall(self.place, *arguments)

    def wall_up(self) -> None:
        done = self.wall("up", "--device", "sandbox", "--sandbox", CLIENT, "--config", str(self.gate.config_file))
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cage() -> Iterator[Cage]:
    with (
        world(addresses=[HOME, FAR]) as place,
        resolver_of(place.client, GATE),
        Authority() as ca,
        dns_server({name: addresses(HOME) for name in (API, PLAIN)}, address=INTERNET, port=53, bind=place.bind) as dns,
        upstream(
            ca=ca,
            names=(API,),
            address=HOME,
            port=443,
            bind=place.bind,
            routes={"/open/hi": says(b"hello"), "/open/alt": alternative, "/open/endless": endless},
        ) as server,
        upstream(address=HOME, port=80, bind=place.bind, routes={"/hi": says(b"plain")}),
        upstream(
            ca=ca, names=(API,), address=FAR, port=443, bind=place.bind, routes={"/open/hi": says(b"decoy")}
        ) as decoy,
    ):
        subprocess.run(["ip", "-n", place.client, "route", "add", "default", "via", GATE], check=True)
        inside = {"addresses": ["10.98.0.0/24"]}
        config = configuration(
            allow=[
                rule(API, paths=["/open/**"], **inside),
                rule(PLAIN, protocol="http", **inside),
            ],
            policy={"budgets": {"session": {"distinct_names_per_hour": 50}}},
            ca=ca,
            listen={
                "http": f"{GATE}:8080", "tls": f"{GATE}:443", "dns": f"{GATE}:53", "transparent": f"{GATE}:8443",
            },
            sessions={"agent": {"policy": "default", "from": f"{CLIENT}/32"}},
        )  # fmt: skip
        config["resolver"]["servers"] = [dns.address]
        with gate(config, prefix=place.gate_prefix) as running:
            made = Cage(place, running, dns, server, decoy)
            made.wall_up()
            yield made


# -- by name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_an_allowed_name_is_reached_with_no_setting_at_all(cage: Cage, version: str) -> None:
    done = cage.curl(f"https://{API}/open/hi", version)
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr
    record = cage.gate.audit(type="http", phase="end")[-1]
    assert (record["session"], record["verdict"], record["http"]["host"]) == ("agent", "allow", API)


def test_plain_http_goes_by_its_host(cage: Cage) -> None:
    assert cage.curl(f"http://{PLAIN}/hi").stdout == "plain"
    assert json.loads(cage.curl(f"http://{API}/open/hi").stdout)["reason"] == "scheme_not_allowed"


def test_a_denied_path_is_told_inside_the_tls(cage: Cage) -> None:
    assert json.loads(cage.curl(f"https://{API}/closed").stdout)["reason"] == "path_not_allowed"


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize(
    ("name", "rrtype", "code", "found"),
    [
        pytest.param(API, "A", "NOERROR", [GATE], id="allowed"),
        pytest.param("API.Allowed.TEST", "A", "NOERROR", [GATE], id="in any case"),
        pytest.param(API, "AAAA", "NOERROR", [], id="no address of that family"),
        pytest.param(API, "HTTPS", "NOERROR", [], id="no hints"),
        pytest.param(API, "TXT", "NOERROR", [], id="no text"),
        pytest.param(API, "ANY", "REFUSED", [], id="any"),
        pytest.param(OTHER, "A", "NXDOMAIN", [], id="denied"),
        pytest.param(f"data.{API}", "A", "NXDOMAIN", [], id="below an exact name"),
        pytest.param("metadata.google.internal", "A", "NXDOMAIN", [], id="metadata"),
        pytest.param("a_b..test".replace("..", "."), "A", "NXDOMAIN", [], id="no host name"),
    ],
)
def test_D_13_a_name_is_answered_by_policy_alone(
    cage: Cage, name: str, rrtype: str, code: str, found: list[str], *, tcp: bool
) -> None:
    before = len(cage.dns.queries)
    assert cage.ask(name, rrtype, tcp=tcp) == (code, found)
    assert len(cage.dns.queries) == before, "a question caused a packet"
    record = cage.gate.audit(type="dns")[-1]
    assert record["session"] == "agent"
    assert record["dns"]["rrtype"] == rrtype


def test_D_09_whatever_server_is_asked_ours_answers(cage: Cage) -> None:
    assert cage.ask(API, server="8.8.8.8") == ("NOERROR", [GATE])
    assert cage.ask(OTHER, server="8.8.8.8", tcp=True) == ("NXDOMAIN", [])


# -- whatever it dials -----------------------------------------------------------------------------


def test_P_05_an_address_of_its_own_choice_is_never_dialled(cage: Cage) -> None:
    done = cage.curl(f"https://{API}/open/hi", "--resolve", f"{API}:443:{FAR}")
    assert done.stdout == "hello"
    assert cage.decoy.connections == 0


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        pytest.param("http://169.254.169.254/latest", "metadata", id="metadata"),
        pytest.param(f"http://{FAR}/", "ip_literal", id="an address"),
        pytest.param("http://10.99.0.1/", "loop", id="the gate's other side"),
    ],
)
def test_an_address_is_judged_as_an_address(cage: Cage, url: str, reason: str) -> None:
    done = cage.curl(url)
    assert json.loads(done.stdout)["reason"] == reason, done.stdout + done.stderr


def test_a_port_that_no_rule_names_is_refused(cage: Cage) -> None:
    done = cage.curl(f"http://{PLAIN}:8000/", "--resolve", f"{PLAIN}:8000:{FAR}")
    assert json.loads(done.stdout)["reason"] == "port_not_allowed"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"\x05\x01\x00", id="socks5"),
        pytest.param(b"\x04\x01\x01\xbb\x0a\x62\x00\x05\x00", id="socks4"),
        pytest.param(b"SSH-2.0-x\r\n", id="ssh"),
        pytest.param(bytes(64), id="zeros"),
    ],
)
@pytest.mark.parametrize("port", [443, 8080, 853, 22], ids=["by-name", "proxy", "dot", "ssh-port"])
def test_P_26_what_is_neither_http_nor_tls_is_closed_and_recorded(cage: Cage, port: int, first: bytes) -> None:
    where = GATE if port in (443, 8080) else FAR
    with contextlib.closing(dial_in_namespace(cage.place.client, where, port)) as sock:
        sock.settimeout(10)
        sock.sendall(first)
        said = sock.recv(100)
    assert said == b""
    assert cage.gate.audit(type="conn", phase="end")[-1]["reason"] == "not_http"


def test_P_27_no_answer_says_that_there_is_another_way(cage: Cage) -> None:
    done = cage.curl(f"https://{API}/open/alt", "-i")
    assert "alt-svc" not in done.stdout.lower()
    assert "200" in done.stdout


def test_tls_without_a_name_is_refused(cage: Cage) -> None:
    done = cage.run("openssl", "s_client", "-noservername", "-connect", f"{FAR}:443")
    assert done.returncode != 0
    assert cage.gate.audit(type="conn", phase="end")[-1]["reason"] == "ip_literal"


# -- the wall --------------------------------------------------------------------------------------


_PING = """
import socket, sys
echo = b"\\x08\\x00\\xf7\\xff\\x00\\x00\\x00\\x00"
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
    sock.sendto(echo, (sys.argv[1], 0))
"""


def _dropped(cage: Cage) -> int:
    counts = json.loads(cage.wall("show", "--device", "sandbox", "-o", "json").stdout)
    return int(counts["closed: everything else"]["packets"])


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((sys.executable, "-c", _PING, FAR), id="icmp"),
        pytest.param((sys.executable, "-c", _PING, GATE), id="icmp to the gate"),
        pytest.param(("bash", "-c", f"echo x > /dev/udp/{FAR}/443"), id="P-27-quic"),
        pytest.param(("bash", "-c", f"echo x > /dev/udp/{FAR}/123"), id="ntp"),
        pytest.param(("bash", "-c", f"echo x > /dev/udp/{GATE}/8080"), id="udp to a port of the gate"),
        pytest.param(("bash", "-c", "echo x > /dev/udp/224.0.0.251/5353"), id="multicast"),
    ],
)
def test_what_is_not_tcp_or_dns_is_dropped_and_counted(cage: Cage, command: tuple[str, ...]) -> None:
    before = _dropped(cage)
    cage.run(*command)
    assert _dropped(cage) > before


@pytest.mark.parametrize(("address", "port"), [(GATE, 9999), (UPLINK, 443), (UPLINK, 8080), ("127.0.0.1", 9999)])
def test_nothing_else_on_the_gates_machine_is_reached(cage: Cage, address: str, port: int) -> None:
    """Whatever is dialled there comes to the gate, which refuses to be led to itself."""
    with in_namespace(cage.place.gate)(address, port, socket.SOCK_STREAM) as other:
        other.listen()
        other.settimeout(0.3)
        if address != "127.0.0.1":
            told = json.loads(cage.curl(f"http://{address}:{port}/").stdout)
            assert told["reason"] in ("loop", "self_or_gateway", "blocked_address")
        else:
            assert cage.curl(f"http://{address}:{port}/", "-m", "2").returncode == 7, "the sandbox's own loopback"
        with pytest.raises(TimeoutError):
            other.accept()


def test_another_source_is_dropped_at_the_link(cage: Cage) -> None:
    subprocess.run(["ip", "-n", cage.place.client, "address", "add", "10.77.0.9/32", "dev", "eth0"], check=True)
    try:
        assert cage.curl(f"http://{PLAIN}/hi", "--interface", "10.77.0.9", "-m", "2").returncode == 28
    finally:
        subprocess.run(["ip", "-n", cage.place.client, "address", "del", "10.77.0.9/32", "dev", "eth0"], check=True)
    counts = json.loads(cage.wall("show", "--device", "sandbox", "-o", "json").stdout)
    assert counts["source: another source"]["packets"] > 0


def _rules(cage: Cage) -> list[dict[str, Any]]:
    listed = subprocess.run([*cage.place.gate_prefix, "nft", "-j", "list", "ruleset"], capture_output=True, check=True)
    return [one["rule"] for one in json.loads(listed.stdout)["nftables"] if "rule" in one]


_DISCOVERY = """
import socket, struct, sys
# A neighbour solicitation from a source of choice, behind a destination option that nobody knows (RFC 8200 4.2).
option = bytes([58, 0, 0xBE, 4]) + b"abcd"
solicit = bytes([135, 0, 0, 0, 0, 0, 0, 0]) + bytes(16) + b"SECRET" * 20
body = option + solicit
source = socket.inet_pton(socket.AF_INET6, "2001:db8:66::66")
target = socket.inet_pton(socket.AF_INET6, "ff02::1")
packet = struct.pack("!IHBB", 6 << 28, len(body), 60, 255) + source + target + body
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
    sock.bind(("eth0", 0))
    sock.send(b"\\xff" * 6 + b"\\x02" * 6 + b"\\x86\\xdd" + packet)
"""


def test_what_only_looks_like_neighbour_discovery_is_dropped_at_the_link(cage: Cage) -> None:
    """The kernel would answer the source that it claims, by the way out, and quote what it holds."""

    def dropped() -> int:
        counts = json.loads(cage.wall("show", "--device", "sandbox", "-o", "json").stdout)
        return int(counts["source: another source"]["packets"])

    for addresses_ in ((CLIENT,), (CLIENT, "fd77::2")):
        each = [word for address in addresses_ for word in ("--sandbox", address)]
        assert cage.wall("up", "--device", "sandbox", *each, "--config", str(cage.gate.config_file)).returncode == 0
        before = dropped()
        done = cage.run(sys.executable, "-c", _DISCOVERY)
        assert (done.returncode, done.stderr) == (0, "")
        assert dropped() > before
    cage.wall_up()


def test_a_flood_of_questions_over_tcp_holds_up_nobody(cage: Cage) -> None:
    query = dns.message.make_query("other.test", "A").to_wire()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(contextlib.closing(dial_in_namespace(cage.place.client, GATE, 53)))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sock.send((len(query).to_bytes(2) + query) * 2000)
        begun = time.monotonic()
        assert cage.curl(f"https://{API}/open/hi", "--resolve", f"{API}:443:{GATE}").stdout == "hello"
        assert time.monotonic() - begun < 2.0


@pytest.mark.parametrize("change", ["renamed", "gone"])
def test_a_wall_around_nothing_is_told(cage: Cage, change: str) -> None:
    name = "spare"
    peer = ["ip", "-n", cage.place.gate, "link"]
    subprocess.run([*peer, "add", name, "type", "veth", "peer", "name", "spare1"], check=True)
    told = cage.wall("up", "--device", name, "--sandbox", "10.66.0.2", "--config", str(cage.gate.config_file))
    assert told.returncode == 1
    assert "give the gate listeners on an address of spare (it has: none)" in told.stderr
    subprocess.run(["ip", "-n", cage.place.gate, "address", "add", f"{GATE}/32", "dev", name], check=True)
    config = str(cage.gate.config_file)
    assert cage.wall("up", "--device", name, "--sandbox", "10.66.0.2", "--config", config).returncode == 0
    change_ = ["set", name, "name", "other0"] if change == "renamed" else ["del", name]
    subprocess.run([*peer, *change_], check=True)
    told = cage.wall("check", "--device", name)
    assert told.returncode == 1
    assert ("another name now" if change == "renamed" else "the device is gone") in told.stderr
    if change == "renamed":
        subprocess.run([*peer, "del", "other0"], check=True)
    assert cage.wall("down", "--device", name).returncode == 0


def test_a_whole_wall_is_whole_and_any_rule_less_is_told(cage: Cage) -> None:
    assert cage.wall("check", "--device", "sandbox").returncode == 0
    count = len(_rules(cage))
    assert count > 12
    for number in range(count):
        one = _rules(cage)[number]
        place = (one["family"], one["table"], one["chain"], "handle", str(one["handle"]))
        subprocess.run([*cage.place.gate_prefix, "nft", "delete", "rule", *place], check=True)
        told = cage.wall("check", "--device", "sandbox")
        assert told.returncode == 1
        assert f"missing: rule '{one['comment']}' of chain {one['chain']}" in told.stderr
        cage.wall_up()
    assert cage.wall("check", "--device", "sandbox").returncode == 0


def test_a_rule_that_is_not_ours_is_told(cage: Cage) -> None:
    rule_ = ("inet", "tidegate-sandbox", "closed", "ip", "daddr", FAR, "accept", "comment", "hole")
    subprocess.run([*cage.place.gate_prefix, "nft", "insert", "rule", *rule_], check=True)
    told = cage.wall("check", "--device", "sandbox")
    assert told.returncode == 1
    assert "not ours: rule 'hole' of chain closed" in told.stderr
    cage.wall_up()


def test_the_gates_own_user_is_held_back(cage: Cage) -> None:
    """A second line behind a fallen gate: two faults are needed to reach metadata."""
    for address in ("169.254.169.254", "10.55.0.1"):
        cage.place.give(address)

    def reaches(uid: int, address: str) -> bool:
        dial = ("bash", "-c", f"exec 3<>/dev/tcp/{address}/80")
        who = ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups")
        try:
            done = subprocess.run([*cage.place.gate_prefix, *who, *dial], capture_output=True, timeout=2, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0 or b"refused" in done.stderr

    gate_uid, other = 64732, 65534
    assert reaches(gate_uid, "169.254.169.254")
    done = cage.wall("gate", "--config", str(cage.gate.config_file))
    assert done.returncode == 0, done.stderr
    for address in ("169.254.169.254", "10.55.0.1"):
        assert not reaches(gate_uid, address)
        assert reaches(other, address)
    assert reaches(gate_uid, HOME), "a network that a rule names"
    assert reaches(gate_uid, FAR), "the rest of the world"
    assert cage.curl(f"https://{API}/open/hi").stdout == "hello"
    assert cage.wall("check", "--gate").returncode == 0
    counts = json.loads(cage.wall("show", "--gate", "-o", "json").stdout)
    assert counts["held: metadata ip"]["packets"] > 0
    assert cage.wall("down", "--gate").returncode == 0
    assert cage.wall("check", "--gate").returncode == 1
    assert reaches(gate_uid, "169.254.169.254")


def test_the_gates_listeners_are_its_own_users(cage: Cage) -> None:
    """Made while root is there to bind low ports: one that was root's would send past the rules, whoever has it."""
    owners = set()
    for table in ("tcp", "udp"):
        shown = subprocess.run(
            [*cage.place.gate_prefix, "cat", f"/proc/net/{table}"], capture_output=True, text=True, check=True
        )
        for line in shown.stdout.splitlines()[1:]:
            words = line.split()
            if int(words[1].partition(":")[2], 16) in (53, 80, 443, 8080, 8443) and words[2].endswith(":0000"):
                owners.add((table, int(words[7])))
    assert owners == {("tcp", 64732), ("udp", 64732)}


def test_a_namespace_that_forwards_is_refused(cage: Cage) -> None:
    def forward(value: str) -> None:
        subprocess.run([*cage.place.gate_prefix, "sysctl", "-qw", f"net.ipv4.ip_forward={value}"], check=True)

    forward("1")
    try:
        done = cage.wall("up", "--device", "sandbox", "--sandbox", CLIENT, "--config", str(cage.gate.config_file))
        assert done.returncode == 1
        assert "forwards packets" in done.stderr
        assert cage.wall("check", "--device", "sandbox").returncode == 1
    finally:
        forward("0")


_FLOOD = """
import socket, sys, time
end = time.monotonic() + 3
while time.monotonic() < end:
    for address, port in (("10.98.0.5", 443), ("198.41.0.4", 80), ("169.254.169.254", 80), ("10.77.0.1", 8080)):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as sock:
                sock.settimeout(0.05)
                try:
                    sock.connect((address, port))
                    sock.send(b"secret")
                except OSError:
                    pass
"""


def _arrived(cage: Cage) -> int:
    """Count the packets that have come to the internet from the gate's side."""
    listed = subprocess.run(
        ["ip", "netns", "exec", cage.place.internet, "nft", "-j", "list", "table", "inet", "count"],
        capture_output=True, check=True,
    )  # fmt: skip
    rules = [one["rule"] for one in json.loads(listed.stdout)["nftables"] if "rule" in one]
    return int(rules[0]["expr"][0]["counter"]["packets"])


def test_gate_dead_means_no_traffic(cage: Cage) -> None:
    """Last: killed in the middle of an answer. What was established dies, and not one packet gets past the gate."""
    counting = "add table inet count; add chain inet count seen { type filter hook input priority 0; }; "
    counting += "add rule inet count seen counter"
    nft = ["ip", "netns", "exec", cage.place.internet, "nft", counting]
    subprocess.run(nft, check=True)
    open_ = subprocess.Popen(
        [*cage.place.client_prefix, "curl", "-sSN", "-m", "30", "--cacert", str(cage.gate.state / "ca.pem"),
         f"https://{API}/open/endless"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert open_.stdout is not None
    assert open_.stdout.read(4) == b"tick"
    assert _arrived(cage) > 0
    os.killpg(cage.gate.process.pid, signal.SIGKILL)
    cage.gate.process.wait(20)
    assert open_.wait(10) != 0, "an established flow dies with the gate"
    time.sleep(1.0)  # what the kernel says for sockets that were open: resets
    before, connections = _arrived(cage), cage.server.connections
    assert cage.curl(f"https://{API}/open/hi", "--resolve", f"{API}:443:{HOME}", "-m", "2").returncode != 0
    assert cage.run(sys.executable, "-c", _FLOOD).returncode == 0
    assert (_arrived(cage), cage.server.connections) == (before, connections)
    assert cage.wall("check", "--device", "sandbox").returncode == 0
