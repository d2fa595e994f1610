"""Each session's log budget: bytes an hour, so that a flood of records denies only the flooder."""

from collections.abc import Iterator

from tidegate.audit.event import Subject
from tidegate.audit.tally import Count, Tally

__all__ = ["Spending"]

_HOUR_SECONDS = 3600
_TELL_SECONDS = 60


class _Account:
    __slots__ = ("left", "since", "subject", "tally", "tell_at")

    def __init__(self, subject: Subject, bytes_per_hour: int, now: float) -> None:
        self.subject = subject
        self.since = now
        self.left = bytes_per_hour
        self.tally = Tally()
        self.tell_at = now


class Spending:
    """The accounts of one process. What no session did shares one account."""

    def __init__(self, default_bytes_per_hour: int) -> None:
        self._default = default_bytes_per_hour
        self._accounts: dict[str | None, _Account] = {}

    def over(self, subject: Subject, now: float) -> bool:
        """Return True when the session's hour is used up."""
        account = self._accounts.get(subject.session)
        if account is None or now - account.since >= _HOUR_SECONDS:
            self._renew(subject, now, account)
            return False
        return account.left <= 0

    def charge(self, subject: Subject, size: int) -> None:
        """Book `size` bytes of record to the session."""
        account = self._accounts.get(subject.session)
        if account is not None:
            account.left -= size

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

    def _renew(self, subject: Subject, now: float, old: _Account | None) -> None:
        limit = self._default if subject.log_bytes_per_hour is None else subject.log_bytes_per_hour
        account = self._accounts[subject.session] = _Account(subject, limit, now)
        if old is not None:
            account.tally = old.tally  # refusals not told yet are not forgotten with the hour

    def _told(self, account: _Account, now: float) -> Count:
        account.tell_at = now + _TELL_SECONDS
        return account.tally.take()
