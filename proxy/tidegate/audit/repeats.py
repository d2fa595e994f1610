"""Folding: of one kind of refusal at most twenty a second are written out, the rest is counted."""

from collections.abc import Iterator
from typing import NamedTuple

from tidegate.audit.event import Block, Phase, Subject
from tidegate.audit.tally import Count, Tally
from tidegate.policy.reasons import Reason, Verdict

__all__ = ["PER_SECOND", "RepeatKey", "Repeats", "Sample"]

PER_SECOND = 20
_KEYS_CAP = 50_000


class RepeatKey(NamedTuple):
    """What makes two refusals the same."""

    session: str | None
    kind: str
    phase: Phase
    reason: Reason | None
    name: str | None


class Sample(NamedTuple):
    """One of the repeats, to stand for all of them."""

    subject: Subject
    block: Block
    phase: Phase
    verdict: Verdict | None
    reason: Reason | None
    rule: str | None


class _Seen:
    __slots__ = ("in_second", "sample", "second", "tally")

    def __init__(self, second: int, sample: Sample) -> None:
        self.second = second
        self.in_second = 0
        self.sample = sample
        self.tally = Tally()


class Repeats:
    """Counts refusals by key, second by second."""

    def __init__(self) -> None:
        self._seen: dict[RepeatKey, _Seen] = {}

    def folds(self, sample: Sample, now: float, at: str) -> bool:
        """Return True when this one is only counted; False when it is to be written out."""
        key = RepeatKey(
            sample.subject.session, sample.block.kind, sample.phase, sample.reason, sample.block.subject_name
        )
        second = int(now)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _KEYS_CAP:
                self._forget_singles()
            seen = self._seen[key] = _Seen(second, sample)
        if seen.second != second:
            seen.second, seen.in_second = second, 0
        seen.in_second += 1
        if seen.in_second <= PER_SECOND:
            return False
        seen.sample = sample
        seen.tally.add(at)
        return True

    def flush(self, now: float) -> Iterator[tuple[Sample, Count]]:
        """Yield what was counted since the last flush; forget keys of past seconds."""
        for seen in self._seen.values():
            if seen.tally.count:
                yield seen.sample, seen.tally.take()
        self._seen = {key: seen for key, seen in self._seen.items() if seen.second >= now - 1}

    def _forget_singles(self) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if seen.tally.count}
