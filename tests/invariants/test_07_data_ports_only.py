"""Invariant 7: the sandbox can reach the gate's data ports and nothing else.

Here for the gate itself: what it listens on, and that it cannot be made to reach its own machine for a client. The
walls around a sandbox have tests of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bypass.arena import Arena, make_arena
from tests.lab.client import fetch
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import configuration, gate, rule
from tests.lab.sockets import free_port
from tidegate.runtime.own import own_addresses

LISTEN = "0A"


@pytest.fixture(scope="module", name="arena")
def running_arena() -> Iterator[Arena]:
    with make_arena() as made:
        yield made


def _family(leader: int) -> set[int]:
    """Return a process and all that descend from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found, size = {leader}, 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _sockets(pid: int) -> set[str]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def _rows(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield local port, state and inode of each row."""
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        yield str(int(fields[1].rpartition(":")[2], 16)), fields[3], fields[9]


@pytest.mark.usefixtures("as_root")
def test_the_gate_listens_on_its_data_port_and_on_no_other(arena: Arena) -> None:
    mine = set().union(*(_sockets(pid) for pid in _family(arena.gate.process.pid)))
    rows = [row for table in ("tcp", "tcp6") for row in _rows(table)]
    assert {port for port, state, inode in rows if state == LISTEN and inode in mine} == {str(arena.gate.port)}
    assert not [port for table in ("udp", "udp6", "raw", "raw6") for port, _, inode in _rows(table) if inode in mine]


def test_the_admin_socket_is_a_file_that_others_cannot_open(arena: Arena) -> None:
    assert (arena.gate.state / "admin.sock").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("way", ["connect", "absolute"])
def test_no_address_of_the_gates_machine_is_reachable_through_it(arena: Arena, way: str) -> None:
    for address in sorted(own_addresses()):
        if "%" in address:
            continue
        host = f"[{address}]" if ":" in address else address
        for port in (arena.gate.port, arena.one.port):
            with arena.quiet(), arena.connect() as raw:
                name = f"{host}:{port}".encode()
                line = b"CONNECT %b HTTP/1.1" % name if way == "connect" else b"GET http://%b/ HTTP/1.1" % name
                raw.send(b"%b\r\nHost: %b\r\n%b\r\n" % (line, name, arena.proof))
                reply = raw.reply(method="CONNECT" if way == "connect" else "GET")
                arena.story(raw)
            assert reply.status == 403, (name, reply)


def test_a_rule_for_loopback_does_not_open_the_data_port() -> None:
    port = free_port()
    with dns_server({"self.test": addresses("127.0.0.1")}) as dns:
        config = configuration(allow=[rule("self.test", port=port)], dns=dns)
        with gate(config, port=port) as running:
            ca = running.state / "ca.pem"
            reply = fetch(running, "self.test", port, token=running.session().token, ca=ca)
            ended = running.wait_audit(flow=reply.json()["request_id"], phase="end")
    assert ended[0]["reason"] == "self_or_gateway"
    assert (reply.status, reply.reason) == (403, "self_or_gateway")
