"""Several sandboxes at one gate, each on a network of its own, with IPv4 and IPv6: what each reaches, and nothing else.

Real namespaces, one a sandbox; a wall around each link.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab import inside
from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.sockets import in_namespace
from tests.lab.upstream import Upstream, says, upstream
from tests.lab.world import INTERNET, Leg, World, leg, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

NAMES = ("one.allowed.test", "two.allowed.test")
HOME, FAR = "10.98.0.5", "2600:1f18::66"
LEGS = (0, 1)
PAIRS = [(0, 1), (1, 0)]


@dataclass
class Harbour:
    place: World
    gate: Gate
    legs: tuple[Leg, Leg]
    dns: DnsServer
    decoy: Upstream

    def run(self, number: int, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of one sandbox, which has no proxy variable."""
        return inside.run(self.legs[number].prefix, *command)

    def curl(self, number: int, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inside.curl(self.legs[number].prefix, self.gate.state / "ca.pem", url, *arguments)

    def ask(self, number: int, server: str, name: str, rrtype: str) -> list[str]:
        return inside.ask(self.legs[number].prefix, name, rrtype, server=server).found

    def wall(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inside.wall(self.place, *arguments)


@pytest.fixture(scope="module")
def harbour() -> Iterator[Harbour]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world(addresses=[HOME, FAR]))
        legs = tuple(stack.enter_context(leg(place, number)) for number in LEGS)
        ca = stack.enter_context(Authority())
        known = {name: addresses(HOME) for name in NAMES}
        dns = stack.enter_context(dns_server(known, address=INTERNET, port=53, bind=place.bind))
        stack.enter_context(
            upstream(ca=ca, names=NAMES, address=HOME, port=443, bind=place.bind, routes={"/hi": says(b"hello")})
        )
        decoy = stack.enter_context(upstream(ca=ca, names=NAMES, address=FAR, port=443, bind=place.bind))
        both = [address for one in legs for address in one.gate]
        config = configuration(
            allow=[],
            ca=ca,
            listen={
                key: [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in both]
                for key, port in (("http", 8080), ("tls", 443), ("dns", 53), ("transparent", 8443))
            },
            sessions={
                f"{name}-{family}": {"policy": name, "from": f"{address}/{bits}"}
                for name, one in zip(("first", "second"), legs, strict=True)
                for family, address, bits in (("four", one.own[0], 32), ("six", one.own[1], 128))
            },
        )
        config["policies"] = {
            policy: {"allow": [rule(name, addresses=["10.98.0.0/24"])]}
            for policy, name in zip(("first", "second"), NAMES, strict=True)
        }
        config["resolver"]["servers"] = [dns.address]
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        made = Harbour(place, running, (legs[0], legs[1]), dns, decoy)
        for one in legs:
            each = [word for address in one.own for word in ("--sandbox", address)]
            done = made.wall("up", "--device", one.device, *each, "--config", str(running.config_file))
            assert done.returncode == 0, done.stderr
        yield made


@pytest.mark.parametrize("number", LEGS)
@pytest.mark.parametrize("family", [0, 1], ids=["asked by IPv4", "asked by IPv6"])
def test_names_lead_to_the_gate_on_the_network_that_asks(harbour: Harbour, number: int, family: int) -> None:
    here = harbour.legs[number].gate
    before = len(harbour.dns.queries)
    for index, rrtype in enumerate(("A", "AAAA")):
        # By the family that was asked by: of the other one the sandbox may have no session.
        expected = [here[family]] if index == family else []
        assert harbour.ask(number, here[family], NAMES[number], rrtype) == expected
        assert harbour.ask(number, here[family], NAMES[1 - number], rrtype) == []
    assert len(harbour.dns.queries) == before


@pytest.mark.parametrize(("number", "family"), [(0, "four"), (1, "six")])
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_each_reaches_its_own_name_by_either_family(harbour: Harbour, number: int, family: str, version: str) -> None:
    done = harbour.curl(number, f"https://{NAMES[number]}/hi", version)
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr
    record = harbour.gate.audit(type="http", phase="end")[-1]
    assert record["session"] == f"{('first', 'second')[number]}-{family}"


@pytest.mark.parametrize("number", LEGS)
def test_whatever_ipv6_address_is_dialled_the_name_decides(harbour: Harbour, number: int) -> None:
    mine, other = NAMES[number], NAMES[1 - number]
    assert harbour.curl(number, f"https://{mine}/hi", "--resolve", f"{mine}:443:[{FAR}]").stdout == "hello"
    told = harbour.curl(number, f"https://{other}/hi", "--resolve", f"{other}:443:[{FAR}]")
    assert json.loads(told.stdout)["reason"] == "not_in_allowlist"
    assert harbour.decoy.connections == 0


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (FAR, "ip_literal"),
        ("fd00:ec2::254", "metadata"),
        ("64:ff9b::a9fe:a9fe", "metadata"),
        ("::ffff:0:169.254.169.254", "metadata"),
        ("fd78:9::1", "blocked_address"),
    ],
)
def test_an_ipv6_address_is_judged_as_an_address(harbour: Harbour, address: str, reason: str) -> None:
    told = harbour.curl(0, f"http://[{address}]/")
    assert json.loads(told.stdout)["reason"] == reason, told.stdout


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_no_sandbox_reaches_another(harbour: Harbour, one: int, other: int, family: int) -> None:
    """Neither its own address, nor the gate's end of its link: both come to the gate, which refuses them."""
    target = harbour.legs[other]
    with in_namespace(target.space)(target.own[family], 8000, 1) as listener:
        listener.listen()
        listener.settimeout(0.3)
        for address, port in ((target.own[family], 8000), (target.gate[family], 8080), (target.gate[family], 443)):
            shown = f"[{address}]" if ":" in address else address
            told = json.loads(harbour.curl(one, f"http://{shown}:{port}/").stdout)
            assert told["reason"] in ("loop", "self_or_gateway", "blocked_address"), told
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_no_sandbox_speaks_as_another(harbour: Harbour, one: int, other: int, family: int) -> None:
    """With the other's address for its own, nothing of it comes in; with the other's token it is refused."""
    mine, theirs = harbour.legs[one], harbour.legs[other]
    address, wide = theirs.own[family], "128" if family else "32"
    move = ["ip", "-n", mine.space, "address"]

    def dropped() -> int:
        counts = json.loads(harbour.wall("show", "--device", mine.device, "-o", "json").stdout)
        return int(counts["source: another source"]["packets"])

    before = dropped()
    subprocess.run([*move, "add", f"{address}/{wide}", "dev", "eth0", *(["nodad"] if family else [])], check=True)
    try:
        done = harbour.curl(one, f"https://{NAMES[other]}/hi", "--interface", address, "-m", "2",
                            "--resolve", f"{NAMES[other]}:443:{_shown(mine.gate[family])}")  # fmt: skip
        assert done.returncode == 28, done.stdout + done.stderr
    finally:
        subprocess.run([*move, "del", f"{address}/{wide}", "dev", "eth0"], check=True)
    assert dropped() > before


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_token_of_another_is_refused_and_an_incident(harbour: Harbour, one: int, other: int) -> None:
    opened = harbour.gate.session(policy=("first", "second")[other])
    proxy = f"http://s:{opened.token}@{harbour.legs[one].gate[0]}:8080"
    done = harbour.curl(one, f"https://{NAMES[other]}/hi", "-x", proxy)
    assert done.returncode != 0
    assert "403" in done.stderr
    session = harbour.gate.wait_audit(type="incident", reason="session_misplaced", session=opened.id)
    assert len(session) == 1


@pytest.mark.parametrize("number", LEGS)
def test_a_sandboxs_own_environment_names_the_gate_on_its_network(harbour: Harbour, number: int) -> None:
    for family, name in enumerate(("four", "six")):
        env = Path(harbour.gate.state, "sandbox", f"{('first', 'second')[number]}-{name}", "env").read_text()
        assert f"//{_shown(harbour.legs[number].gate[family])}:8080" in env


@pytest.mark.parametrize("number", LEGS)
def test_each_wall_is_whole(harbour: Harbour, number: int) -> None:
    told = harbour.wall("check", "--device", harbour.legs[number].device)
    assert told.returncode == 0, told.stderr


def _shown(address: str) -> str:
    return f"[{address}]" if ":" in address else address
