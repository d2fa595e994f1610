"""What the engine calls: one short method a kind of record, answering a Reason instead of raising.

None means «recorded, go on». `AUDIT_UNAVAILABLE`: no record, so no effect (invariant 6).
`AUDIT_BUDGET`: this session has used up its log, so this session is denied, alone.

| flood | what stands in the log |
|---|---|
| one (session, reason, name) refused over 20 times a second | 20 records, then one with `count`, `first`, `last` |
| a session over its log budget | one incident at once, then one counted a minute |
| decisions while the disk was full | one counted `fault` when it can be written again |

Allowed requests are never folded. The end of something allowed is always written. What counts against a log
budget is in `spending`.
"""

import math

from tidegate.audit.event import (
    Block,
    Checkpoint,
    Common,
    Conn,
    Credential,
    Fault,
    Head,
    Http,
    Incident,
    Subject,
)
from tidegate.audit.flow import FlowId
from tidegate.audit.redact import Loggable, loggable
from tidegate.audit.repeats import Repeats, Sample
from tidegate.audit.spending import Debt, Spending
from tidegate.audit.tally import Count, Tally
from tidegate.audit.writer import ChainWriter
from tidegate.clock import SYSTEM, Clock
from tidegate.errors import AuditError
from tidegate.policy.reasons import Reason, Verdict

__all__ = ["DEFAULT_LOG_BYTES_PER_HOUR", "NOBODY", "Recorder"]

DEFAULT_LOG_BYTES_PER_HOUR = 256 << 20

NOBODY = Subject()
"""The subject of what no session did."""

_OURS = frozenset({"grant", "session", "launch", "config", "fault", "checkpoint", "writer"})
"""Types that no session can cause at will: outside the log budgets."""
_KEPT = _OURS | {"incident"}
"""Types that may use the disk's reserve."""
_TELL_SECONDS = 60
_PROMISED_BYTES = 1024
"""What a promised line is booked at until it is written: so that many at once cannot pass the budget."""
_UNRECORDED = frozenset({Reason.AUDIT_UNAVAILABLE, Reason.AUDIT_BUDGET})


