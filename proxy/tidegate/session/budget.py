"""Budgets in a worker: prepaid slices, spent in memory, drawn from the keeper when they run out.

| rule | so that |
|---|---|
| the keeper counts a slice as spent when it is drawn | the sum over all workers never exceeds the limit |
| an amount above a charge's own limit is refused before anything is drawn | no request takes what it could never use |
| the session's own charge is drawn first, and one that fails ends it | who has nothing takes nothing of others |
| a slice belongs to all that share the budget (`Charge.pool`) | what one drew and did not use, the next one uses |
| one draw is at most a slice, a 32nd of the limit | what lies unused in a worker is little |
| what keeps a slice from being drawn is the refusal's reason | a keeper that is gone is no budget that is used up |

A slice that is not spent within a tenth of its window is thrown away: spent later, it would come on top of what the
next window grants (the keeper counts eleven tenths for the same reason).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import msgspec

from tidegate.clock import SYSTEM, Clock
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

__all__ = ["OBSERVED_BYTES", "WINDOWS", "BudgetLedger", "Charge", "Draw", "Kind", "slice_of"]

type Draw = Callable[[SessionId, str, str, int, int], Awaitable[int | Reason]]

Kind = Literal["requests", "upload_bytes", "distinct_names", "observed_bytes", "log_bytes"]

WINDOWS: Final[dict[str, int]] = {
    "requests": 60,
    "upload_bytes": 3600,
    "distinct_names": 3600,
    "observed_bytes": 86_400,
    "log_bytes": 3600,
}
"""The window of each kind of budget, in seconds; the keeper's and the worker's are the same."""

OBSERVED_BYTES: Final = 1_000_000
"""What may leave under one policy by `observe` alone, in a window that is as long as observing may last."""

_SLICES: Final = 32
_MOST_DRAWS: Final = 2 * _SLICES
_MOST_KEPT: Final = 65536
_PAUSE_SECONDS: Final = 0.25  # after a draw that gave nothing, so that a flooder does not flood the keeper


def slice_of(limit: int) -> int:
    """Return the most that one draw on a budget of `limit` may take."""
    return max(limit // _SLICES, 1)


class Charge(msgspec.Struct, frozen=True):
    """One budget that something counts against.

    `key` is `session`, `policy`, `owner` or `rule:ID`; for `distinct_names`, with `:NAME` after it. `pool` names
    whose it is: the policy, the owner or, for a call's session, the one that it is made in; empty: the session's own.
    """

    session: SessionId
    kind: Kind
    key: str
    limit: int
    pool: str = ""

    @property
    def window_seconds(self) -> int:
        """The window of its kind."""
        return WINDOWS[self.kind]

    @property
    def shared(self) -> bool:
        """Whether other sessions use the same budget."""
        return bool(self.pool)


class _Slice:
    __slots__ = ("drawing", "drawn_at", "left", "refused", "refused_until")

    def __init__(self) -> None:
        self.left = 0
        self.drawn_at = 0.0
        self.refused = Reason.BUDGET
        self.refused_until = 0.0
        self.drawing: asyncio.Lock | None = None

    def refusal(self, now: float) -> Reason | None:
        """Say why the last draw gave nothing, for as long as it is not tried again."""
        return self.refused if self.refused_until > now else None


type _Key = tuple[str, str, str, int]


class BudgetLedger:
    """The slices of one worker. `draw` is `KeeperClient.draw`."""

    def __init__(self, draw: Draw, clock: Clock = SYSTEM) -> None:
        self._draw = draw
        self._clock = clock
        self._slices: dict[_Key, _Slice] = {}

    def take(self, charges: Sequence[Charge], amount: int = 1) -> bool | Reason:
        """Take `amount` from every charge, or from none: True paid, False ask `take_or_draw`, else why not."""
        now = self._clock.boot()
        slices = [self._slice(charge, now) for charge in charges]
        if all(one.left >= amount for one in slices):
            for charge, one in zip(charges, slices, strict=True):
                if charge.kind != "distinct_names":  # a name is paid once, then free while its slice lasts
                    one.left -= amount
            return True
        if any(charge.limit < amount for charge in charges):
            return Reason.BUDGET  # however often it is asked, and nothing need be drawn to know it
        refusals = (one.refusal(now) for one in slices if one.left < amount)
        return next((reason for reason in refusals if reason is not None), False)

    async def take_or_draw(self, charges: Sequence[Charge], amount: int = 1) -> Reason | None:
        """Take as `take` does, drawing what is short; return why it is not paid: `BUDGET`, or what the keeper said."""
        # Again when another took in the meantime what was drawn here; each time round something was granted.
        for _ in range(_MOST_DRAWS):
            paid = self.take(charges, amount)
            if paid:
                return None if paid is True else paid
            for charge in charges:
                refused = await self._fill(charge, amount)
                if refused is not None:
                    return refused
        return None if self.take(charges, amount) is True else Reason.BUDGET

    def forget(self, session: SessionId) -> None:
        """Drop the slices of a session that has ended; what it drew of others' budgets stays for them."""
        for key in [key for key in self._slices if key[0] == session]:
            del self._slices[key]

    def _slice(self, charge: Charge, now: float) -> _Slice:
        key = (charge.pool or charge.session, charge.kind, charge.key, charge.limit)
        one = self._slices.get(key)
        if one is None:
            if len(self._slices) >= _MOST_KEPT:
                self._slices.clear()  # costs a draw each, never a limit
            one = self._slices[key] = _Slice()
        if one.left and now - one.drawn_at > charge.window_seconds / 10:
            one.left = 0
        return one

    async def _fill(self, charge: Charge, amount: int) -> Reason | None:
        """Draw until `amount` is there; return why it is not, when the keeper grants no more."""
        one = self._slice(charge, self._clock.boot())
        if one.left >= amount:
            return None
        if one.drawing is None:
            one.drawing = asyncio.Lock()
        async with one.drawing:  # one at a time, or each who waits would draw a slice of its own
            for _ in range(_MOST_DRAWS):
                asked_at = self._clock.boot()
                one = self._slice(charge, asked_at)
                if one.left >= amount:
                    return None
                if (refused := one.refusal(asked_at)) is not None:
                    return refused
                wanted = 1 if charge.kind == "distinct_names" else slice_of(charge.limit)
                granted = await self._draw(charge.session, charge.kind, charge.key, wanted, charge.limit)
                if isinstance(granted, Reason) or granted <= 0:
                    return self._refuse(charge, one, granted if isinstance(granted, Reason) else Reason.BUDGET)
                one.drawn_at = asked_at if not one.left else one.drawn_at
                one.left += granted
        return None if one.left >= amount else Reason.BUDGET

    def _refuse(self, charge: Charge, one: _Slice, reason: Reason) -> Reason:
        """Remember for a moment that a draw gave nothing; but not one session's end, where others share the slice."""
        if reason is not Reason.SESSION_INVALID or not charge.shared:
            one.refused, one.refused_until = reason, self._clock.boot() + _PAUSE_SECONDS
        return reason
