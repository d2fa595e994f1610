"""Invariant 6: every decision leaves one audit record, or one counted record, written before its effect.

First for the writer and the recorder: whatever is decided, and however the disk fails in between,
each call is accounted for exactly once, and «go on» is never said before the line is in the file.
Then for the gate as a whole: however a connection or a request ends, it has one decision and one end
(`Arena.story` asserts that much of every connection).
"""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bypass.arena import Arena, make_arena
from tests.lab.client import H2Client, RawClient
from tests.lab.clock import SteppedClock
from tests.unit.audit.making import files, http, lines
from tidegate.audit.event import Subject
from tidegate.audit.recorder import Recorder
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
SUBJECTS = (Subject(session="a"), Subject(session="b", log_bytes_per_hour=4000), Subject())
OUTCOMES = (
    (Verdict.ALLOW, None),
    (Verdict.ALLOW, Reason.NOT_IN_ALLOWLIST),  # observed
    (Verdict.DENY, Reason.NOT_IN_ALLOWLIST),
    (Verdict.DENY, Reason.METADATA),
    (Verdict.ERROR, Reason.DNS_FAILURE),
)

step = st.tuples(
    st.sampled_from(SUBJECTS),
    st.sampled_from(OUTCOMES),
    st.integers(1, 60),  # how often
    st.sampled_from(["works", "full", "short"]),  # the disk meanwhile
    st.sampled_from([0.0, 0.4, 1.0, 70.0]),  # the pause after it
)


@contextmanager
def disk(state: str) -> Iterator[None]:
    """Let the kernel answer as a full disk does."""
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def short(fd: int, data: bytes) -> int:
        return real(fd, data[: len(data) // 2])

    with pytest.MonkeyPatch.context() as patch:
        if state != "works":
            patch.setattr(os, "write", full if state == "full" else short)
        yield


@given(steps=st.lists(step, max_size=12))
def test_every_decision_is_accounted_for_once(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Subject, tuple[Verdict, Reason | None], int, str, float]],
) -> None:
    directory = tmp_path_factory.mktemp("audit")
    clock = SteppedClock()
    recorder = Recorder(ChainWriter(directory, "gate-1", clock=clock, fsync="never"), clock)
    calls = allowed = 0
    for subject, (verdict, reason), times, state, pause in steps:
        with disk(state):
            for _ in range(times):
                calls += 1
                answer = recorder.http_decision(subject, "f" * 16, http(), verdict=verdict, reason=reason)
                assert answer in (None, Reason.AUDIT_UNAVAILABLE, Reason.AUDIT_BUDGET)
                allowed += answer is None and verdict is Verdict.ALLOW
            clock.forward(pause)
            recorder.tick(clock.boot())
    recorder.close()
    found = lines(directory)
    told = [line for line in found if line["type"] in ("http", "incident", "fault")]
    assert sum(line["count"] or 1 for line in told) == calls  # type: ignore[misc]
    assert sum(line["verdict"] == "allow" for line in found) == allowed
    assert [line["seq"] for line in found] == list(range(len(found)))


def test_go_on_is_said_only_when_the_line_is_in_the_file(tmp_path: Path) -> None:
    recorder = Recorder(ChainWriter(tmp_path, "gate-1", fsync="never"))
    for number in range(20):
        flow = f"{number:016x}"
        assert recorder.http_decision(SUBJECTS[0], flow, http(), verdict=Verdict.ALLOW) is None
        assert json.loads(files(tmp_path)[0].read_bytes().splitlines()[-1])["flow"] == flow


@pytest.mark.parametrize("state", ["full", "short"])
def test_no_line_no_effect(tmp_path: Path, state: str) -> None:
    recorder = Recorder(ChainWriter(tmp_path, "gate-1", fsync="never"))
    before = files(tmp_path)[0].read_bytes()
    with disk(state):
        answer = recorder.http_decision(SUBJECTS[0], "f" * 16, http(), verdict=Verdict.ALLOW)
    assert answer is Reason.AUDIT_UNAVAILABLE
    assert files(tmp_path)[0].read_bytes() == before


# -- on the real gate: each way in which a connection or a request can end --------------------------------


@pytest.fixture(scope="module", name="arena")
def running_arena() -> Iterator[Arena]:
    with make_arena(limits={"header_timeout_seconds": 1}) as made:
        yield made


def _slow(raw: RawClient, data: bytes) -> None:
    """Begin something, and wait until the gate has had enough."""
    raw.send(data)
    with contextlib.suppress(OSError):
        raw.read_all()


