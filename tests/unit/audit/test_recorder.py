"""What the engine calls, and what stands in the log after it."""

import os
from pathlib import Path

import pytest

from tests.lab.clock import SteppedClock
from tests.unit.audit.making import ALICE, BOB, allow, blocks, conn, deny, http, lines
from tidegate.audit.event import CallScope, Config, Credential, Dns, Subject, Ws
from tidegate.audit.recorder import NOBODY, Recorder
from tidegate.audit.redact import loggable
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict


def make(directory: Path, *, log_bytes_per_hour: int = 1 << 30) -> tuple[Recorder, SteppedClock]:
    clock = SteppedClock()
    writer = ChainWriter(directory, "gate-1", clock=clock, fsync="never")
    return Recorder(writer, clock, log_bytes_per_hour=log_bytes_per_hour), clock


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)


def second(recorder: Recorder, clock: SteppedClock, seconds: float = 1.0) -> None:
    clock.forward(seconds)
    recorder.tick(clock.boot())


def test_each_method_writes_one_record_of_its_type_and_phase(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    assert recorder.conn_decision(ALICE, "c1", conn(), verdict=Verdict.ALLOW, rule="r") is None
    assert recorder.http_decision(ALICE, "h1", http(), verdict=Verdict.ALLOW, rule="r", parent="c1") is None
    assert recorder.event(ALICE, "h1", Credential(name="github"), parent="c1") is None
    recorder.http_end(ALICE, "h1", http(status=200), verdict=Verdict.ALLOW, rule="r", parent="c1")
    recorder.conn_end(ALICE, "c1", conn(bytes_up=1), verdict=Verdict.ALLOW, rule="r")
    assert recorder.event(ALICE, "d1", Dns(), verdict=Verdict.DENY, reason=Reason.NOT_IN_ALLOWLIST) is None
    assert recorder.event(NOBODY, None, Config(act="load", epoch=1)) is None
    recorder.incident(ALICE, "h1", "metadata", reason=Reason.METADATA)
    recorder.fault("exception", where="exchange.turn")
    found = [(line["type"], line["phase"], line["flow"], line["parent"]) for line in lines(tmp_path)[1:]]
    assert found == [
        ("conn", "decision", "c1", None),
        ("http", "decision", "h1", "c1"),
        ("credential", "event", "h1", "c1"),
        ("http", "end", "h1", "c1"),
        ("conn", "end", "c1", None),
        ("dns", "event", "d1", None),
        ("config", "event", None, None),
        ("incident", "event", "h1", None),
        ("fault", "event", None, None),
    ]


def test_the_use_of_a_lease_stands_after_the_decision_or_neither_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, _ = make(tmp_path)
    use = Credential(name="github", act="use", lease="l1")
    full_disk(monkeypatch)
    assert recorder.http_decision(ALICE, "h1", http(), verdict=Verdict.ALLOW, use=use) is Reason.AUDIT_UNAVAILABLE
    monkeypatch.undo()
    assert recorder.http_decision(ALICE, "h2", http(), verdict=Verdict.ALLOW, rule="r", parent="c", use=use) is None
    found = [(line["type"], line["phase"], line["flow"], line["parent"], line["rule"]) for line in lines(tmp_path)[1:]]
    assert found == [("http", "decision", "h2", "c", "r"), ("credential", "event", "h2", "c", "r")]


def test_observed_requests_are_marked(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    reason = Reason.NOT_IN_ALLOWLIST
    recorder.http_decision(ALICE, "h", http(), verdict=Verdict.ALLOW, reason=reason, observed=True)
    line = lines(tmp_path)[1]
    assert (line["verdict"], line["reason"], line["observed"]) == ("allow", "not_in_allowlist", True)


def test_a_flood_of_one_refusal_is_twenty_records_and_one_count(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(500):
        clock.forward(0.001)
        assert deny(recorder) is None
    second(recorder, clock)
    found = blocks(tmp_path, "http")
    assert len(found) == 21
    counted = found[-1]
    assert (counted["count"], counted["flow"]) == (480, None)
    assert str(counted["first"]) < str(counted["last"])
    assert counted["http"]["host"] == "evil.example"  # type: ignore[index]


def test_a_long_flood_loses_no_count(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(5):
        for _ in range(100):
            deny(recorder)
        second(recorder, clock)
    found = blocks(tmp_path, "http")
    assert sum(line["count"] or 1 for line in found) == 500  # type: ignore[misc]
    assert len(found) == 5 * 21


def test_what_is_not_the_same_is_not_folded(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for number in range(15):
        deny(recorder, ALICE)
        deny(recorder, BOB)
        deny(recorder, ALICE, host="other.example")
        recorder.conn_decision(ALICE, "f", conn(), verdict=Verdict.DENY, reason=Reason.METADATA)
        assert number >= 0
    second(recorder, clock)
    assert not [line for line in lines(tmp_path) if line["count"]]
    assert len(lines(tmp_path)) == 61


def test_allowed_requests_are_never_folded(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(100):
        allow(recorder)
        recorder.http_end(ALICE, "f", http(), verdict=Verdict.ERROR, reason=Reason.UPSTREAM_TIMEOUT, rule="r")
    second(recorder, clock)
    assert len(blocks(tmp_path, "http")) == 200


def test_close_tells_the_open_counts(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    for _ in range(50):
        deny(recorder)
    recorder.close()
    assert [line["count"] for line in blocks(tmp_path, "http")][-1] == 30
    assert lines(tmp_path)[-1]["writer"]["act"] == "stop"  # type: ignore[index]


def test_V_17_an_exception_storm_is_one_line_each_and_then_a_count(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(10_000):
        recorder.fault("exception", where="runtime.http1:trailers")
    second(recorder, clock)
    assert len(blocks(tmp_path, "fault")) == 21
    assert blocks(tmp_path, "fault")[-1]["count"] == 9980
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl")) < 20_000


def test_a_session_over_its_log_budget_is_denied_alone(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    flooder = Subject(session="s-flood", owner="team", log_bytes_per_hour=5000)
    answers = [deny(recorder, flooder, host=f"h{n}.example") for n in range(50)]
    assert answers[0] is None
    assert answers[-1] is Reason.AUDIT_BUDGET
    assert allow(recorder, ALICE) is None
    (incident,) = blocks(tmp_path, "incident")
    assert (incident["reason"], incident["session"], incident["count"]) == ("audit_budget", "s-flood", 1)
    second(recorder, clock, 61)
    assert blocks(tmp_path, "incident")[-1]["count"] == answers.count(Reason.AUDIT_BUDGET) - 1
    own = [line for line in lines(tmp_path) if line["session"] == "s-flood"]
    assert len(own) < 12


def test_a_flood_without_a_session_changes_no_strangers_answer(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path, log_bytes_per_hour=5000)
    reason = Reason.SESSION_REQUIRED
    for number in range(100):
        answer = recorder.conn_decision(NOBODY, "c", conn(f"h{number}"), verdict=Verdict.DENY, reason=reason)
        assert answer is None
    assert recorder.conn_decision(NOBODY, "c", conn(), verdict=Verdict.ALLOW) is Reason.AUDIT_BUDGET
    second(recorder, clock, 61)
    written = blocks(tmp_path, "conn")
    told = blocks(tmp_path, "incident")
    assert len(written) + sum(line["count"] for line in told) == 101  # type: ignore[misc]


def test_marks_of_allowed_requests_fold(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(50):
        mark = Credential(name="github", act="seen")
        recorder.event(ALICE, "h", mark, verdict=Verdict.ALLOW, reason=Reason.PLACEHOLDER_SEEN)
    second(recorder, clock)
    assert [line["count"] for line in blocks(tmp_path, "credential")] == [None] * 20 + [30]


def test_a_websocket_is_told_over_budget(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    flooder = Subject(session="s-flood", log_bytes_per_hour=1)
    allow(recorder, flooder)
    assert recorder.event(flooder, "w", Ws(bytes_up=1), verdict=Verdict.ALLOW) is None
    assert len(blocks(tmp_path, "ws")) == 1


def test_the_log_budget_is_an_hours(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    flooder = Subject(session="s-flood", log_bytes_per_hour=100)
    assert allow(recorder, flooder) is None
    assert allow(recorder, flooder) is Reason.AUDIT_BUDGET
    clock.forward(3599)
    assert allow(recorder, flooder) is Reason.AUDIT_BUDGET
    clock.forward(1)
    assert allow(recorder, flooder) is None


def test_what_was_allowed_ends_in_the_log_even_over_budget(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    flooder = Subject(session="s-flood", log_bytes_per_hour=100)
    allow(recorder, flooder)
    allow(recorder, flooder)
    recorder.http_end(flooder, "f" * 16, http(status=200), verdict=Verdict.ALLOW, rule="r.1")
    recorder.http_end(flooder, "e" * 16, http(), verdict=Verdict.DENY, reason=Reason.AUDIT_BUDGET)
    assert [line["phase"] for line in blocks(tmp_path, "http")] == ["decision", "end"]


def test_incidents_at_will_are_inside_the_log_budget(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    flooder = Subject(session="s-flood", log_bytes_per_hour=5000)
    for number in range(1000):
        recorder.incident(flooder, "f", "metadata", reason=Reason.METADATA, host=http(f"h{number}").host)
    assert len(blocks(tmp_path, "incident")) < 20


def test_V_09_no_record_no_effect_and_the_gap_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, clock = make(tmp_path)
    assert allow(recorder) is None
    full_disk(monkeypatch)
    assert [allow(recorder) for _ in range(5)] == [Reason.AUDIT_UNAVAILABLE] * 5
    recorder.http_end(ALICE, "e" * 16, http(), verdict=Verdict.DENY, reason=Reason.AUDIT_UNAVAILABLE)
    assert recorder.problem() == "No space left on device"
    second(recorder, clock)
    assert recorder.problem() is not None
    monkeypatch.undo()
    second(recorder, clock)
    assert recorder.problem() is None
    (fault,) = blocks(tmp_path, "fault")
    assert fault["reason"] == "audit_unavailable"
    assert fault["count"] == 5
    assert fault["first"] == "2030-01-02T03:04:05.000000Z"
    assert allow(recorder) is None


def test_a_count_that_could_not_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, clock = make(tmp_path)
    for _ in range(50):
        deny(recorder)
    full_disk(monkeypatch)
    second(recorder, clock)
    monkeypatch.undo()
    second(recorder, clock)
    assert blocks(tmp_path, "fault")[-1]["count"] == 30


def test_a_checkpoint_is_asked_for_and_written(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    allow(recorder)
    clock.forward(11)
    head = recorder.checkpoint_due()
    assert head == recorder.head()
    assert head is not None
    assert recorder.checkpoint(head, "note")
    assert recorder.checkpoint_due() is None
    (line,) = blocks(tmp_path, "checkpoint")
    assert line["checkpoint"] == {"covers": 1, "head": head.head, "note": "note"}


def test_every_record_of_a_call_says_so_the_counted_ones_too(tmp_path: Path) -> None:
    recorder, clock = make(tmp_path)
    call = CallScope(loggable("web\n"), loggable("c1"), "s-parent")
    caller = Subject(session="s-call", owner="team", call=call, log_bytes_per_hour=40_000)
    recorder.conn_decision(caller, "c1", conn(), verdict=Verdict.ALLOW, rule="r")
    recorder.http_decision(caller, "h1", http(), verdict=Verdict.ALLOW, use=Credential(name="github"))
    recorder.http_end(caller, "h1", http(status=200), verdict=Verdict.ALLOW)
    recorder.event(caller, "d1", Dns(), verdict=Verdict.DENY, reason=Reason.NOT_IN_ALLOWLIST)
    recorder.event(caller, "w1", Ws(), verdict=Verdict.ALLOW)
    recorder.incident(caller, "h1", "metadata")
    for _ in range(60):
        deny(recorder, caller)
    second(recorder, clock, 61)
    recorder.close()
    found = [line for line in lines(tmp_path) if line["session"] == "s-call"]
    assert {line["type"] for line in found} == {"conn", "http", "credential", "dns", "ws", "incident"}
    assert any(line["count"] for line in found)
    assert all(line["call"] == {"tool": "web\\x0a", "id": "c1", "parent": "s-parent"} for line in found)
    assert all(line["call"] is None for line in lines(tmp_path) if line["session"] is None)
