"""Group D end to end: a scripted server says what an attacker would, and packets are counted on both sides.

Longer than a module should be, since the whole group is tried on one gate, whose names and servers are made once.
"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawReply
from tests.lab.dns import (
    DnsServer,
    Script,
    addresses,
    cname,
    delayed,
    dns_server,
    empty,
    forged_first,
    only,
    rcode,
    records,
    sequence,
    silent,
    truncated,
)
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor

NAMES = tuple(f"n{number}.allowed.test" for number in range(60))
WILD = "*.wild.allowed.test"
TRAPPED = "*.trapped.allowed.test"
"""Allowed at 127.0.0.0/21 alone; `TRAP`, where a server listens too, is not in it."""
TRAP = "127.0.9.9"
LOOKUPS = 32
"""What one session may have under way at once."""
TIMEOUT, PIN_AGE = 1.0, 3.0


@dataclass
class World:
    gate: Gate
    dns: DnsServer
    one: Upstream
    two: Upstream
    trap: Upstream
    session: Visitor
    fresh: Iterator[str]

    def name(self, script: Script) -> str:
        """Return an allowed name that no one has asked for yet, with a script."""
        name = next(self.fresh)
        self.dns.set(name, script)
        return name

    def trapped(self, script: Script) -> str:
        """Return a fresh name that is allowed at a few addresses, the trap's not among them."""
        name = f"{next(self.fresh).partition('.')[0]}.trapped.allowed.test"
        self.dns.set(name, script)
        return name

    def visitor(self, policy: str = "default") -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy))

    def ask(self, script: Script, **more: object) -> RawReply:
        return self.session.get(self.one, host=self.name(script), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with (
        Authority() as ca,
        dns_server() as dns,
        upstream(ca=ca, names=("*.allowed.test", WILD, TRAPPED)) as one,
        upstream(ca=ca, names=("*.allowed.test",), address="127.0.0.2", port=one.port) as two,
        # It would take any name: nothing but the gate keeps clients away from it.
        upstream(ca=ca, names=("*.allowed.test", TRAPPED), address=TRAP, port=one.port) as trap,
    ):
        dns.set(WILD, addresses("127.0.0.1"))
        config = configuration(
            allow=[
                *(rule(name, port=one.port) for name in (*NAMES, WILD)),
                rule(TRAPPED, port=one.port, addresses=["127.0.0.0/21", "::1/128"]),
            ],
            dns=dns,
            ca=ca,
        )
        config["resolver"]["timeout_seconds"] = TIMEOUT
        config["upstream"]["pin_max_age_seconds"] = PIN_AGE
        budgets = {"session": {"distinct_names_per_hour": 30}}
        config["policies"]["counted"] = {**config["policies"]["default"], "budgets": budgets}
        with gate(config) as running:
            session = Visitor(running, running.session())
            yield World(running, dns, one, two, trap, session, iter(NAMES))


def unavailable(world: World, reply: RawReply, reason: str) -> None:
    """The sandbox hears one code for all; the log has the exact one (docs/reference/reasons.md)."""
    assert (reply.status, reply.reason) == (502, "destination_unavailable")
    assert reply.header("proxy-status") == 'tidegate; error=destination_unavailable; details="destination_unavailable"'
    assert b"127." not in reply.body + reply.raw_head
    assert logged(world, reply) == reason


def logged(world: World, reply: RawReply, *, phase: str = "decision") -> str | None:
    """Return the reason that the log has for what a reply told."""
    (line,) = world.gate.wait_audit(flow=reply.json()["request_id"], phase=phase)
    reason: str | None = line["reason"]
    return reason


def test_D_01_rebinding_between_check_and_dial(world: World) -> None:
    name = world.name(sequence(addresses("127.0.0.1", ttl=0), addresses("169.254.169.254", ttl=0)))
    world.one.reset()
    assert world.session.get(world.one, host=name).status == 200
    assert (world.dns.count(name, rrtype="A"), world.dns.count(name, rrtype="AAAA")) == (1, 1)
    assert world.one.connections == 1
    unavailable(world, world.session.get(world.one, host=name), "resolved_metadata")
    assert (world.dns.count(name, rrtype="A"), world.one.connections) == (2, 1)
    assert world.session.wait_log(type="incident", reason="resolved_metadata")


def test_D_01_rebinding_to_a_listener_that_the_rule_does_not_name(world: World) -> None:
    name = world.trapped(sequence(addresses("127.0.0.1", ttl=0), addresses(TRAP, ttl=0)))
    world.one.reset()
    world.trap.reset()
    assert world.session.get(world.one, host=name).status == 200
    unavailable(world, world.session.get(world.one, host=name), "resolved_blocked")
    assert (world.one.connections, world.trap.connections) == (1, 0)


@pytest.mark.parametrize(
    "script",
    [addresses("127.0.0.1", TRAP), cname("internal.corp.test", then=addresses(TRAP))],
    ids=["D-02-beside-a-good-one", "D-03-behind-an-alias"],
)
def test_D_02_D_03_a_listener_that_the_rule_does_not_name_is_never_dialled(world: World, script: Script) -> None:
    world.one.reset()
    world.trap.reset()
    unavailable(world, world.session.get(world.one, host=world.trapped(script)), "resolved_blocked")
    assert (world.one.connections, world.trap.connections) == (0, 0)


@pytest.mark.parametrize(
    "bad",
    ["10.0.0.5", "192.168.1.1", "100.64.0.1", "fd00::1", "::ffff:10.0.0.5", "64:ff9b::a00:5", "fec0::1", "224.0.0.1"],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_D_02_one_bad_address_refuses_the_name(world: World, bad: str, first: bool) -> None:
    world.one.reset()
    pair = (bad, "127.0.0.1") if first else ("127.0.0.1", bad)
    unavailable(world, world.ask(addresses(*pair)), "resolved_blocked")
    assert world.one.connections == 0


def test_D_03_a_cname_to_an_inner_name(world: World) -> None:
    unavailable(world, world.ask(cname("internal.corp.test", then=addresses("10.1.2.3"))), "resolved_blocked")


@pytest.mark.parametrize("target", ["metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"])
def test_D_03_a_cname_to_a_metadata_name_whatever_its_address(world: World, target: str) -> None:
    reply = world.ask(cname(target, then=addresses("127.0.0.1")))
    unavailable(world, reply, "resolved_metadata")


def test_D_04_cname_loops_and_long_chains_end(world: World) -> None:
    begun = time.monotonic()
    loop = world.name(empty)
    world.dns.set(loop, cname(loop))
    unavailable(world, world.session.get(world.one, host=loop), "dns_failure")
    links = [("n0.", 60, "CNAME", "x0.chain.test.")]
    links += [(f"x{n}.chain.test.", 60, "CNAME", f"x{n + 1}.chain.test.") for n in range(40)]
    long = world.name(empty)
    world.dns.set(
        long,
        records((long + ".", 60, "CNAME", "x0.chain.test."), *links[1:], ("x40.chain.test.", 60, "A", "127.0.0.1")),
    )
    unavailable(world, world.session.get(world.one, host=long), "dns_failure")
    assert time.monotonic() - begun < 4 * TIMEOUT


def test_D_05_a_pooled_connection_has_an_age_and_then_a_fresh_lookup(world: World) -> None:
    name = world.name(sequence(addresses("127.0.0.1", ttl=0), addresses("10.0.0.5", ttl=0)))
    world.one.reset()
    with world.session.tunnel(world.one, name) as raw:
        host = world.session.authority(world.one, name)
        for _ in range(3):
            assert raw.request("GET", "/echo", host=host).status == 200
        assert world.dns.count(name, rrtype="A") == 1
        assert world.one.connections == 1
        # Nothing but time ends a pin.
        time.sleep(PIN_AGE)
        unavailable(world, raw.request("GET", "/echo", host=host), "resolved_blocked")
        assert world.dns.count(name, rrtype="A") == 2


def test_D_06_the_upstream_is_asked_by_name_at_the_pinned_address(world: World) -> None:
    name = world.name(addresses("127.0.0.1"))
    echo = world.session.get(world.one, host=name).json()
    assert echo["sni"] == name
    assert dict(echo["headers"])["Host"] == f"{name}:{world.one.port}"
    ended = world.session.wait_log(
        lambda lines: any(line["conn"]["name"] == name for line in lines), type="conn", phase="end"
    )
    mine = next(line["conn"] for line in ended if line["conn"]["name"] == name)
    assert (mine["address"], mine["vetted"]) == ("127.0.0.1", ["127.0.0.1"])


WAYS = [
    ("connect", 403, "not_in_allowlist"),
    ("plain", 403, "not_in_allowlist"),
    ("sni", 403, "sni_mismatch"),
    ("host", 421, "authority_mismatch"),
    ("redirect", 403, "redirect_denied"),
]


@pytest.mark.parametrize(
    "name",
    [
        "c2VjcmV0.evil.test",
        "secret.data.allowed.test.evil.test",
        "xn0.allowed.test",
        "xallowed.test",
        "allowed.test",
        "wild.allowed.test",
        "a.b.test",
        "secret",
        "localhost",
    ],
)
@pytest.mark.parametrize(("way", "status", "reason"), WAYS, ids=[way for way, _, _ in WAYS])
def test_D_07_a_denied_name_causes_no_query(world: World, name: str, way: str, status: int, reason: str) -> None:
    good = NAMES[-1]
    world.dns.set(good, addresses("127.0.0.1"))
    world.dns.set(name, addresses("127.0.0.1"))
    world.dns.reset()
    visitor, host = world.visitor(), f"{good}:{world.one.port}"
    match way:
        case "connect":
            reply = visitor.get(world.one, host=name)
        case "plain":
            reply = visitor.plain(f"http://{name}/", host=name)
        case "sni":
            with visitor.tunnel(world.one, good, sni=name, ca=None) as raw:
                reply = raw.request("GET", "/", host=host)
        case "host":
            with visitor.tunnel(world.one, good) as raw:
                reply = raw.request("GET", "/", host=name)
        case _:
            reply = visitor.get(world.one, f"/redirect?to=https://{name}/", host=good)
    if name == "localhost" and reason == "not_in_allowlist":
        reason = "self_or_gateway"
    assert (reply.status, reply.reason) == (status, reason)
    # The request that was redirected had been allowed; its end has the reason.
    assert logged(world, reply, phase="end" if way == "redirect" else "decision") == reason
    asked = {query.name for query in world.dns.queries}
    assert asked <= ({good} if way == "redirect" else set())


def test_D_07_a_port_that_no_rule_names_causes_no_query(world: World) -> None:
    world.dns.reset()
    reply = world.session.connect_to(f"{NAMES[0]}:22")
    assert (reply.status, reply.reason, logged(world, reply)) == (403, "port_not_allowed", "port_not_allowed")
    assert world.dns.count() == 0


def test_D_08_names_under_a_wildcard_are_logged_one_by_one(world: World) -> None:
    visitor = world.visitor()
    names = [f"mfrggzdfmztwq2lk{n}.wild.allowed.test" for n in range(3)]
    for name in names:
        assert visitor.get(world.one, host=name).status == 200
    ended = visitor.wait_log(lambda lines: len(lines) == 3, type="conn", phase="end")
    assert sorted(line["conn"]["name"] for line in ended) == sorted(names)
    label = "a" * 64
    assert visitor.get(world.one, host=f"{label}.wild.allowed.test").status == 400


@pytest.mark.parametrize("fault", ["id", "question", "not-a-response", "garbage"])
def test_D_10_forged_replies_are_ignored(world: World, fault: str) -> None:
    forged = forged_first(addresses("127.0.0.2"), addresses("127.0.0.1"), fault=fault)
    world.two.reset()
    assert world.ask(forged).status == 200
    assert world.two.connections == 0


def test_D_11_truncated_replies_are_asked_again_over_tcp(world: World) -> None:
    name = world.name(truncated(addresses("127.0.0.1")))
    assert world.session.get(world.one, host=name).status == 200
    assert world.dns.count(name, transport="tcp") >= 2
    unavailable(world, world.ask(truncated(addresses("127.0.0.1"), tcp=silent)), "dns_failure")
    half = only("A", addresses("127.0.0.1"), other=truncated(empty, tcp=silent))
    unavailable(world, world.ask(half), "dns_failure")


def test_D_12_an_answer_of_500_addresses_is_vetted_whole_or_refused(world: World) -> None:
    many = [f"127.1.{n // 250}.{n % 250 + 1}" for n in range(499)]
    world.one.reset()
    unavailable(world, world.ask(addresses(*many, "10.0.0.5")), "dns_failure")
    assert world.one.connections == 0


@pytest.mark.parametrize(
    "script",
    [
        rcode("NXDOMAIN"),
        rcode("SERVFAIL"),
        rcode("REFUSED"),
        empty,
        silent,
        delayed(9, addresses("127.0.0.1")),
        only("A", addresses("127.0.0.1"), other=rcode("SERVFAIL")),
    ],
    ids=["nxdomain", "servfail", "refused", "empty", "silent", "late", "half"],
)
def test_D_15_failures_are_told_in_time_and_nothing_else_is_asked(world: World, script: Script) -> None:
    world.one.reset()
    begun = time.monotonic()
    unavailable(world, world.ask(script), "dns_failure")
    assert time.monotonic() - begun < TIMEOUT + 1
    assert world.one.connections == 0


def test_D_15_no_stale_answer_when_the_server_fails(world: World) -> None:
    name = world.name(sequence(addresses("127.0.0.1", ttl=0), rcode("SERVFAIL")))
    assert world.session.get(world.one, host=name).status == 200
    unavailable(world, world.session.get(world.one, host=name), "dns_failure")


@pytest.mark.parametrize("hole", ["0.0.0.0", "::"])
def test_D_16_a_sinkhole_is_no_destination(world: World, hole: str) -> None:
    world.one.reset()
    unavailable(world, world.ask(addresses(hole)), "resolved_blocked")
    assert world.one.connections == 0


@pytest.mark.parametrize(
    ("embedded", "reason"),
    [
        ("64:ff9b::c0a8:1", "resolved_blocked"),
        ("64:ff9b::a00:5", "resolved_blocked"),
        ("64:ff9b::a9fe:a9fe", "resolved_metadata"),
    ],
)
def test_D_17_dns64_answers_are_judged_by_what_they_stand_for(world: World, embedded: str, reason: str) -> None:
    world.one.reset()
    unavailable(world, world.ask(addresses(embedded)), reason)
    assert world.one.connections == 0


def test_D_18_an_address_that_changes_with_each_lookup(world: World) -> None:
    name = world.name(sequence(*[addresses(f"127.0.0.{1 + n % 2}", ttl=0) for n in range(4)]))
    world.one.reset()
    world.two.reset()
    for _ in range(4):
        assert world.session.get(world.one, host=name).status == 200
    assert (world.one.connections, world.two.connections) == (2, 2)


def test_D_19_broken_ipv6_costs_a_moment(world: World) -> None:
    with socket.socket(socket.AF_INET6) as hole:
        # A backlog that is full drops what comes: to the caller, a black hole.
        hole.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hole.bind(("::1", world.one.port))
        hole.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket(socket.AF_INET6)
            one.setblocking(False)
            one.connect_ex(("::1", world.one.port))
            waiting.append(one)
        try:
            begun = time.monotonic()
            assert world.ask(addresses("127.0.0.1", "::1")).status == 200
            assert time.monotonic() - begun < 1.5
        finally:
            for one in waiting:
                one.close()


def test_D_19_a_dead_address_does_not_hide_a_living_one(world: World) -> None:
    # A listener whose queue is full swallows SYNs, as a black hole does.
    with socket.socket() as hole, contextlib.ExitStack() as stack:
        hole.bind(("127.0.1.1", world.one.port))
        hole.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.1.1", world.one.port))
        assert world.ask(addresses("127.0.1.1", "127.0.0.1", "::1")).status == 200


def test_D_20_a_flood_of_names_costs_the_flooder_only(world: World) -> None:
    flooder, other = world.visitor("counted"), world.visitor()
    world.dns.reset()
    statuses = [flooder.get(world.one, host=f"f{n}.wild.allowed.test").status for n in range(45)]
    assert statuses == [200] * 30 + [429] * 15
    assert world.dns.count(WILD, rrtype="A") == 30
    # A name that was paid for stays free.
    assert flooder.get(world.one, host="f0.wild.allowed.test").status == 200
    assert other.get(world.one, host="other.wild.allowed.test").status == 200


def test_D_20_look_ups_that_hang_do_not_hold_up_another_session(world: World) -> None:
    flooder, other = world.visitor(), world.visitor()
    world.dns.set("*.slow.wild.allowed.test", silent)
    begun = time.monotonic()
    with ThreadPoolExecutor(40) as pool:
        waiting = [
            pool.submit(flooder.get, world.one, host=f"s{n}.slow.wild.allowed.test", timeout=20.0) for n in range(40)
        ]
        assert world.gate.wait_audit(lambda lines: len(lines) >= 40, session=flooder.session.id, type="conn")
        asked = time.monotonic()
        assert other.get(world.one, host="quick.wild.allowed.test").status == 200
        assert time.monotonic() - asked < TIMEOUT
        told = Counter((one.result().status, logged(world, one.result())) for one in waiting)
    assert told == {(502, "dns_failure"): LOOKUPS, (429, "budget"): 40 - LOOKUPS}
    assert time.monotonic() - begun < 15


def test_D_21_case_and_foreign_types_in_the_answer(world: World) -> None:
    name = world.name(empty)
    odd = [(name.upper() + ".", 60, "A", "127.0.0.1"), (name + ".", 60, "TXT", '"10.0.0.5"')]
    world.dns.set(name, only("A", records(*odd)))
    assert world.session.get(world.one, host=name.upper()).status == 200
    stranger = world.name(empty)
    # An address of another name is no answer to this question.
    world.dns.set(stranger, records(("other.test.", 60, "A", "127.0.0.1")))
    unavailable(world, world.session.get(world.one, host=stranger), "dns_failure")


def test_D_22_reverse_names_are_never_asked_for(world: World) -> None:
    world.dns.set("*.in-addr.arpa", records(("1.0.0.127.in-addr.arpa.", 60, "PTR", NAMES[0] + ".")))
    assert world.session.plain(f"http://127.0.0.1:{world.one.port}/", host=f"127.0.0.1:{world.one.port}").status == 403
    assert world.dns.count("*.arpa") == 0


def test_every_refusal_left_its_record_and_no_fault(world: World) -> None:
    decisions = {line["flow"] for line in world.gate.audit(type="http", phase="decision") if line["flow"]}
    world.gate.wait_audit(lambda lines: decisions <= {line["flow"] for line in lines}, type="http", phase="end")
    assert not world.gate.audit(type="fault")
    assert "Traceback" not in world.gate.stderr
