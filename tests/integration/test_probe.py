"""The probe from inside a walled namespace: nothing is open, and without any one rule that holds something it is red.

Longer than a module should be, since the table is the test. The rules are those of `tidegate_launcher.wall.link`;
`FATES` says of each what its loss does:

| fate | what the rule does | what its loss does |
|---|---|---|
| `opens` | drops | a way is open: the probe is red |
| `held` | drops | nothing yet, others hold it too; with those gone it makes the difference |
| `shuts` | lets something in, or sends it to the gate | less gets in: the probe stays green, and says so |
| `names` | drops, under a name of its own | the next rule drops the same: nothing is open |
| `bounds` | drops what comes too often | the kernel keeps more than it should for the link: a test of its own |
| `tells` | logs | nobody is told: what is dropped stays dropped |
"""

import ast
import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any, Literal

import pytest

from tests.lab.gate import environment, tidegate_command
from tests.lab.walled import CLIENT6, DEVICE, PORTS, Walled, walled
from tests.lab.world import CLIENT, GATE, why_no_world
from tidegate_launcher.wall.link import Link, table_name, transaction

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

LINK = Link(
    device=DEVICE,
    sandbox=(ip_address(CLIENT), ip_address(CLIENT6)),
    listeners=tuple((ip_address(GATE), port) for port in (PORTS["http"], PORTS["tls"], 80)),
    transparent=((ip_address(GATE), PORTS["transparent"]),),
    dns=((ip_address(GATE), PORTS["dns"]),),
)
"""What `Walled` puts up; a test sees to it that it is the same."""
MOST_SECONDS = 30.0


@pytest.fixture(scope="module")
def place() -> Iterator[Walled]:
    with walled() as made:
        yield made


def opened(report: dict[str, Any]) -> set[str]:
    return {way["way"] for way in report["ways"] if way["state"] == "open"}


def only(*kinds: str) -> list[str]:
    return [word for kind in kinds for word in ("--only", kind)]


# -- the whole wall --------------------------------------------------------------------------------


def test_nothing_is_open_behind_the_wall_and_all_of_it_was_tried(place: Walled) -> None:
    begun = time.monotonic()
    code, report = place.probe("--flood", *place.through_gate())
    assert time.monotonic() - begun < MOST_SECONDS
    assert [way for way in report["ways"] if way["state"] != "closed"] == []
    assert (code, report["verdict"]) == (0, "closed")
    assert len(report["ways"]) > 300


def test_what_was_closed_was_closed_by_the_gate_and_not_by_the_bound_on_connections(place: Walled) -> None:
    before = place.dropped()
    _, report = place.probe(*place.through_gate())
    after = place.dropped()
    for rule in ("closed: too fast", "closed: too many"):
        assert after[rule] == before[rule]
    told = {way["evidence"] for way in report["ways"] if way["kind"] in ("name", "smuggling")}
    assert told <= {
        *(f"the gate refused: {word}" for word in ("ambiguous", "ambiguous_host", "authority_mismatch")),
        *(f"the gate refused: {word}" for word in ("malformed_target", "not_in_allowlist", "sni_mismatch")),
        "closed without an answer",
        "the handshake was refused with an alert",
    }


def test_the_server_of_the_allowed_name_saw_good_requests_alone(place: Walled) -> None:
    place.server.reset()
    place.probe(*place.through_gate(), *only("name", "smuggling", "h2", "proxy"))
    assert place.server.requests
    assert {(request.method, request.target) for request in place.server.requests} == {("GET", "/echo")}


def test_without_something_allowed_nothing_is_said_of_the_ways_through_the_gate(place: Walled) -> None:
    code, report = place.probe(*only("name", "smuggling", "h2"))
    assert code == 0
    assert {(way["state"], way["evidence"]) for way in report["ways"]} == {
        ("not testable", "no allowed name to try with: --allowed NAME")
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(
            ["--allowed", "api.allowed.test:444/echo", "--proxy", f"http://{GATE}:8080"], "port_not_allowed", id="port"
        ),
        pytest.param(["--allowed", "other.test", "--proxy", f"http://{GATE}:8080"], "not_in_allowlist", id="name"),
        pytest.param(
            ["--allowed", "api.allowed.test/echo", "--proxy", f"http://s:wrong@{GATE}:8080"], "session_invalid", id="us"
        ),
    ],
)
def test_a_refusal_of_the_good_request_proves_nothing(place: Walled, options: list[str], told: str) -> None:
    _, report = place.probe(*options, *only("name", "smuggling"))
    tunnels = [way for way in report["ways"] if way["way"].endswith("tunnel")]
    assert {way["state"] for way in tunnels} == {"not testable"}
    assert all(told in way["evidence"] for way in tunnels)


