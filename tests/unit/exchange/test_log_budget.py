"""What was written is told to the keeper; its answer closes a log budget, its silence does not."""

import dataclasses
from pathlib import Path

import pytest

from tests.lab.clock import SteppedClock
from tidegate.audit.event import Conn, LogLimit, Subject
from tidegate.audit.flow import new_flow
from tidegate.audit.recorder import Recorder
from tidegate.audit.writer import ChainWriter
from tidegate.exchange.log_budget import settle
from tidegate.policy.reasons import Reason, Verdict
from tidegate.session.identity import SessionId

SUBJECT = Subject(session="s", owner="o", log_limits=(LogLimit("policy", "policy/p", 1_000_000),))


@dataclasses.dataclass
class Purse:
    """A keeper's budget that grants at most a slice at once."""

    left: int
    piece: int = 100
    away: bool = False
    asked: list[tuple[str, str, str, int]] = dataclasses.field(default_factory=list)

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason:
        self.asked.append((session, kind, key, limit))
        if self.away:
            return Reason.KEEPER_UNAVAILABLE
        granted = min(amount, self.piece, self.left)
        self.left -= granted
        return granted


def write(recorder: Recorder) -> Reason | None:
    return recorder.conn_decision(SUBJECT, new_flow(), Conn(client="127.0.0.1:1"), verdict=Verdict.ALLOW)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    clock = SteppedClock()
    return Recorder(ChainWriter(tmp_path, "gate-1", clock=clock, fsync="never"), clock)


async def test_all_that_was_written_is_booked_slice_by_slice(recorder: Recorder) -> None:
    assert write(recorder) is None
    purse = Purse(1_000_000)
    await settle(recorder, purse, 0.0)
    booked = 1_000_000 - purse.left
    assert booked > 200
    assert len(purse.asked) == -(-booked // 100)
    assert set(purse.asked) == {("s", "log_bytes", "policy", 1_000_000)}
    await settle(recorder, purse, 1.0)
    assert 1_000_000 - purse.left == booked
    assert write(recorder) is None


async def test_a_budget_that_others_used_up_is_closed_here(recorder: Recorder) -> None:
    assert write(recorder) is None
    await settle(recorder, Purse(150), recorder._clock.boot())
    assert write(recorder) is Reason.AUDIT_BUDGET


async def test_a_keeper_that_is_away_closes_nothing_and_hears_of_it_later(recorder: Recorder) -> None:
    assert write(recorder) is None
    await settle(recorder, Purse(0, away=True), 0.0)
    assert write(recorder) is None
    purse = Purse(1_000_000)
    await settle(recorder, purse, 1.0)
    assert 1_000_000 - purse.left > 400  # both lines
