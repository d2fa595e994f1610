"""Invariant 2: whatever raises, nothing more passes in either direction, and the log says so.

Each hook and each stream callable of a real worker is made to raise: exceptions of every family, those that are no
`Exception` among them. Before an allow no byte and no connection reaches the upstream; afterwards no byte reaches
the client; the gate serves the next request as if nothing had been.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bypass.arena import Arena, Story, make_arena
from tests.lab.client import H2Client, RawClient, RawReply, Refused

HERE = Path(__file__).parent
KINDS = ["runtime", "key", "memory", "recursion", "timeout", "halt", "stop", "cancelled", "exit", "abrupt"]
FEW = ["runtime", "cancelled", "abrupt"]

BEFORE = ["http-connect", "admit", "next-layer", "tls-clienthello", "tls-start-client", "requestheaders", "judge"]
BEFORE += ["resolve", "after-decision"]
UP = ["upload", "upload-end", "after-upload"]
DOWN = ["on-response", "responseheaders", "judge-response", "download", "after-download", "download-end"]
DOWN += ["response", "finish"]


@pytest.fixture(scope="module", name="arena")
def broken_arena() -> Iterator[Arena]:
    root = HERE.parents[1]
    path = os.pathsep.join(str(part) for part in (root / "proxy", root / "addons", root / "launcher", HERE))
    prefix = [sys.executable, "-O", "-P", str(HERE / "faulty_gate.py")]
    with make_arena(names=("*.broken.test",), prefix=prefix, env={"PYTHONPATH": path}) as made:
        yield made


def cases(places: list[str]) -> pytest.MarkDecorator:
    """Every place with every family of exception."""
    table = [(place, kind) for place in places for kind in KINDS]
    return pytest.mark.parametrize(("place", "kind"), table, ids=[f"{place}-{kind}" for place, kind in table])


def few(places: list[str]) -> pytest.MarkDecorator:
    """Every place with one exception of each kind of handling."""
    table = [(place, kind) for place in places for kind in FEW]
    return pytest.mark.parametrize(("place", "kind"), table, ids=[f"{place}-{kind}" for place, kind in table])


def host(arena: Arena, name: str) -> bytes:
    """Return a Host line."""
    return b"Host: %b:%d\r\n" % (name.encode(), arena.one.port)


def healthy(arena: Arena) -> None:
    """Assert that the gate serves, with the worker that it had."""
    with arena.tunnel(arena.one) as raw:
        assert raw.request("GET", "/status/200", host=arena.one.authority).status == 200
    assert "ended" not in arena.gate.stderr
    arena.gate.wait_line("a connection was closed by a fault in the gate")


def faulted(arena: Arena, story: Story) -> None:
    """Assert that the log tells of the fault, and of the request as what the gate failed at."""
    assert story.conns[-1][1]["conn"]["end"] == "internal_fault", story
    assert [line for line in arena.log.lines if line["type"] == "fault"]
    for _, end in story.requests:
        assert (end["verdict"], end["reason"]) == ("error", "internal_fault"), end


def silent(raw: RawClient) -> None:
    """Assert that the client gets not one byte more."""
    try:
        assert raw.read_all() == b""
    except OSError:
        pass


@cases(BEFORE)
def test_P_35_nothing_leaves_before_an_allow(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    port = 0
    with arena.quiet():
        try:
            with arena.tunnel(arena.one, name, tls=False) as raw:
                port = raw.sock.getsockname()[1]
                raw.start_tls(name, ca=arena.ca)
                raw.send(b"POST /echo HTTP/1.1\r\n%bContent-Length: 5\r\n\r\nhello" % host(arena, name))
                silent(raw)
                story = arena.story(raw, port=port)
        except Refused as refused:
            answer = (refused.reply, place in ("http-connect", "admit"))
            story = arena.last_story()
        except OSError:
            answer = (None, place in ("next-layer", "tls-clienthello", "tls-start-client"))
            story = arena.story(raw, port=port)
        else:
            answer = (None, place in BEFORE[5:])
    assert answer == (None, True)
    faulted(arena, story)
    assert not [pair for pair in story.requests if pair[1]["http"]["bytes_up"]]


@few(BEFORE[5:])
def test_nothing_leaves_before_an_allow_over_http2(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.quiet(), arena.tunnel(arena.one, name, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        with pytest.raises((EOFError, OSError)):
            h2.request("POST", "/echo", authority=f"{name}:{arena.one.port}", body=b"hello")
        story = arena.story(raw)
    faulted(arena, story)


@few(["requestheaders", "judge", "resolve"])
def test_nothing_leaves_before_an_allow_in_clear(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.quiet(), arena.tunnel(arena.plain, name, tls=False) as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (name.encode(), arena.plain.port))
        silent(raw)
        story = arena.story(raw)
    faulted(arena, story)


@cases(UP)
def test_an_upload_that_fails_is_never_a_whole_request(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    arena.one.reset()
    with arena.tunnel(arena.one, name) as raw:
        raw.send(b"POST /echo HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % host(arena, name))
        raw.send(b"6\r\nSECRET\r\n0\r\n\r\n")
        silent(raw)
        story = arena.story(raw)
    faulted(arena, story)
    assert arena.one.requests == [], "the server never saw its end"


@few(UP)
def test_an_upload_that_fails_over_http2(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    arena.one.reset()
    with arena.tunnel(arena.one, name, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        with pytest.raises((EOFError, OSError)):
            h2.request("POST", "/echo", authority=f"{name}:{arena.one.port}", body=b"SECRET")
        story = arena.story(raw)
    faulted(arena, story)
    assert arena.one.requests == []


@cases(DOWN)
def test_P_35_no_byte_of_an_answer_that_failed(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.tunnel(arena.one, name) as raw:
        raw.send(b"GET /bytes/1000 HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (name.encode(), arena.one.port))
        silent(raw)
        story = arena.story(raw)
    faulted(arena, story)


@few(DOWN)
def test_no_byte_of_an_answer_that_failed_over_http2(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.tunnel(arena.one, name, alpn=("h2",)) as raw:
        h2 = H2Client(raw)
        with pytest.raises((EOFError, OSError)):
            h2.request("GET", "/bytes/1000", authority=f"{name}:{arena.one.port}")
        story = arena.story(raw)
    faulted(arena, story)


@few(["download", "after-download", "download-end", "response", "finish"])
@pytest.mark.parametrize("path", ["/chunked/200000", "/bytes/200000", "/close/200000"])
def test_a_streamed_answer_that_fails_is_never_whole(arena: Arena, place: str, kind: str, path: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.tunnel(arena.one, name) as raw:
        raw.send(b"GET %b HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (path.encode(), name.encode(), arena.one.port))
        reply = _broken_reply(raw)
        story = arena.story(raw)
    faulted(arena, story)
    if reply is None:
        return
    assert not reply.complete
    if place.endswith("download"):
        assert reply.body == b"", "what the scrubber did not pass stays here"


def _broken_reply(raw: RawClient) -> RawReply | None:
    try:
        return raw.reply()
    except (EOFError, OSError):
        return None


@cases(["error"])
def test_no_word_of_a_denial_whose_record_failed(arena: Arena, place: str, kind: str) -> None:
    name = f"{place}--{kind}.broken.test"
    with arena.quiet(), arena.tunnel(arena.one, name) as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        silent(raw)
        story = arena.story(raw)
    assert story.requests[0][0]["reason"] == "authority_mismatch"
    assert story.conns[0][1]["conn"]["end"] == "internal_fault"


def test_the_gate_serves_on(arena: Arena) -> None:
    healthy(arena)