def test_a_name_that_is_allowed_after_all_is_open(place: Walled) -> None:
    """«Denied» names are asked for alone too: were one allowed, a mismatch would prove nothing."""
    code, report = place.probe("--denied", "api.allowed.test", *place.through_gate(), *only("name"))
    assert code == 1
    assert "server name of another, Host too, by name" in opened(report)


# -- each rule -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fate:
    """What the loss of a rule does, why, and how the probe tells."""

    kind: Literal["opens", "held", "names", "bounds", "shuts", "tells"]
    why: str
    way: str = ""
    """opens, held: the way that is open then; shuts: a pattern of «way: evidence» that is there then."""
    others: tuple[str, ...] = ()
    """held: what else must be gone."""


ECHO, BEYOND = f"echo of the gateway {GATE}", "echo of 1.1.1.1"
FORWARDING = "the kernel's switch"
SOURCE_POLICY = "the chain's policy"
_LOG = Fate("tells", "it logs, and drops nothing")
_V6 = "no listener stands on IPv6, so that of IPv6 all else is dropped anyway"
FATES = {
    "source: arp": Fate("shuts", "the sandbox cannot find the gate", "another source address: no gateway answers"),
    "source: neighbour discovery": Fate("shuts", _V6, ""),
    "source: duplicate address detection": Fate("shuts", _V6, ""),
    "source: own ip": Fate("shuts", "the sandbox is not heard", "tunnel: the good request: timed out"),
    "source: own ip6": Fate("shuts", _V6, ""),
    "source: another source, logged": _LOG,
    "source: another source": Fate(
        "held", "the chain lets through only what a rule names", "another source address", (SOURCE_POLICY,)
    ),
    "source: another header, logged": _LOG,
    "source: another header": Fate("names", "what it drops the next rule drops as well, by a name that fits less"),
    "capture: dns udp ip": Fate("shuts", "a question to others is dropped", "^UDP 53 of 1.1.1.1: timed out"),
    "capture: dns tcp ip": Fate("shuts", "a question to others is taken for HTTP", "^TCP 53 of 1.1.1.1: no answer"),
    f"capture: {GATE}:8080": Fate("shuts", "the transparent listener takes it", "tunnel: .*refuses.*: loop"),
    f"capture: {GATE}:443": Fate("shuts", "the transparent listener takes it, and judges alike", ""),
    f"capture: {GATE}:80": Fate("shuts", "the transparent listener takes it, and judges alike", ""),
    "capture: all tcp ip": Fate("shuts", "it is dropped as all else", "any address: the good request: timed out"),
    "closed: other links": Fate("shuts", "the gate's own connections are dropped", "tunnel: .*had no answer"),
    "closed: neighbour discovery": Fate("shuts", _V6, ""),
    "closed: too many, logged": _LOG,
    "closed: too many": Fate("opens", "nobody else counts connections", "1100 connections at once"),
    "closed: too fast": Fate("opens", "nobody else counts new ones", "520 connections in half a second"),
    "closed: too many questions, logged": _LOG,
    "closed: too many questions": Fate("bounds", "nobody else counts them, and the probe does not ask for so long"),
    f"closed: dns {GATE}:53": Fate("shuts", "questions are dropped", f"^UDP 53 of {GATE}: timed out"),
    f"closed: {GATE}:8080": Fate("shuts", "the proxy is not reached", "tunnel: the good request: timed out"),
    f"closed: {GATE}:443": Fate("shuts", "names lead nowhere", "by name: the good request: timed out"),
    f"closed: {GATE}:80": Fate("shuts", "HTTP by name leads nowhere", f"^TCP 80 of the gateway {GATE}: timed out"),
    f"closed: {GATE}:8443": Fate("shuts", "what is captured is dropped", "any address: the good request: timed out"),
    f"closed: {GATE}:53": Fate("shuts", "questions over TCP are dropped", f"^TCP 53 of {GATE}: timed out"),
    "closed: everything else, logged": _LOG,
    "closed: everything else": Fate("opens", "the gate's own machine answers", ECHO),
    "forward: nothing in": Fate(
        "held", "`wall up` wants no forwarding, and nothing is left to forward", BEYOND,
        (FORWARDING, "closed: everything else", "forward: nothing out"),
    ),
    "forward: nothing out": Fate(
        "held", "the same, and nothing was let in that could be answered", BEYOND,
        (FORWARDING, "closed: everything else", "forward: nothing in"),
    ),
}  # fmt: skip


