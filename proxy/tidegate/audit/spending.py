"""The log budgets: bytes an hour, so that a flood of records denies only the flooder.

| account | of | counts |
|---|---|---|
| a session's | this process | at once; without a limit of its own it has the default |
| a pool's (`LogLimit`): a session's, policy's or owner's in all processes | this process | at once |
| | the keeper | what each process has written, told once a second (`debts`) |

A pool that the keeper says is full stays so for a tenth of the window, which is how far the keeper's window slides.
"""

from collections.abc import Iterator

import msgspec

from tidegate.audit.event import LogLimit, Subject
from tidegate.audit.tally import Count, Tally

__all__ = ["Debt", "Spending"]

_HOUR_SECONDS = 3600
_FULL_SECONDS = 360
_TELL_SECONDS = 60


class Debt(msgspec.Struct, frozen=True):
    """Bytes of a pool that were written and that the keeper does not know of yet; `session` is one of the pool's."""

    pool: str
    scope: str
    session: str
    size: int
    limit: int


class _Account:
    __slots__ = ("left", "since", "subject", "tally", "tell_at")

    def __init__(self, subject: Subject, bytes_per_hour: int, now: float) -> None:
        self.subject = subject
        self.since = now
        self.left = bytes_per_hour
        self.tally = Tally()
        self.tell_at = now


class _Pool:
    __slots__ = ("full_at", "full_until", "limit", "owed", "session", "since", "spent")

    def __init__(self, limit: LogLimit, now: float) -> None:
        self.limit = limit
        self.since = now
        self.spent = self.owed = 0
        self.full_until = 0.0
        self.full_at = 0
        self.session: str | None = None

    def is_full(self, limit: LogLimit, now: float) -> bool:
        self.limit = limit
        if now - self.since >= _HOUR_SECONDS:
            self.since, self.spent = now, 0
        # Two policies may give one owner two limits: what is full for one need not be for the other.
        full = now < self.full_until and limit.bytes_per_hour <= self.full_at
        return full or self.spent >= limit.bytes_per_hour


class Spending:
    """The accounts of one process. What no session did shares one account."""

    def __init__(self, default_bytes_per_hour: int) -> None:
        self._default = default_bytes_per_hour
        self._accounts: dict[str | None, _Account] = {}
        self._pools: dict[str, _Pool] = {}

    def over(self, subject: Subject, now: float) -> bool:
        """Return True when the session's hour is used up, or that of a pool it writes from."""
        account = self._accounts.get(subject.session)
        if account is None or now - account.since >= _HOUR_SECONDS:
            account = self._renew(subject, now, account)
        if not subject.log_limits:
            return account.left <= 0
        # Every pool is made or renewed here, also behind one that is full.
        full = [self._pool(limit, now).is_full(limit, now) for limit in subject.log_limits]
        return account.left <= 0 or any(full)

    def charge(self, subject: Subject, size: int) -> None:
        """Book `size` bytes of record to the session and to its pools."""
        account = self._accounts.get(subject.session)
        if account is not None:
            account.left -= size
        for limit in subject.log_limits:
            pool = self._pools.get(limit.pool)
            if pool is not None:
                pool.spent += size
                pool.owed += size
                pool.session = subject.session

    def refuse(self, subject: Subject, now: float, at: str) -> Count | None:
        """Count a refusal; return the count when it is time to tell (the first at once, then once a minute)."""
        account = self._accounts[subject.session]
        account.tally.add(at)
        return self._told(account, now) if now >= account.tell_at else None

    def due(self, now: float) -> Iterator[tuple[Subject, Count]]:
        """Yield the counts that are due to be told, and forget idle accounts."""
        for account in self._accounts.values():
            if account.tally.count and now >= account.tell_at:
                yield account.subject, self._told(account, now)
        self._accounts = {
            key: account
            for key, account in self._accounts.items()
            if account.tally.count or now - account.since < _HOUR_SECONDS
        }
        self._pools = {key: pool for key, pool in self._pools.items() if now - pool.since < _HOUR_SECONDS}

    def debts(self) -> list[Debt]:
        """Take what the keeper must be told of."""
        found = []
        for name, pool in self._pools.items():
            if pool.owed > 0 and pool.session is not None:
                found.append(Debt(name, pool.limit.scope, pool.session, pool.owed, pool.limit.bytes_per_hour))
                pool.owed = 0
        return found

    def owe(self, debt: Debt, size: int) -> None:
        """Take back what could not be told."""
        pool = self._pools.get(debt.pool)
        if pool is not None:
            pool.owed += size

    def fill(self, debt: Debt, now: float) -> None:
        """Take the keeper's word that the pool of a debt is used up."""
        pool = self._pools.get(debt.pool)
        if pool is not None:
            pool.full_until, pool.full_at = now + _FULL_SECONDS, debt.limit

    def _pool(self, limit: LogLimit, now: float) -> _Pool:
        pool = self._pools.get(limit.pool)
        if pool is None:
            pool = self._pools[limit.pool] = _Pool(limit, now)
        return pool

    def _renew(self, subject: Subject, now: float, old: _Account | None) -> _Account:
        limit = self._default if subject.log_bytes_per_hour is None else subject.log_bytes_per_hour
        account = self._accounts[subject.session] = _Account(subject, limit, now)
        if old is not None:
            account.tally = old.tally  # refusals not told yet are not forgotten with the hour
        return account

    def _told(self, account: _Account, now: float) -> Count:
        account.tell_at = now + _TELL_SECONDS
        return account.tally.take()
