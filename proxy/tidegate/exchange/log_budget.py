"""Tells the keeper how much log was written, so that a log budget holds over all workers and over restarts."""

from typing import Protocol

from tidegate.audit.recorder import Recorder
from tidegate.audit.spending import Debt
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

__all__ = ["Purse", "settle"]


class Purse(Protocol):
    """What this asks of the keeper."""

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason: ...  # noqa: D102 - as KeeperClient


async def settle(recorder: Recorder, keeper: Purse, now: float) -> None:
    """Tell what was written since the last time; a pool for which that was too much is closed (boot clock `now`)."""
    for debt in recorder.log_debts():
        await _settle_one(debt, recorder, keeper, now)


async def _settle_one(debt: Debt, recorder: Recorder, keeper: Purse, now: float) -> None:
    left = debt.size
    while left > 0:
        booked = await keeper.draw(SessionId(debt.session), "log_bytes", debt.scope, left, debt.limit)
        if isinstance(booked, Reason):
            # No keeper, or a session that has ended meanwhile: the pool's next writer pays for it.
            recorder.owe_log(debt, left)
            return
        if booked <= 0:
            recorder.log_is_full(debt, now)
            return
        left -= booked