class Recorder:
    """Turns the engine's facts into records of one chain. Call `tick` each second and `close` at the end."""

    def __init__(
        self,
        writer: ChainWriter,
        clock: Clock = SYSTEM,
        *,
        log_bytes_per_hour: int = DEFAULT_LOG_BYTES_PER_HOUR,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._repeats = Repeats()
        self._spending = Spending(log_bytes_per_hour)
        self._lost = Tally()
        self._lost_ends = Tally()
        self._tell_lost_at = 0.0

    def promise(self, subject: Subject) -> Reason | None:
        """Promise the subject's next decision a line, before anything is asked of the world for it.

        None: that decision, recorded with `promised`, will be written whatever the budget says then.
        """
        now = self._clock.boot()
        if self._writer.problem() is not None:
            self._lost.add(self._writer.text_time())  # and so `tick` tries again
            return Reason.AUDIT_UNAVAILABLE
        if self._spending.over(subject, now):
            self._count_refusal(subject, now)
            return Reason.AUDIT_BUDGET
        self._spending.charge(subject, _PROMISED_BYTES)
        return None

    def conn_decision(
        self,
        subject: Subject,
        flow: FlowId,
        conn: Conn,
        *,
        verdict: Verdict,
        reason: Reason | None = None,
        rule: str | None = None,
        observed: bool = False,
        parent: FlowId | None = None,
        promised: bool = False,
    ) -> Reason | None:
        """Record what was decided about a connection, before anything is dialled."""
        return self._record(Sample(subject, conn, "decision", verdict, reason, rule), flow, observed, parent, promised)

    def conn_end(
        self,
        subject: Subject,
        flow: FlowId,
        conn: Conn,
        *,
        verdict: Verdict,
        reason: Reason | None = None,
        rule: str | None = None,
        observed: bool = False,
        parent: FlowId | None = None,
    ) -> None:
        """Record how a connection ended."""
        self._record(Sample(subject, conn, "end", verdict, reason, rule), flow, observed, parent)

    def http_decision(
        self,
        subject: Subject,
        flow: FlowId,
        http: Http,
        *,
        verdict: Verdict,
        reason: Reason | None = None,
        rule: str | None = None,
        observed: bool = False,
        parent: FlowId | None = None,
        promised: bool = False,
        use: Credential | None = None,
    ) -> Reason | None:
        """Record what was decided about a request, and the `use` of a lease in it, before a byte of it leaves."""
        sample = Sample(subject, http, "decision", verdict, reason, rule)
        return self._record(sample, flow, observed, parent, promised, use)

    def http_end(
        self,
        subject: Subject,
        flow: FlowId,
        http: Http,
        *,
        verdict: Verdict,
        reason: Reason | None = None,
        rule: str | None = None,
        observed: bool = False,
        parent: FlowId | None = None,
    ) -> None:
        """Record how a request ended."""
        self._record(Sample(subject, http, "end", verdict, reason, rule), flow, observed, parent)

    def event(
        self,
        subject: Subject,
        flow: FlowId | None,
        block: Block,
        *,
        verdict: Verdict | None = None,
        reason: Reason | None = None,
        rule: str | None = None,
        parent: FlowId | None = None,
    ) -> Reason | None:
        """Record an event of any type (`credential`, `ws`, `session`, `config`, `writer`, a mark)."""
        return self._record(Sample(subject, block, "event", verdict, reason, rule), flow, parent=parent)

    def incident(
        self,
        subject: Subject,
        flow: FlowId | None,
        name: str,
        *,
        reason: Reason | None = None,
        host: Loggable | None = None,
        credential: str | None = None,
        detail: Loggable | None = None,
    ) -> None:
        """Record something a person should look at."""
        block = Incident(name=name, host=host, credential=credential, detail=detail)
        self._record(Sample(subject, block, "event", None, reason, None), flow)

    def fault(self, name: str, *, where: str | None = None, detail: Loggable | None = None) -> None:
        """Record something of ours that broke: one line, folded when it storms."""
        fault = Fault(name=name, where=where, detail=detail)
        self._record(Sample(NOBODY, fault, "event", Verdict.ERROR, Reason.INTERNAL_FAULT, None), None)

    def checkpoint_due(self) -> Head | None:
        """Return the head that the keeper should sign now, or None."""
        return self._writer.checkpoint_due()

    def checkpoint(self, head: Head, note: str) -> bool:
        """Record the keeper's signature of `head`; False when it could not be written."""
        block = Checkpoint(covers=head.seq, head=head.head, note=note)
        if not self._write(Sample(NOBODY, block, "event", None, None, None), None, keep=True):
            return False
        self._writer.signed(head.seq)
        return True

    def head(self) -> Head:
        """Return where the chain stands."""
        return self._writer.current()

    def problem(self) -> str | None:
        """Return why the log cannot be written at the moment (not ready), or None."""
        return self._writer.problem()

    def tick(self, now: float) -> None:
        """Do what is due each second: counted records, over-budget notes, recovery. `now` is the boot clock's."""
        self._writer.maintain()
        # Telling is also the probe by which a writer that failed comes back without traffic. While only
        # the reserve is left, once a minute is enough.
        lost = self._lost.count or self._lost_ends.count
        if lost and (not self._writer.low_on_room or now >= self._tell_lost_at):
            self._tell_lost_at = now + _TELL_SECONDS
            self._tell_lost(self._lost, "records that could not be written; denied", Verdict.DENY)
            self._tell_lost(self._lost_ends, "ends that could not be written, of what was served", Verdict.ERROR)
        for sample, count in self._repeats.flush(now):
            self._write(sample, None, count=count, keep=True)
        for subject, count in self._spending.due(now):
            self._tell_over(subject, count)

    def log_debts(self) -> list[Debt]:
        """Take what the keeper must be told of the log budgets."""
        return self._spending.debts()

    def owe_log(self, debt: Debt, size: int) -> None:
        """Take back what the keeper could not be told."""
        self._spending.owe(debt, size)

    def log_is_full(self, debt: Debt, now: float) -> None:
        """Take the keeper's word that a log budget is used up, at `now` (boot clock)."""
        self._spending.fill(debt, now)

    def close(self) -> None:
        """Write every counted record that is still open, then close the chain."""
        self.tick(math.inf)
        self._writer.close()

    def _record(
        self,
        sample: Sample,
        flow: FlowId | None,
        observed: bool = False,
        parent: FlowId | None = None,
        promised: bool = False,
        use: Credential | None = None,
    ) -> Reason | None:
        subject, block, phase, verdict, reason, rule = sample
        if promised:
            self._spending.charge(subject, -_PROMISED_BYTES)
        kind = block.kind
        # What was allowed is told to its end, whatever the budget says.
        ended = kind == "ws" or (phase == "end" and verdict is not Verdict.DENY)
        if not ended:
            if reason in _UNRECORDED:
                return None  # it was counted when the recorder answered with this reason
            now = self._clock.boot()
            if kind not in _OURS and not promised and self._spending.over(subject, now):
                return self._over_budget(sample, now)
            if (
                reason is not None
                and (phase == "event" or verdict is not Verdict.ALLOW)
                and self._repeats.folds(sample, now, self._writer.text_time())
            ):
                return None
        with_it = None if use is None else Sample(subject, use, "event", verdict, None, rule)
        keep = phase == "end" or kind in _KEPT
        if not self._write(sample, flow, observed=observed, parent=parent, keep=keep, with_it=with_it):
            return Reason.AUDIT_UNAVAILABLE
        if kind not in _OURS:
            self._spending.charge(subject, self._writer.last_bytes)
        return None

    def _write(
        self,
        sample: Sample,
        flow: FlowId | None,
        *,
        keep: bool,
        observed: bool = False,
        parent: FlowId | None = None,
        count: Count | None = None,
        with_it: Sample | None = None,
    ) -> bool:
        """Write one record, and by the same `write` another of the same flow."""
        records = [_make_record(sample, flow, parent, count, observed=observed)]
        if with_it is not None:
            records.append(_make_record(with_it, flow, parent, None))
        try:
            self._writer.append_all(records, keep=keep)
        except AuditError:
            served = sample.phase == "end" and sample.verdict is not Verdict.DENY
            lost = self._lost_ends if served else self._lost
            lost.add(self._writer.text_time(), 1 if count is None else count.times)
            return False
        return True

    def _over_budget(self, sample: Sample, now: float) -> Reason | None:
        if sample.phase == "end":
            return None  # the decision was counted
        self._count_refusal(sample.subject, now)
        # Those who have shown no session share one account: a refusal that one of them provokes is
        # counted, and must not turn another's 407, which his client needs, into something else.
        if sample.subject.session is None and sample.verdict is Verdict.DENY:
            return None
        return Reason.AUDIT_BUDGET

    def _count_refusal(self, subject: Subject, now: float) -> None:
        count = self._spending.refuse(subject, now, self._writer.text_time())
        if count is not None:
            self._tell_over(subject, count)

    def _tell_over(self, subject: Subject, count: Count) -> None:
        incident = Incident(name="audit_budget")
        self._write(
            Sample(subject, incident, "event", Verdict.DENY, Reason.AUDIT_BUDGET, None), None, keep=True, count=count
        )

    def _tell_lost(self, lost: Tally, text: str, verdict: Verdict) -> None:
        if not lost.count:
            return
        count = lost.take()
        fault = Fault(name="audit_unavailable", detail=loggable(text))
        sample = Sample(NOBODY, fault, "event", verdict, Reason.AUDIT_UNAVAILABLE, None)
        try:
            self._writer.append_all([_make_record(sample, None, None, count)], keep=True)
        except AuditError:
            lost.add(count.last, count.times)
            lost.first = count.first  # the beginning stays the beginning


def _make_record(
    sample: Sample, flow: FlowId | None, parent: FlowId | None, count: Count | None, *, observed: bool = False
) -> tuple[Common, Block]:
    subject, block, phase, verdict, reason, rule = sample
    common = Common(
        session=subject.session,
        owner=subject.owner,
        call=subject.call,
        flow=flow,
        parent=parent,
        type=block.kind,
        phase=phase,
        verdict=verdict,
        reason=None if reason is None else reason.code,
        rule=rule,
        policy_hash=subject.policy_hash,
        observed=observed,
        count=None if count is None else count.times,
        first=None if count is None else count.first,
        last=None if count is None else count.last,
    )
    return common, block
