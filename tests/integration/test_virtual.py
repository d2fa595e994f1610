"""Raw protocols by name: the sandbox's DNS gives each name an address of its own, and whoever dials it named the name.

Servers that speak first, at one port of several addresses; two sandboxes, both families, two workers.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import pytest

from tests.lab import inside
from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.gate import Gate, configuration, environment, gate, rule, tidegate_command
from tests.lab.sockets import dial_in_namespace
from tests.lab.upstream import says, upstream
from tests.lab.world import INTERNET, Leg, World, leg, why_no_world, world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

ONE, TWO, WEB, FORBIDDEN = "one.db.test", "two.db.test", "web.allowed.test", "other.test"
HOMES = {ONE: "10.98.0.5", TWO: "10.98.0.6", WEB: "10.98.0.7"}
PORT = 5432
ENDS: dict[str, list[str]] = {}
"""How the connections of each server ended, as it saw it."""
VIRTUAL = (ip_network("198.18.0.0/15"), ip_network("fd7a:7469:6465::/64"))


@contextlib.contextmanager
def _greeter(place: World, address: str, name: str) -> Iterator[list[int]]:
    """Serve a protocol whose server speaks first; yield a count of connections."""
    listener = place.bind(address, PORT, socket.SOCK_STREAM)
    listener.listen(16)
    listener.settimeout(60)
    seen: list[int] = []
    ends = ENDS[name] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                seen.append(1)
                connection.settimeout(10)
                connection.sendall(f"{name} ready\n".encode())
                try:
                    while data := connection.recv(4096):
                        connection.sendall(data)
                    ends.append("in order")
                except ConnectionResetError:
                    ends.append("reset")
                except OSError:
                    ends.append("otherwise")
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


@dataclass
class Harbour:
    place: World
    gate: Gate
    legs: tuple[Leg, Leg]
    dns: DnsServer
    greeted: dict[str, list[int]]

    def ask(self, number: int, name: str, rrtype: str = "A") -> list[str]:
        here = self.legs[number]
        return inside.ask(here.prefix, name, rrtype, server=here.gate[rrtype == "AAAA"]).found

    def address(self, number: int, name: str, rrtype: str = "A") -> str:
        [found] = self.ask(number, name, rrtype)
        return found

    def curl(self, number: int, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return inside.curl(self.legs[number].prefix, self.gate.state / "ca.pem", url, *arguments)

    def talk(self, number: int, address: str, port: int = PORT, say: bytes = b"") -> bytes:
        """Dial as a sandbox; return what is said first, and what comes back for `say`."""
        with contextlib.closing(dial_in_namespace(self.legs[number].space, address, port)) as sock:
            sock.settimeout(15)
            heard = b""
            with contextlib.suppress(ConnectionError):
                heard = sock.recv(100)
                if say and heard:
                    sock.sendall(say)
                    heard += sock.recv(100)
            return heard


@pytest.fixture(scope="module")
def harbour() -> Iterator[Harbour]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world(addresses=list(HOMES.values())))
        legs = (stack.enter_context(leg(place, 0)), stack.enter_context(leg(place, 1)))
        ca = stack.enter_context(Authority())
        known = {name: addresses(home) for name, home in HOMES.items()}
        dns = stack.enter_context(dns_server(known, address=INTERNET, port=53, bind=place.bind))
        greeted = {name: stack.enter_context(_greeter(place, HOMES[name], name)) for name in (ONE, TWO)}
        stack.enter_context(
            upstream(ca=ca, names=(WEB,), address=HOMES[WEB], port=443, bind=place.bind, routes={"/": says(b"web")})
        )
        stack.enter_context(upstream(address=HOMES[WEB], port=80, bind=place.bind, routes={"/": says(b"web")}))
        both = [address for one in legs for address in one.gate]
        lab = {"addresses": ["10.98.0.0/24"]}
        config = configuration(
            dns=dns,
            allow=[
                rule(ONE, protocol="tcp", port=PORT, **lab),
                rule(TWO, protocol="tcp", port=PORT, limits={"upload_bytes_per_hour": 100_000}, **lab),
                rule(WEB, **lab),
                rule(WEB, protocol="http", **lab),
            ],
            ca=ca,
            listen={
                key: [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in both]
                for key, port in (("dns", 53), ("transparent", 8443))
            },
            sessions={
                f"{name}-{family}": {"policy": "default", "from": f"{address}/{bits}"}
                for name, one in zip(("first", "second"), legs, strict=True)
                for family, address, bits in (("four", one.own[0], 32), ("six", one.own[1], 128))
            },
        )
        config |= {"dns": {"answer": "virtual"}, "workers": 2}
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        for one in legs:
            each = [word for address in one.own for word in ("--sandbox", address)]
            subprocess.run(
                [*place.gate_prefix, *tidegate_command("wall", "up", "--device", one.device, *each),
                 "--config", str(running.config_file)],
                env=environment(), timeout=40, check=True,
            )  # fmt: skip
        yield Harbour(place, running, legs, dns, greeted)


# -- answers ---------------------------------------------------------------------------------------


def test_each_name_has_an_address_of_its_own_and_keeps_it(harbour: Harbour) -> None:
    before = len(harbour.dns.queries)
    found = {name: [harbour.address(0, name) for _ in range(12)] for name in (ONE, TWO, WEB)}
    assert all(len(set(one)) == 1 for one in found.values()), "the same from every worker"
    assert len({one[0] for one in found.values()}) == 3
    assert all(ip_address(one[0]) in VIRTUAL[0] for one in found.values())
    assert ip_address(harbour.address(0, ONE, "AAAA")) in VIRTUAL[1]
    assert harbour.ask(0, FORBIDDEN) == []
    assert len(harbour.dns.queries) == before, "a question caused a packet"
    told = harbour.gate.audit(type="dns")[-2]
    assert told["dns"]["answer"] == [harbour.address(0, ONE, "AAAA")]


# -- raw TCP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ONE, TWO])
@pytest.mark.parametrize("rrtype", ["A", "AAAA"])
def test_a_server_that_speaks_first_is_reached_by_name(harbour: Harbour, name: str, rrtype: str) -> None:
    for _ in range(6):  # whichever worker takes it
        heard = harbour.talk(0, harbour.address(0, name, rrtype), say=b"hello")
        assert heard == f"{name} ready\nhello".encode()
    end = harbour.gate.wait_audit(type="conn", phase="end")[-1]
    assert (end["conn"]["name"], end["conn"]["port"], end["verdict"]) == (name, PORT, "allow")
    assert end["conn"]["address"] == HOMES[name]
    assert end["session"] == f"first-{'four' if rrtype == 'A' else 'six'}"
    assert end["rule"] is not None
    assert (end["conn"]["bytes_up"], end["conn"]["bytes_down"]) == (5, len(name) + 12)


def test_what_goes_over_the_budget_ends_by_a_reset(harbour: Harbour) -> None:
    """Half of an upload must not look like the whole of it to a server that reads until the end."""
    with contextlib.closing(dial_in_namespace(harbour.legs[1].space, harbour.address(1, TWO), PORT)) as sock:
        sock.settimeout(10)
        sock.recv(100)
        with contextlib.suppress(OSError):
            for _ in range(60):
                sock.sendall(b"x" * 4096)
                sock.recv(65536)
    deadline = time.monotonic() + 10
    while "reset" not in ENDS[TWO]:
        assert time.monotonic() < deadline, ENDS[TWO]
        time.sleep(0.05)
    ends = [one["conn"] for one in harbour.gate.audit(type="conn", phase="end") if one["conn"]["end"] == "budget"]
    assert [one["bytes_up"] <= 100_000 for one in ends] == [True]


def test_a_port_that_the_rule_does_not_name_is_refused(harbour: Harbour) -> None:
    before = [len(seen) for seen in harbour.greeted.values()]
    assert harbour.talk(0, harbour.address(0, ONE), 22) == b""
    assert [len(seen) for seen in harbour.greeted.values()] == before


def test_an_address_that_nobody_was_given_names_nothing(harbour: Harbour) -> None:
    with contextlib.closing(dial_in_namespace(harbour.legs[0].space, "198.19.255.1", PORT)) as sock:
        sock.settimeout(15)
        sock.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
        assert sock.recv(100) == b""
    assert harbour.gate.wait_audit(type="conn", phase="end")[-1]["reason"] == "not_http"


def test_an_address_of_another_sandbox_names_nothing_here(harbour: Harbour) -> None:
    """Numbers are a session's own: the second has asked for two only, so that it has only its own two names."""
    mine = harbour.address(1, TWO)
    assert harbour.talk(1, mine).startswith(TWO.encode())
    theirs = {harbour.address(0, name) for name in (ONE, TWO, WEB)} - {mine}
    for address in theirs:
        before = len(harbour.greeted[ONE])
        with contextlib.closing(dial_in_namespace(harbour.legs[1].space, address, PORT)) as sock:
            sock.settimeout(15)
            sock.sendall(b"\x00\x00\x00\x08")
            assert sock.recv(100) == b""
        assert len(harbour.greeted[ONE]) == before


