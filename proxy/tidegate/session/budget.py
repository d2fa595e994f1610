"""Budgets in a worker: prepaid slices, spent in memory, drawn from the keeper when they run out.

The keeper counts a slice as spent when it is drawn, so the sum over all workers never exceeds the
limit. A slice that is not spent within a tenth of its window is thrown away: spent later, it
would come on top of what the next window grants (the keeper counts eleven tenths for the same reason).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from tidegate.clock import SYSTEM, Clock
from tidegate.session.identity import SessionId

__all__ = ["BudgetLedger", "Charge", "Draw"]

type Draw = Callable[[SessionId, str, str, int, int, int], Awaitable[int]]

_SLICES = 32
_MOST_SLICES = 65536
_PAUSE_SECONDS = 0.25  # after an empty draw, so that a flooder does not flood the keeper
Kind = Literal["requests", "upload_bytes", "distinct_names"]


class Charge(msgspec.Struct, frozen=True):
    """One budget that something counts against.

    `key` is `session`, `policy`, `owner` or `rule:ID`; for `distinct_names`, with `:NAME` after it.
    """

    session: SessionId
    kind: Kind
    key: str
    limit: int
    window_seconds: int


class _Slice:
    __slots__ = ("drawn_at", "empty_until", "left")

    def __init__(self) -> None:
        self.left = 0
        self.drawn_at = 0.0
        self.empty_until = 0.0


class BudgetLedger:
    """The slices of one worker. `draw` is `KeeperClient.draw`."""

    def __init__(self, draw: Draw, clock: Clock = SYSTEM) -> None:
        self._draw = draw
        self._clock = clock
        self._slices: dict[Charge, _Slice] = {}

    def take(self, charges: Sequence[Charge], amount: int = 1) -> bool | None:
        """Take `amount` from every charge, or from none: True paid, False used up, None: ask `take_or_draw`."""
        now = self._clock.boot()
        slices = [self._slice(charge, now) for charge in charges]
        if all(one.left >= amount for one in slices):
            for charge, one in zip(charges, slices, strict=True):
                if charge.kind != "distinct_names":  # a name is paid once, then free while its slice lasts
                    one.left -= amount
            return True
        if any(one.left < amount and one.empty_until > now for one in slices):
            return False
        return None

    async def take_or_draw(self, charges: Sequence[Charge], amount: int = 1) -> bool:
        """Take as `take` does, drawing what is short; False when a budget is used up or the keeper is gone."""
        paid = self.take(charges, amount)
        if paid is not None:
            return paid
        for charge in charges:
            await self._fill(charge, amount)
        return self.take(charges, amount) is True

    def forget(self, session: SessionId) -> None:
        """Drop the slices of a session that has ended."""
        for charge in [charge for charge in self._slices if charge.session == session]:
            del self._slices[charge]

    def _slice(self, charge: Charge, now: float) -> _Slice:
        one = self._slices.get(charge)
        if one is None:
            if len(self._slices) >= _MOST_SLICES:
                self._slices.clear()  # costs a draw each, never a limit
            one = self._slices[charge] = _Slice()
        if one.left and now - one.drawn_at > charge.window_seconds / 10:
            one.left = 0
        return one

    async def _fill(self, charge: Charge, amount: int) -> None:
        one = self._slice(charge, self._clock.boot())
        missing = amount - one.left
        if missing <= 0:
            return
        asked_at = self._clock.boot()
        wanted = missing if charge.kind == "distinct_names" else max(missing, charge.limit // _SLICES)
        granted = await self._draw(charge.session, charge.kind, charge.key, wanted, charge.limit, charge.window_seconds)
        one = self._slice(charge, self._clock.boot())
        if granted > 0:
            one.drawn_at = asked_at if not one.left else one.drawn_at
            one.left += granted
        if one.left < amount:
            one.empty_until = self._clock.boot() + _PAUSE_SECONDS