def _rules(link: Link) -> dict[str, list[Any]]:
    """Return the rules that the wall is made of: «chain: comment» and the expressions."""
    steps: list[Any] = transaction(link)["nftables"]  # type: ignore[assignment]
    rules = [step["add"]["rule"] for step in steps if "rule" in step.get("add", {})]
    return {f"{rule['chain']}: {rule['comment']}": rule["expr"] for rule in rules}


RULES = _rules(LINK)


def _standing(place: Walled) -> list[dict[str, Any]]:
    listed = json.loads(place.at_gate("nft", "-j", "list", "ruleset"))["nftables"]
    return [one["rule"] for one in listed if one.get("rule", {}).get("table") == table_name(DEVICE)]


def _remove(place: Walled, name: str) -> None:
    if name == FORWARDING:
        place.at_gate("sysctl", "-qw", "net.ipv4.ip_forward=1")
        return
    if name == SOURCE_POLICY:
        place.at_gate("nft", f"chain netdev {table_name(DEVICE)} source {{ policy accept; }}")
        return
    [rule] = [one for one in _standing(place) if f"{one['chain']}: {one['comment']}" == name]
    where = (rule["family"], rule["table"], rule["chain"], "handle", str(rule["handle"]))
    place.at_gate("nft", "delete", "rule", *where)


@pytest.fixture
def holed(place: Walled) -> Iterator[Callable[[str], None]]:
    """Return what removes a rule; at the end the wall is whole again."""
    yield lambda name: _remove(place, name)
    place.at_gate("sysctl", "-qw", "net.ipv4.ip_forward=0")
    place.wall_up()
    assert place.wall("check", "--device", DEVICE).returncode == 0


def test_the_rules_are_those_that_stand(place: Walled) -> None:
    assert sorted(RULES) == sorted(f"{one['chain']}: {one['comment']}" for one in _standing(place))


def test_every_rule_has_a_fate_and_no_rule_that_drops_is_let_off(place: Walled) -> None:
    assert set(FATES) == set(RULES)
    for name, expressions in RULES.items():
        words = {word for expression in expressions for word in expression}
        if "drop" in words:
            assert FATES[name].kind in ("opens", "held", "names", "bounds"), name
        elif "log" in words:
            assert FATES[name].kind == "tells", name
        else:
            assert words & {"accept", "dnat"}, name
            assert FATES[name].kind == "shuts", name


def _named(kind: str) -> list[str]:
    return [name for name in RULES if FATES.get(name, _LOG).kind == kind]


def _missing(place: Walled, name: str) -> bool:
    """Return whether `wall check` says that the rule is gone."""
    told = place.wall("check", "--device", DEVICE)
    chain, _, comment = name.partition(": ")
    return told.returncode == 1 and f"missing: rule '{comment}' of chain {chain}" in told.stderr


QUICK = ("--seconds", "1")
AROUND = only("direct", "host", "dns", "udp", "icmp", "ip", "link")


@pytest.mark.parametrize("name", _named("opens"))
def test_without_the_rule_the_probe_is_red(place: Walled, holed: Callable[[str], None], name: str) -> None:
    holed(name)
    assert _missing(place, name)
    flood = FATES[name].way.endswith(("at once", "second"))
    code, report = place.probe(*(["--flood", *only("flood")] if flood else [*QUICK, *AROUND]))
    assert code == 1
    assert FATES[name].way in opened(report)


@pytest.mark.parametrize("name", _named("held"))
def test_what_others_hold_too_is_held_by_the_rule_alone_once_they_are_gone(
    place: Walled, holed: Callable[[str], None], name: str
) -> None:
    fate = FATES[name]
    for other in fate.others:
        holed(other)
    _, report = place.probe(*QUICK, *only("icmp", "link"))
    assert fate.way not in opened(report), "the rule holds"
    holed(name)
    assert _missing(place, name)
    code, report = place.probe(*QUICK, *only("icmp", "link"))
    assert code == 1
    assert fate.way in opened(report)


@pytest.mark.parametrize("name", [*_named("held"), *_named("names")])
def test_what_others_hold_too_stays_closed_without_the_rule(
    place: Walled, holed: Callable[[str], None], name: str
) -> None:
    holed(name)
    assert _missing(place, name)
    code, report = place.probe(*QUICK, *AROUND)
    assert (code, opened(report)) == (0, set())


@pytest.mark.parametrize("name", _named("shuts"))
def test_without_a_rule_that_lets_in_less_gets_in(place: Walled, holed: Callable[[str], None], name: str) -> None:
    holed(name)
    assert _missing(place, name)
    code, report = place.probe(*QUICK, *place.through_gate(), *AROUND, *only("name"))
    assert (code, opened(report)) == (0, set())
    told = [f"{way['way']}: {way['evidence']}" for way in report["ways"]]
    assert any(re.search(FATES[name].way, line) for line in told), told


