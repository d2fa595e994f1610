"""What a running gate has decided, read from its log: for tests of an agent, and of the policy that it runs under.

    log = EgressLog(audit_folder())
    egress = Egress(log)
    …
    egress.assert_denied("evil.test", reason="not_in_allowlist")

A decision stands in the log before its effect, so what a client has got an answer to is there. What it has only sent
may not be yet: an assertion looks again until its time is over.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tidegate.audit.query import Entry, Filter, Reader

__all__ = ["Decided", "Egress", "EgressLog"]

_TYPES: Final = ("http", "conn", "dns")
_AGAIN_SECONDS: Final = 0.05
_SHOWN: Final = 20


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the log. `untrusted_host` is the name that was asked for, which the sandbox chose."""

    type: str
    verdict: str
    untrusted_host: str
    reason: str | None = None
    session: str | None = None
    flow: str | None = None

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.verdict} {self.type} {self.untrusted_host}{reason}"


class EgressLog:
    """All decisions since this was made, of every session. The log is read on from where it was read to."""

    def __init__(self, audit: Path) -> None:
        """Take the folder of the log. Raises `AuditError` when it cannot be read."""
        self._reader = Reader(audit, Filter())
        self._decided: list[Decided] = []
        for _ in self._reader.read():
            pass  # of before

    def decided(self) -> list[Decided]:
        """Return the decisions up to now."""
        self._decided += [one for entry in self._reader.read() if (one := _decided(entry)) is not None]
        return self._decided


class Egress:
    """The decisions from when this was made: what one test's code tried, and what came of it."""

    def __init__(self, log: EgressLog, *, session: str | None = None, wait_seconds: float = 5.0) -> None:
        """Begin now. `session` narrows to one; an assertion waits for at most `wait_seconds`."""
        self._log, self._session = log, session
        self.wait_seconds = wait_seconds
        self._first = len(log.decided())

    def of(self, session: str) -> "Egress":
        """Return the same for one session alone, such as `Run.session`."""
        narrowed = Egress(self._log, session=session, wait_seconds=self.wait_seconds)
        narrowed._first = self._first
        return narrowed

    @property
    def decisions(self) -> tuple[Decided, ...]:
        """What was decided so far, oldest first."""
        found = self._log.decided()[self._first :]
        return tuple(one for one in found if self._session in (None, one.session))

    def assert_denied(self, host: str, *, reason: str | None = None) -> None:
        """Raise `AssertionError` unless something to this host was denied, for this reason where one is given."""
        __tracebackhide__ = True
        self._await(
            host,
            lambda found: any(one.verdict == "deny" and reason in (None, one.reason) for one in found),
            f"no denial of {host}" + (f" for {reason}" if reason else ""),
        )

    def assert_allowed(self, host: str) -> None:
        """Raise `AssertionError` unless something to this host was let through.

        Where requests were made it is a request; a connection alone counts where none was, as in raw TCP.
        """
        __tracebackhide__ = True
        self._await(host, _let_through, f"nothing to {host} was let through")

    def _await(self, host: str, holds: Callable[[list[Decided]], bool], otherwise: str) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + self.wait_seconds
        while True:
            seen = self.decisions
            if holds([one for one in seen if one.untrusted_host == host.lower()]):
                return
            if time.monotonic() >= deadline:
                shown = "".join(f"\n  {one}" for one in seen[-_SHOWN:]) or " nothing"
                raise AssertionError(f"{otherwise} within {self.wait_seconds:g} s; in the log since:{shown}")
            time.sleep(_AGAIN_SECONDS)  # the log is a file: nothing else can be waited for


def _let_through(found: list[Decided]) -> bool:
    requests = [one for one in found if one.type == "http"]
    return any(one.verdict == "allow" and one.type != "dns" for one in requests or found)


def _decided(entry: Entry) -> Decided | None:
    record = entry.record
    if record.type not in _TYPES or record.phase == "end" or record.verdict is None:
        return None
    block = entry.block()
    host = block.get("host", block.get("name"))
    return Decided(
        type=record.type,
        verdict=record.verdict,
        untrusted_host=host.lower() if isinstance(host, str) else "",
        reason=record.reason,
        session=record.session,
        flow=record.flow,
    )
