"""Attacks through DNS against a running gate: what is dialled, what is asked, what the sandbox learns."""

import contextlib
import dataclasses
import socket
from collections.abc import Iterator

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawReply, Refused, fetch, tunnel
from tests.lab.dns import DnsServer, addresses, cname, dns_server, empty, only, rcode, sequence, silent
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream

API = "api.allowed.test"
TRAP_ADDRESS = "127.0.9.9"


@dataclasses.dataclass
class Lab:
    gate: Gate
    session: Session
    dns: DnsServer
    api: Upstream
    trap: Upstream

    def fetch(self, name: str, target: str = "/status/200") -> RawReply:
        return fetch(
            self.gate, name, self.api.port, target, token=self.session.token, ca=self.gate.state / "ca.pem", timeout=10
        )

    def reasons(self, name: str) -> set[str]:
        lines = self.gate.audit(session=self.session.id)
        return {
            str(line["reason"]) for line in lines if (line.get("http") or {}).get("host") == name and line["reason"]
        }


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    """One gate; its rules allow names below allowed.test at 127.0.0.0/21, where the trap's address is not."""
    with (
        Authority() as ca,
        dns_server({API: addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(API, "*.allowed.test")) as api,
        upstream(ca=ca, names=(API, "*.allowed.test"), address=TRAP_ADDRESS, port=api.port) as trap,
    ):
        allow = [rule("*.allowed.test", port=api.port, addresses=["127.0.0.0/21", "::1/128"])]
        config = configuration(allow=allow, dns=dns, ca=ca)
        config["policies"]["few-names"] = {"allow": allow, "budgets": {"session": {"distinct_names_per_hour": 5}}}
        with gate(config) as tidegate:
            yield Lab(tidegate, tidegate.session(), dns, api, trap)


@pytest.fixture
def lab(running: Lab) -> Lab:
    """The lab with its counters at zero."""
    for server in (running.api, running.trap, running.dns):
        server.reset()
    return running


def test_D_01_D_06_the_address_checked_is_the_address_dialled(lab: Lab) -> None:
    name = "rebind.allowed.test"
    lab.dns.set(name, sequence(addresses("127.0.0.1", ttl=0), addresses(TRAP_ADDRESS, ttl=0)))
    assert lab.fetch(name).status == 200
    assert (lab.dns.count(name, rrtype="A"), lab.dns.count(name, rrtype="AAAA")) == (1, 1)
    second = lab.fetch(name)
    assert (second.status, second.reason) == (502, "destination_unavailable")
    assert lab.api.connections == 1
    assert lab.trap.connections == 0


def test_D_02_one_bad_address_refuses_the_name_though_another_is_good(lab: Lab) -> None:
    lab.dns.set("mixed.allowed.test", addresses("127.0.0.1", TRAP_ADDRESS))
    assert lab.fetch("mixed.allowed.test").status == 502
    assert (lab.api.connections, lab.trap.connections) == (0, 0)
    assert "resolved_blocked" in lab.reasons("mixed.allowed.test")


def test_D_03_a_cname_into_the_site_dials_nothing(lab: Lab) -> None:
    lab.dns.set("alias.allowed.test", cname("internal.corp.test", then=addresses(TRAP_ADDRESS)))
    assert lab.fetch("alias.allowed.test").status == 502
    assert lab.trap.connections == 0


def test_D_05_requests_on_one_connection_stay_on_its_pin(lab: Lab) -> None:
    name = "pooled.allowed.test"
    lab.dns.set(name, sequence(addresses("127.0.0.1", ttl=0), addresses(TRAP_ADDRESS, ttl=0)))
    token, ca = lab.session.token, lab.gate.state / "ca.pem"
    with tunnel(lab.gate, name, lab.api.port, token=token, ca=ca) as client:
        host = f"{name}:{lab.api.port}"
        assert [client.request("GET", "/status/200", host=host).status for _ in range(3)] == [200] * 3
    assert lab.api.connections == 1
    assert lab.trap.connections == 0


@pytest.mark.parametrize(
    "name",
    ["secret-data.evil.test", "allowed.test", "api.allowed.test.evil.test", "xallowed.test", "localhost"],
)
def test_D_07_a_denied_name_is_never_asked_for(lab: Lab, name: str) -> None:
    lab.dns.set(name, addresses("127.0.0.1"))
    with contextlib.suppress(Refused):
        assert lab.fetch(name).status == 403
    assert lab.dns.count() == 0
    assert lab.api.connections == 0


def test_D_07_a_denied_port_asks_nothing(lab: Lab) -> None:
    with pytest.raises(Refused), tunnel(lab.gate, API, 22, token=lab.session.token):
        pass
    assert lab.dns.count() == 0


@pytest.mark.parametrize(
    ("script", "logged"),
    [
        (rcode("NXDOMAIN"), "dns_failure"),
        (rcode("SERVFAIL"), "dns_failure"),
        (rcode("REFUSED"), "dns_failure"),
        (empty, "dns_failure"),
        (silent, "dns_failure"),
        (only("A", addresses("127.0.0.1"), other=rcode("SERVFAIL")), "dns_failure"),
        (addresses("0.0.0.0"), "resolved_blocked"),
        (addresses("10.1.2.3"), "resolved_blocked"),
        (addresses("169.254.169.254"), "resolved_metadata"),
        (cname("metadata.google.internal", then=addresses("127.0.0.1")), "resolved_metadata"),
    ],
    ids=[
        *("nxdomain", "servfail", "refused", "empty", "silent", "half"),
        *("sinkhole", "private", "metadata", "metadata alias"),
    ],
)
def test_D_15_D_16_the_sandbox_cannot_tell_why_a_name_is_unavailable(
    lab: Lab, script: object, logged: str, request: pytest.FixtureRequest
) -> None:
    name = f"{request.node.callspec.id.replace(' ', '-')}.allowed.test"
    lab.dns.set(name, script)
    reply = lab.fetch(name)
    assert (reply.status, reply.reason) == (502, "destination_unavailable")
    assert "destination_unavailable" in (reply.header("proxy-status") or "")
    assert b"127." not in reply.body + reply.raw_head
    assert logged in lab.reasons(name)
    assert (lab.api.connections, lab.trap.connections) == (0, 0)


def test_D_18_each_connection_uses_the_current_answer(lab: Lab) -> None:
    name = "cdn.allowed.test"
    lab.dns.set(name, sequence(*(addresses(f"127.0.0.{n}", ttl=0) for n in (7, 7, 1))))
    assert lab.fetch(name).status == 502  # nothing listens on 127.0.0.7
    assert lab.fetch(name).status == 502
    assert lab.fetch(name).status == 200


def test_D_19_a_dead_address_does_not_hide_a_living_one(lab: Lab) -> None:
    # A listener whose queue is full swallows SYNs, as a black hole does.
    with socket.socket() as hole, contextlib.ExitStack() as stack:
        hole.bind(("127.0.1.1", lab.api.port))
        hole.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.1.1", lab.api.port))
        lab.dns.set("hole.allowed.test", addresses("127.0.1.1", "127.0.0.1", "::1"))
        assert lab.fetch("hole.allowed.test").status == 200


def test_D_08_D_20_names_under_a_wildcard_are_budgeted_per_session(lab: Lab) -> None:
    lab.dns.set("*.allowed.test", addresses("127.0.0.1"))
    flooder = dataclasses.replace(lab, session=lab.gate.session(policy="few-names"))
    statuses = [flooder.fetch(f"data{number}.allowed.test").status for number in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    assert len({query.name for query in lab.dns.queries}) == 5
    # A name that was paid for stays free, and the budget of one session is not another's.
    assert flooder.fetch("data0.allowed.test").status == 200
    assert lab.fetch("data7.allowed.test").status == 200
    wanted = {f"data{number}.allowed.test" for number in range(8)}
    lab.gate.wait_audit(
        lambda lines: {line["http"]["host"] for line in lines} == wanted, type="http", session=flooder.session.id
    )