def test_a_name_keeps_its_address_when_keeper_and_workers_come_back(harbour: Harbour) -> None:
    before = {name: harbour.address(0, name) for name in (ONE, TWO, WEB)}
    status = harbour.gate.admin("GET", "/v1/status")[1]
    for worker in status["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    keeper = subprocess.run(["pgrep", "-f", "-P", str(harbour.gate.process.pid), "tidegate.keeper.__main__"],
                            capture_output=True, text=True, check=True)  # fmt: skip
    for pid in keeper.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + 30
    time.sleep(0.5)
    while harbour.gate.admin("GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline, harbour.gate.stderr[-2000:]
        time.sleep(0.1)
    assert harbour.talk(0, before[TWO]).startswith(TWO.encode()), "without asking first"
    assert {name: harbour.address(0, name) for name in reversed(before)} == before


# -- what is not raw -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_http_and_tls_go_as_ever(harbour: Harbour, scheme: str, number: int) -> None:
    done = harbour.curl(number, f"{scheme}://{WEB}/")
    assert (done.returncode, done.stdout) == (0, "web"), done.stderr


def test_tls_without_a_server_name_is_for_the_name_that_was_dialled(harbour: Harbour) -> None:
    script = (
        "import socket, ssl, sys\n"
        "context = ssl.create_default_context(cafile=sys.argv[3])\n"
        "context.check_hostname = False\n"
        "with context.wrap_socket(socket.create_connection((sys.argv[1], 443), 10)) as sock:\n"
        "    sock.sendall(f'GET / HTTP/1.1\\r\\nHost: {sys.argv[2]}\\r\\n\\r\\n'.encode())\n"
        "    print(sock.recv(9999).decode(), sock.getpeercert()['subjectAltName'])\n"
    )
    command = [sys.executable, "-c", script, harbour.address(0, WEB), WEB, str(harbour.gate.state / "ca.pem")]
    done = subprocess.run([*harbour.legs[0].prefix, *command], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith("HTTP/1.1 200"), done.stdout + done.stderr
    assert f"('DNS', '{WEB}')" in done.stdout


def test_P_05_a_server_name_other_than_the_one_dialled_is_refused(harbour: Harbour) -> None:
    database = harbour.address(0, ONE)
    told = harbour.curl(0, f"https://{WEB}:{PORT}/", "--resolve", f"{WEB}:{PORT}:{database}")
    assert told.returncode != 0, "opaque: the database's server is reached, which speaks no TLS"
    told = harbour.curl(0, f"https://{ONE}/", "--resolve", f"{ONE}:443:{harbour.address(0, WEB)}")
    assert json.loads(told.stdout)["reason"] == "sni_mismatch"
    told = harbour.curl(0, f"http://{ONE}/", "--resolve", f"{ONE}:80:{harbour.address(0, WEB)}")
    assert json.loads(told.stdout)["reason"] == "authority_mismatch"