@pytest.mark.parametrize("data", [b"", b"GET http://x", b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n"])
def test_a_head_that_never_ends_has_one_record(arena: Arena, data: bytes) -> None:
    with arena.quiet(), arena.connect() as raw:
        if data:
            _slow(raw, data)
        story = arena.story(raw)
    assert len(story.conns) == 1
    assert story.requests == []
    story.silently(Reason.CLIENT_TIMEOUT)


@pytest.mark.parametrize("tls", [True, False], ids=["inside_tls", "in_clear"])
def test_a_head_that_never_ends_in_a_tunnel_has_one_record(arena: Arena, tls: bool) -> None:
    with arena.quiet(), arena.tunnel(arena.one if tls else arena.plain, tls=tls) as raw:
        _slow(raw, b"GET / HTTP/1.1\r\nHos")
        story = arena.story(raw)
    assert story.conns[0][1]["conn"]["end"] == "client_timeout"


def test_a_hello_that_never_ends_has_one_record(arena: Arena) -> None:
    with arena.quiet(), arena.tunnel(arena.one, tls=False) as raw:
        _slow(raw, b"\x16\x03\x01\x01\x00\x01\x00")
        story = arena.story(raw)
    assert story.conns[0][1]["conn"]["end"] == "client_timeout"


H2_FAULTS = {
    "no_preface": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "data_on_an_idle_stream": PREFACE + b"\x00\x00\x01\x00\x01\x00\x00\x00\x01x",
    "headers_that_are_none": PREFACE + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
    "even_stream": PREFACE + b"\x00\x00\x01\x01\x05\x00\x00\x00\x02\x82",
    "frame_too_long": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "window_of_zero": PREFACE + b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("data", H2_FAULTS.values(), ids=H2_FAULTS.keys())
def test_an_http2_connection_that_is_none_has_its_record(arena: Arena, data: bytes) -> None:
    with arena.quiet(), arena.tunnel(arena.two, alpn=("h2",)) as raw:
        _slow(raw, data)
        story = arena.story(raw)
    story.silently(Reason.AMBIGUOUS)
    assert len(story.requests) == 1


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_a_client_that_leaves_in_the_middle_has_its_end(arena: Arena, alpn: str) -> None:
    server = arena.two if alpn == "h2" else arena.one
    with arena.tunnel(server, alpn=(alpn,)) as raw:
        if alpn == "h2":
            H2Client(raw).begin("GET", "/download", authority=server.authority)
        else:
            raw.send(b"GET /download HTTP/1.1\r\nHost: %b\r\n\r\n" % server.authority.encode())
        server.wait(lambda seen: any(request.path == "/download" for request in seen.requests))
        story = arena.story(raw)
    decision, end = story.requests[0]
    assert decision["verdict"] == "allow"
    assert (end["verdict"], end["reason"], end["http"]["end"]) == ("error", None, "client_left")


def test_a_client_that_leaves_in_its_upload_has_its_end(arena: Arena) -> None:
    with arena.tunnel(arena.one) as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nHost: %b\r\nContent-Length: 1000\r\n\r\nhello" % arena.one.authority.encode())
        arena.one.wait(lambda server: server.bytes_in > 0)
        story = arena.story(raw)
    assert story.requests[0][1]["verdict"] == "error"


UPSTREAM_FAULTS = {
    "nothing": b"",
    "no_http": b"220 mail.test ESMTP\r\n",
    "two_lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "short_body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nab",
    "bad_chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("data", UPSTREAM_FAULTS.values(), ids=UPSTREAM_FAULTS.keys())
def test_an_upstream_that_breaks_has_its_end(arena: Arena, data: bytes) -> None:
    arena.one.route("/broken", data)
    with arena.tunnel(arena.one) as raw:
        raw.send(b"GET /broken HTTP/1.1\r\nHost: %b\r\n\r\n" % arena.one.authority.encode())
        with contextlib.suppress(EOFError):
            raw.reply()
        story = arena.story(raw)
    decision, end = story.requests[0]
    assert decision["verdict"] == "allow"
    assert (end["verdict"], end["reason"]) == ("error", "bad_upstream")


def test_a_revoked_session_has_the_end_of_what_it_cut(arena: Arena) -> None:
    session = arena.gate.session()
    arena.one.gate_events()
    with arena.tunnel(arena.one, token=session.token) as raw:
        raw.send(b"GET /sse/5 HTTP/1.1\r\nHost: %b\r\n\r\n" % arena.one.authority.encode())
        arena.one.wait(lambda server: any(request.path == "/sse/5" for request in server.requests))
        assert arena.gate.admin("DELETE", f"/v1/sessions/{session.id}")[0] in (200, 204)
        with contextlib.suppress(OSError):
            raw.read_all()
        story = arena.story(raw)
    assert story.conns[0][1]["conn"]["end"] == "revoked"
    ((_, end),) = story.requests
    assert (end["verdict"], end["reason"], end["http"]["end"]) == ("deny", "session_invalid", "revoked")


def test_the_whole_log_of_the_gate_is_in_pairs(arena: Arena) -> None:
    phases: dict[str, list[str]] = {}
    for line in arena.gate.wait_audit(type="conn", phase="end") and arena.log.more():
        if line["type"] in ("conn", "http") and line["phase"] != "event" and line["count"] is None:
            phases.setdefault(line["flow"], []).append(line["phase"])
    assert phases
    assert {tuple(found) for found in phases.values()} == {("decision", "end")}
    assert not [line for line in arena.log.lines if line["type"] == "fault"]
