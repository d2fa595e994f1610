"""Each budget of each level on a real gate of two workers: who is stopped, when, and who is not.

A policy a case, since what a policy or an owner has used up is gone for an hour; sessions of one case have owners
of its own. Connections fall to either worker as the kernel likes, so that all counts are of both together.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wsproto
from wsproto.events import AcceptConnection, BytesMessage
from wsproto.events import Request as Handshake

from tests.integration.budgets import RAW, SECOND, Allow, World, budget_world, fresh_owner
from tests.lab.client import H2Client, RawReply
from tests.lab.visitor import Visitor

LEVELS = ("session", "policy", "owner", "rule", "policy-limits")
REQUESTS, NAMES, UPLOAD = 6, 4, 20_000
PIECE = 5_000


def policies(allow: Allow) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, limit in (("requests_per_minute", REQUESTS), ("upload_bytes_per_hour", UPLOAD)):
        for level in ("session", "policy", "owner"):
            made[f"{key}-{level}"] = {"allow": allow({}), "budgets": {level: {key: limit}}}
        made[f"{key}-rule"] = {"allow": allow({key: limit})}
        made[f"{key}-policy-limits"] = {"allow": allow({}), "limits": {key: limit}}
        # The rule's own comes first, though the policy's is smaller.
        made[f"{key}-own"] = {"allow": allow({key: limit}), "limits": {key: limit // 2}}
    for level in ("session", "policy", "owner"):
        names = {"distinct_names_per_hour": NAMES}
        made[f"distinct_names_per_hour-{level}"] = {"allow": allow({}), "budgets": {level: names}}
    for level in ("policy", "owner"):
        made[f"sessions-{level}"] = {"allow": allow({}), "budgets": {level: {"sessions": 2}}}
    for way in WAYS:
        made[f"way-{way}"] = {"allow": allow({}), "budgets": {"session": {"upload_bytes_per_hour": UPLOAD}}}
    return made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with budget_world(policies) as made:
        yield made


def ask(world: World, visitor: Visitor, target: str = "/bytes/1", **more: Any) -> int:
    """Make one request on a connection of its own; a refusal must be told as the budget's."""
    reply = visitor.get(world.server, target, **more)
    assert (reply.status, reply.reason) in ((200, None), (429, "budget")), reply
    return reply.status


def used_up(world: World, visitor: Visitor, **more: Any) -> bool:
    return ask(world, visitor, **more) == 429


# -- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_requests_per_minute(world: World, level: str) -> None:
    crowd = world.crowd(f"requests_per_minute-{level}")
    statuses = [ask(world, crowd.flooder) for _ in range(REQUESTS + 4)]
    assert statuses == [200] * REQUESTS + [429] * 4
    denied = crowd.flooder.wait_log(lambda lines: len(lines) == 4, type="http", phase="end", verdict="deny")
    assert {line["reason"] for line in denied} == {"budget"}
    felt = {name: used_up(world, getattr(crowd, name)) for name in crowd.shares(level)}
    assert felt == crowd.shares(level)
    # A rule's limits are of that rule alone.
    assert used_up(world, crowd.flooder, host=SECOND) is (level in ("session", "policy", "owner"))


