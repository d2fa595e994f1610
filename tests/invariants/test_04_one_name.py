"""Invariant 4: CONNECT authority, SNI, Host or :authority and the name resolved are one normalised name.

Every combination of two names in the places of one request is tried, over HTTP/1.1 and HTTP/2: with the same name
everywhere the upstream sees that name everywhere; with any difference it sees nothing.
"""

import itertools
from collections.abc import Iterator

import pytest

from tests.bypass.arena import ONE, Arena, fields, make_arena
from tests.lab.client import H2Client

OTHER = "other.wild.allowed.test"
"""Allowed as well, at the same server: a difference is refused although both names are good."""


@pytest.fixture(scope="module", name="arena")
def running_arena() -> Iterator[Arena]:
    with make_arena() as made:
        yield made


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
@pytest.mark.parametrize("same", [ONE, ONE.upper(), f"{ONE}."], ids=["lower", "upper", "dot"])
def test_one_name_in_all_places(arena: Arena, alpn: str, same: str) -> None:
    asked = arena.dns.count(ONE)
    with arena.tunnel(arena.one, same, sni=same.rstrip("."), alpn=(alpn,)) as raw:
        host = f"{same}:{arena.one.port}"
        if alpn == "h2":
            reply = H2Client(raw).request("GET", "/echo", authority=host)
        else:
            reply = raw.request("GET", "/echo", host=host)
        story = arena.story(raw)
    assert reply.json()["sni"] == ONE
    assert fields(reply)["host"] == [arena.one.authority]
    assert arena.dns.count(ONE) >= asked
    told = {line["conn"]["name"] for pair in story.conns for line in pair}
    told |= {line["http"]["host"] for pair in story.requests for line in pair}
    assert told == {ONE}


MIXED = [names for names in itertools.product([ONE, OTHER], repeat=3) if len(set(names)) > 1]


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
@pytest.mark.parametrize(("connect", "sni", "host"), MIXED, ids=["-".join(n.split(".")[0] for n in m) for m in MIXED])
def test_two_names_are_refused_though_both_are_allowed(
    arena: Arena, alpn: str, connect: str, sni: str, host: str
) -> None:
    with arena.quiet(ONE, OTHER), arena.tunnel(arena.one, connect, sni=sni, alpn=(alpn,)) as raw:
        authority = f"{host}:{arena.one.port}"
        if alpn == "h2":
            reply = H2Client(raw).request("GET", "/echo", authority=authority)
        else:
            reply = raw.request("GET", "/echo", host=authority)
        story = arena.story(raw)
    assert (reply.status, reply.reason) == ((403, "sni_mismatch") if sni != connect else (421, "authority_mismatch"))
    assert story.requests[0][1]["http"]["host"] == connect


@pytest.mark.parametrize("target", [ONE, OTHER])
def test_absolute_target_and_host_are_one(arena: Arena, target: str) -> None:
    names = (f"{target}:{arena.plain.port}", f"third.wild.allowed.test:{arena.plain.port}")
    with arena.quiet(), arena.connect() as raw:
        raw.send(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (names[0].encode(), names[1].encode(), arena.proof))
        reply = raw.reply()
        arena.story(raw)
    assert (reply.status, reply.reason) == (400, "ambiguous_host")
