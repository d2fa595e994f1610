"""Invariant 6: every decision leaves one audit record, or one counted record, written before its effect.

Here for the writer and the recorder: whatever is decided, and however the disk fails in between,
each call is accounted for exactly once, and «go on» is never said before the line is in the file.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.audit.making import SteppedClock, files, http, lines
from tidegate.audit.event import Subject
from tidegate.audit.recorder import Recorder
from tidegate.audit.writer import ChainWriter
from tidegate.policy.reasons import Reason, Verdict

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