def test_a_rules_own_limit_comes_before_its_policys(world: World) -> None:
    visitor = world.visitor("requests_per_minute-own")
    assert [ask(world, visitor) for _ in range(REQUESTS + 1)] == [200] * REQUESTS + [429]
    half = [ask(world, visitor, host=SECOND) for _ in range(REQUESTS)]
    assert half == [200] * (REQUESTS // 2) + [429] * (REQUESTS - REQUESTS // 2)


def test_requests_on_one_connection_count_as_those_on_many(world: World) -> None:
    visitor = world.visitor("requests_per_minute-session")
    with visitor.tunnel(world.server) as raw:
        host = visitor.authority(world.server)
        statuses = [raw.request("GET", "/bytes/1", host=host).status for _ in range(REQUESTS + 2)]
    assert statuses == [200] * REQUESTS + [429] * 2


# -- uploads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_upload_bytes_per_hour(world: World, level: str) -> None:
    crowd = world.crowd(f"upload_bytes_per_hour-{level}")
    statuses = [ask(world, crowd.flooder, "/echo", method="POST", body=bytes(PIECE)) for _ in range(6)]
    assert statuses == [200] * 3 + [429] * 3
    ends = crowd.flooder.wait_log(lambda lines: len(lines) == 6, type="http", phase="end")
    assert 3 * PIECE < sum(line["http"]["bytes_up"] for line in ends) <= UPLOAD
    felt = {
        name: used_up(world, getattr(crowd, name), target="/echo", method="POST", body=bytes(PIECE))
        for name in crowd.shares(level)
    }
    assert felt == crowd.shares(level)


Way = Callable[[World, Visitor], bool]
"""Sends a piece; False when the budget is used up."""


def passed(reply: RawReply) -> bool:
    assert (reply.status, reply.reason) in ((200, None), (429, "budget")), reply
    return reply.status == 200


def with_target(world: World, visitor: Visitor) -> bool:
    return passed(visitor.get(world.server, "/bytes/1?" + "a" * PIECE))


def with_header(world: World, visitor: Visitor) -> bool:
    return passed(visitor.get(world.server, "/bytes/1", headers=[("X-Large", "a" * PIECE)]))


def with_body(world: World, visitor: Visitor) -> bool:
    return passed(visitor.get(world.server, method="POST", body=bytes(PIECE)))


def with_chunks(world: World, visitor: Visitor) -> bool:
    with visitor.tunnel(world.server) as raw:
        raw.send(f"POST /echo HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\n".encode())
        raw.send(b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(PIECE // 500):
                raw.send(b"1f4\r\n" + bytes(500) + b"\r\n")
            raw.send(b"0\r\n\r\n")
        return passed(raw.reply())


def with_http2(world: World, visitor: Visitor) -> bool:
    with visitor.tunnel(world.two, alpn=("h2",)) as raw:
        authority = visitor.authority(world.two)
        return passed(H2Client(raw).request("POST", "/echo", authority=authority, body=bytes(PIECE)))


def with_web_socket(world: World, visitor: Visitor) -> bool:
    with visitor.tunnel(world.server) as raw:
        ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        raw.send(ws.send(Handshake(host=visitor.authority(world.server), target="/ws")))
        reply = raw.reply()
        if reply.status != 101:
            return passed(reply)
        ws.receive_data(reply.raw_head)
        assert any(isinstance(event, AcceptConnection) for event in ws.events())
        raw.send(ws.send(BytesMessage(bytes(PIECE))))
        said = 0
        while said < PIECE and (data := raw.read()):
            said += len(data)
        return said >= PIECE


def with_opaque_bytes(world: World, visitor: Visitor) -> bool:
    with visitor.tunnel(world.raw, tls=False) as raw:
        head = f"POST /echo HTTP/1.1\r\nHost: {RAW}\r\nContent-Length: {PIECE}\r\nConnection: close\r\n\r\n"
        raw.send(head.encode() + bytes(PIECE))
        return bool(raw.read())


WAYS: dict[str, Way] = {
    "target": with_target,
    "header": with_header,
    "body": with_body,
    "chunks": with_chunks,
    "http2": with_http2,
    "web-socket": with_web_socket,
    "opaque": with_opaque_bytes,
}


@pytest.mark.parametrize("way", list(WAYS))
def test_whatever_leaves_counts_as_upload(world: World, way: str) -> None:
    visitor, servers = world.visitor(f"way-{way}"), (world.server, world.two, world.raw)
    for server in servers:
        server.reset()
    done = sum(itertools.takewhile(bool, (WAYS[way](world, visitor) for _ in range(10))))
    assert done == 3
    # What an opaque tunnel was cut for stands in its end; a request has a reason.
    kind = "conn" if way == "opaque" else "http"
    ended = visitor.wait_log(
        lambda lines: any("budget" in (line["reason"], line[kind].get("end")) for line in lines), type=kind, phase="end"
    )
    left = sum(line[kind]["bytes_up"] or 0 for line in ended)
    assert done * PIECE < left <= UPLOAD
    assert used_up(world, visitor, target="/echo", method="POST", body=bytes(PIECE))
    assert not used_up(world, world.visitor(f"way-{way}"), target="/echo", method="POST", body=bytes(PIECE))


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS[:3])
def test_distinct_names_per_hour(world: World, level: str) -> None:
    crowd = world.crowd(f"distinct_names_per_hour-{level}")
    names = [f"{level}{number}.wild.allowed.test" for number in range(NAMES + 2)]
    assert [ask(world, crowd.flooder, host=name) for name in names] == [200] * NAMES + [429] * 2
    # What was paid for stays free, in either worker.
    assert {ask(world, crowd.flooder, host=name) for name in names[:NAMES] * 2} == {200}
    felt = {name: used_up(world, getattr(crowd, name), host=names[-1]) for name in crowd.shares(level)}
    assert felt == crowd.shares(level)


# -- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["policy", "owner"])
def test_sessions(world: World, level: str) -> None:
    owner = fresh_owner()
    body = {"policy": f"sessions-{level}", "credentials": [], "owner": owner}

    def opened(**more: str) -> tuple[int, Any]:
        return world.gate.admin("POST", "/v1/sessions", {**body, **more})

    first = [opened() for _ in range(2)]
    status, answer = opened()
    assert status >= 400
    assert "has its 2 sessions already" in str(answer)
    assert (opened(owner=fresh_owner())[0] < 400) is (level == "owner")
    assert world.gate.admin("DELETE", f"/v1/sessions/{first[0][1]['id']}")[0] == 200
    assert opened()[0] < 400


# -- the window -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_the_second_window_refills(world: World, level: str) -> None:
    """Last in the file: the clock does not go back."""
    visitor = world.visitor(f"requests_per_minute-{level}")
    world.clock.offset += 70
    flood = [ask(world, visitor) for _ in range(REQUESTS + 2)]
    assert flood == [200] * REQUESTS + [429] * 2
    world.clock.offset += 30
    assert used_up(world, visitor)  # half a window is none
    world.clock.offset += 40
    # A worker that has just been told «nothing left» does not ask again for a moment.
    deadline, passed = time.monotonic() + 3, 0
    while passed < REQUESTS:
        passed += ask(world, visitor) == 200
        assert time.monotonic() < deadline
    assert [ask(world, visitor) for _ in range(4)] == [429] * 4


def test_both_workers_were_at_it(world: World) -> None:
    assert len({line["chain"] for line in world.gate.audit(type="http", phase="end")}) == 2
    assert not [line for line in world.gate.audit(type="fault") if line["fault"]["name"] != "clock_step"]