_QUESTIONS = """
import socket, time
query = bytes.fromhex("000101000001000000000000") + b"\\x05other\\x04test\\x00\\x00\\x01\\x00\\x01"
begun = time.monotonic()
for number in range(4700):  # each from a port of its own, and no faster than the wall lets a link ask
    time.sleep(max(0.0, begun + number / 450 - time.monotonic()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 20000 + number))
        sock.sendto(query, ("8.8.8.8", 53))
"""


_FORGET = """
import socket, struct
# Delete every entry of connection tracking: IPCTNL_MSG_CT_DELETE (linux/netfilter/nfnetlink_conntrack.h).
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as sock:
    sock.bind((0, 0))
    sock.send(struct.pack("=IHHII", 20, 1 << 8 | 2, 5, 1, 0) + bytes(4))
    code, = struct.unpack_from("=i", sock.recv(4096), 16)
    raise SystemExit(code)
"""
_COUNT = "add table inet asked; add chain inet asked here { type filter hook input priority 0; }; "
_COUNT += "add rule inet asked here udp dport 53 counter"


def _asked(place: Walled) -> int:
    """Ask from 4,700 ports within ten seconds; return how many questions came in. The kernel forgets them again."""
    place.at_gate(sys.executable, "-c", _FORGET)
    place.at_gate("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=60")
    place.at_gate("nft", _COUNT)
    subprocess.run([*place.place.client_prefix, sys.executable, "-c", _QUESTIONS], check=True, timeout=60)
    listed = json.loads(place.at_gate("nft", "-j", "list", "table", "inet", "asked"))["nftables"]
    place.at_gate("nft", "delete table inet asked")
    [rule] = [one["rule"] for one in listed if "rule" in one]
    place.at_gate(sys.executable, "-c", _FORGET)
    return int(rule["expr"][-1]["counter"]["packets"])


_ODD_HEADER = """
import socket, struct, sys
# A hop-by-hop option that nobody knows and that asks for an answer (RFC 8200 section 4.2).
body = bytes([59, 0, 0x9E, 4]) + b"abcd"
ends = socket.inet_pton(socket.AF_INET6, sys.argv[1]) + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
packet = struct.pack("!IHBB", 6 << 28, len(body), 0, 64) + ends + body
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
    sock.bind(("eth0", 0))
    sock.send(b"\\xff" * 6 + b"\\x02" * 6 + b"\\x86\\xdd" + packet)
"""


@pytest.mark.parametrize("name", _named("bounds"))
def test_questions_from_ever_new_ports_are_bounded_by_the_rule_alone(
    place: Walled, holed: Callable[[str], None], name: str
) -> None:
    answered = _asked(place)
    assert 4000 < answered < 4200
    assert place.dropped()[name] > 400
    holed(name)
    assert _missing(place, name)
    assert _asked(place) > 4600


@pytest.mark.parametrize("name", _named("tells"))
def test_without_a_rule_that_logs_all_is_dropped_and_counted(
    place: Walled, holed: Callable[[str], None], name: str
) -> None:
    holed(name)
    assert _missing(place, name)
    before = place.dropped()
    counter = name.removesuffix(", logged")
    if FATES[counter].kind == "bounds":
        assert _asked(place) < 4200
    elif FATES[counter].kind == "names":
        subprocess.run([*place.place.client_prefix, sys.executable, "-c", _ODD_HEADER, CLIENT6], check=True, timeout=20)
    else:
        flood = "many" in name
        code, report = place.probe(*(["--flood", *only("flood")] if flood else [*QUICK, *AROUND]))
        assert (code, opened(report)) == (0, set())
    assert place.dropped()[counter] > before[counter]


def test_a_gate_that_is_gone_opens_nothing(place: Walled) -> None:
    """Last: gate dead means no traffic, and nothing is claimed of the ways through it."""
    place.gate.process.terminate()
    place.gate.process.wait(20)
    code, report = place.probe(*QUICK, *place.through_gate())
    assert (code, opened(report)) == (0, set())
    through = [way for way in report["ways"] if way["kind"] in ("name", "smuggling", "h2")]
    assert {way["state"] for way in through} == {"not testable"}


# -- one file --------------------------------------------------------------------------------------


def test_the_program_is_one_file_for_any_python_from_3_8() -> None:
    emitted = subprocess.run(tidegate_command("probe", "--emit"), capture_output=True, env=environment(), check=True)
    tree = ast.parse(emitted.stdout, feature_version=(3, 8))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    modules = {alias.name for node in named for alias in node.names if isinstance(node, ast.Import)}
    modules |= {str(node.module) for node in named if isinstance(node, ast.ImportFrom)}
    assert not [name for name in modules if name.startswith("tidegate")]
