"""Invariant 1: nothing is dialled, and no name is looked up, before a decision says allow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bypass.arena import Arena, make_arena
from tests.lab.certs import Authority
from tests.lab.client import H2Client, connect, fetch, proxy_header
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import configuration, gate, rule
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection, upstream


@pytest.fixture(scope="module", name="arena")
def running_arena() -> Iterator[Arena]:
    with make_arena() as made:
        yield made


def test_a_policy_without_rules_lets_nothing_out() -> None:
    with (
        Authority() as ca,
        dns_server({"*.test": addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=("*.some.test",)) as server,
        gate(configuration(dns=dns, ca=ca)) as running,
    ):
        token = running.session().token
        root = running.state / "ca.pem"
        asked = [fetch(running, f"n{n}.some.test", server.port, token=token, ca=root) for n in range(3)]
        odd = ("127.0.0.1", "[::1]", "localhost")
        asked += [fetch(running, host, server.port, token=token, ca=root) for host in odd]
        with connect(running) as raw:
            name = f"plain.some.test:{server.port}".encode()
            raw.send(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (name, name, proxy_header(token)))
            asked.append(raw.reply())
        assert {reply.status for reply in asked} == {403}
        assert server.connections == server.bytes_in == 0
        assert dns.count() == 0


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_the_decision_stands_in_the_log_before_the_request_arrives(arena: Arena, alpn: str) -> None:
    seen: list[tuple[str, list[Any]]] = []

    async def look(connection: Connection, request: Request) -> Reply:
        # What the log holds at the moment in which the upstream has the request in its hands.
        lines: list[dict[str, Any]] = []
        for path in sorted((arena.gate.state / "audit").glob("gate-*/*.jsonl")):
            lines += [json.loads(line) for line in Path(path).read_text().splitlines()]
        mine = [line for line in lines if line["type"] == "http" and line["http"]["path"] == request.target]
        seen.append((request.target, [(line["phase"], line["verdict"]) for line in mine]))
        return Reply(chunks=b"seen\n")

    arena.one.route("/look/**", look)
    with arena.tunnel(arena.one, alpn=(alpn,)) as raw:
        h2 = H2Client(raw) if alpn == "h2" else None
        for n in range(5):
            path, host = f"/look/{alpn[0:2]}{n}", arena.one.authority
            reply = h2.request("GET", path, authority=host) if h2 else raw.request("GET", path, host=host)
            assert reply.status == 200
        arena.story(raw).allowed(5)
    assert [phases for _, phases in seen] == [[("decision", "allow")]] * 5


def test_a_tunnel_that_is_allowed_dials_nothing_by_itself(arena: Arena) -> None:
    with arena.quiet(arena.one.names[0]), arena.tunnel(arena.one) as raw:
        story = arena.story(raw)
    assert story.conns[0][1]["conn"]["address"] is None
    assert story.conns[0][1]["conn"]["vetted"] is None


def test_a_session_of_another_policy_inherits_nothing() -> None:
    with (
        Authority() as ca,
        dns_server({"*.test": addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=("api.some.test",)) as server,
    ):
        config = configuration(allow=[rule("api.some.test", port=server.port)], dns=dns, ca=ca)
        config["policies"]["other"] = {"allow": []}
        with gate(config) as running:
            root = running.state / "ca.pem"
            first, second = running.session(), running.session(policy="other")
            assert fetch(running, "api.some.test", server.port, "/echo", token=first.token, ca=root).status == 200
            before = (server.connections, dns.count())
            reply = fetch(running, "api.some.test", server.port, "/echo", token=second.token, ca=root)
            assert (reply.status, reply.reason) == (403, "not_in_allowlist")
            assert (server.connections, dns.count()) == before
