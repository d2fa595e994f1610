"""Invariant 3: the address dialled is the address checked; one look-up a connection attempt."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.lab.certs import Authority
from tests.lab.client import fetch
from tests.lab.dns import DnsServer, addresses, dns_server, sequence
from tests.lab.gate import Gate, Session, configuration, gate
from tests.lab.sockets import free_port
from tests.lab.upstream import Upstream, upstream

NAME = "moving.test"
PLACES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@dataclass
class Moving:
    gate: Gate
    session: Session
    dns: DnsServer
    servers: dict[str, Upstream]

    @property
    def port(self) -> int:
        return self.servers[PLACES[0]].port

    def ask(self) -> tuple[int, str]:
        """Make a request over a connection of its own; return its status and the reason of a refusal."""
        reply = fetch(self.gate, NAME, self.port, "/echo", token=self.session.token, ca=self.gate.state / "ca.pem")
        return reply.status, reply.json().get("reason", "")

    def reached(self) -> list[str]:
        return [place for place, server in self.servers.items() if server.requests]

    def reset(self) -> None:
        self.dns.reset()
        for server in self.servers.values():
            server.reset()


@pytest.fixture(scope="module")
def moving() -> Iterator[Moving]:
    port = free_port()
    with (
        Authority() as ca,
        dns_server({NAME: addresses(PLACES[0], ttl=0)}) as dns,
        upstream(ca=ca, names=(NAME,), address=PLACES[0], port=port) as one,
        upstream(ca=ca, names=(NAME,), address=PLACES[1], port=port) as two,
        upstream(ca=ca, names=(NAME,), address=PLACES[2], port=port) as three,
    ):
        allow = [{"host": NAME, "ports": [port], "addresses": ["127.0.0.1/32", "127.0.0.2/32"]}]
        with gate(configuration(allow=allow, dns=dns, ca=ca)) as running:
            yield Moving(running, running.session(), dns, dict(zip(PLACES, (one, two, three), strict=True)))


def test_what_is_recorded_as_vetted_is_what_was_reached(moving: Moving) -> None:
    moving.dns.set(NAME, sequence(*(addresses(PLACES[n // 2 % 2], ttl=0) for n in range(12))))
    for _ in range(4):
        moving.reset()
        before = len(moving.gate.audit(type="conn", phase="end"))
        assert moving.ask()[0] == 200
        ends = moving.gate.wait_audit(lambda lines, n=before: len(lines) > n, type="conn", phase="end")
        conn = ends[-1]["conn"]
        assert moving.reached() == [conn["address"]]
        assert conn["vetted"] == [conn["address"]]
        assert moving.dns.count(NAME, rrtype="A") == 1
        assert moving.dns.count(NAME, rrtype="AAAA") == 1


@pytest.mark.parametrize("bad", [PLACES[2], "10.0.0.1", "169.254.169.254", "::1"])
@pytest.mark.parametrize("first", [True, False], ids=["bad_first", "bad_last"])
def test_one_bad_address_of_an_answer_refuses_the_name(moving: Moving, bad: str, first: bool) -> None:
    answer = (bad, PLACES[0]) if first else (PLACES[0], bad)
    moving.dns.set(NAME, addresses(*answer, ttl=0))
    moving.reset()
    assert moving.ask() == (502, "destination_unavailable")
    assert not any(server.connections for server in moving.servers.values())


def test_an_answer_that_turns_bad_between_check_and_dial_changes_nothing(moving: Moving) -> None:
    # A client that asked twice would get the second answer: it must not be asked for.
    good, bad = addresses(PLACES[0], ttl=0), addresses(PLACES[2], ttl=0)
    moving.dns.set(NAME, sequence(good, bad))
    moving.reset()
    assert moving.ask()[0] == 200
    assert moving.reached() == [PLACES[0]]
    assert moving.ask() == (502, "destination_unavailable")
    assert moving.servers[PLACES[2]].connections == 0
