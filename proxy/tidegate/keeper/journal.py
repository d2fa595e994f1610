"""The keeper's own chain: everything it gave out, to whom, and the book of every other chain.

What cannot be written is not given (invariant 6): `AuditError` passes through to the desk, which
answers `audit_unavailable`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, final

from tidegate.audit.event import (
    Block,
    CallScope,
    Common,
    Config,
    Conn,
    Credential,
    Fault,
    Incident,
    Launch,
    Session,
    Writer,
)
from tidegate.audit.flow import new_flow
from tidegate.audit.redact import TEXT_CAP, Loggable, loggable
from tidegate.audit.writer import ChainWriter
from tidegate.clock import Clock
from tidegate.config.model import AuditSettings
from tidegate.keeper.protocol import WallDrop
from tidegate.keeper.sessions import Record
from tidegate.policy.reasons import Reason, Verdict
from tidegate.session.door import LaunchNote

__all__ = ["Journal", "SessionAct"]

type SessionAct = Literal["open", "join", "freeze", "thaw", "revoke", "expire", "refuse"]
type WriterAct = Literal["born", "head", "dead"]

_DETAIL: Final = 1024
_PROBLEMS: Final = 50
_ARGV: Final = 4096
_LANDING: Final = "sandbox"
"""What stands for the link's name in a rule of a launch's own wall: it has one link, and all have the same name."""


@final
class Journal:
    """Writes the keeper's records."""

    def __init__(self, directory: Path, chain: str, *, settings: AuditSettings, clock: Clock) -> None:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.directory = directory
        self.writer = ChainWriter(
            directory,
            chain,
            clock=clock,
            role="keeper",
            fsync=settings.fsync,
            checkpoint_events=settings.checkpoint_events,
            checkpoint_seconds=settings.checkpoint_seconds,
        )

    def session(self, block: Session, *, owner: str, call: CallScope | None = None, reason: str | None = None) -> None:
        """Record a step in a session's life."""
        self._put(block, session=block.id, owner=owner, call=call, reason=reason, keep=block.act != "join")

    def lease(
        self, block: Credential, *, session: str, owner: str, call: CallScope | None, reason: str | None = None
    ) -> None:
        """Record a lease given, ended or refused."""
        self._put(block, session=session, owner=owner, call=call, reason=reason)

    def incident(self, name: str, record: Record | None, *, detail: str = "") -> None:
        """Record an incident of a session's, or of nobody's."""
        block = Incident(name=name, detail=loggable(detail) if detail else None)
        session, owner, call = (None, None, None) if record is None else (record.id, record.owner, record.call)
        self._put(block, session=session, owner=owner, call=call, reason=name, keep=True)

    def dropped(self, drop: WallDrop, sender: Record | None) -> None:
        """Record packets that the wall dropped: an attempt at a way that there is none."""
        block = Conn(
            client=drop.client,
            transport=drop.transport,
            address=drop.address,
            port=drop.port,
            end=Reason.WALL_DROPPED.code,
        )
        self._dropped(
            block, session=None if sender is None else sender.id, owner=None if sender is None else sender.owner,
            call=None if sender is None else sender.call,
            rule=f"{drop.device}: {drop.rule}", times=drop.times, first=drop.first, last=drop.last,
        )  # fmt: skip

    def launch(self, note: LaunchNote, *, session: str, owner: str, call: CallScope | None) -> None:
        """Record what a launcher tells of a sandbox: first what its wall dropped, by rule, counted while it ran."""
        first, last = self.writer.text_time(ago=note.seconds or 0.0), self.writer.text_time()
        for rule, times in note.dropped.items():
            block = Conn(transport="other", end=Reason.WALL_DROPPED.code)
            self._dropped(
                block, session=session, owner=owner, call=call, rule=loggable(f"{_LANDING}: {rule}"), times=times,
                first=first, last=last,
            )  # fmt: skip
        self._put(_launch(note), session=session, owner=owner, call=call, keep=True)

    def fault(self, name: str, detail: str, *, where: str = "keeper") -> None:
        """Record a fault of our own."""
        block = Fault(name=name, where=where, detail=loggable(detail, _DETAIL))
        self._put(block, reason=Reason.INTERNAL_FAULT.code, verdict=Verdict.ERROR, keep=True)

    def committed(self, epoch: int, digest: str) -> None:
        """Record a configuration taken."""
        self._put(Config(act="commit", epoch=epoch, hash=digest), keep=True)

    def refused(self, file: str | None, problems: Sequence[str]) -> None:
        """Record a configuration refused, with its problems: as many as fit in a line."""
        told = tuple(loggable(text, _DETAIL) for text in problems[:_PROBLEMS])
        if len(problems) > _PROBLEMS:
            told += (loggable(f"and {len(problems) - _PROBLEMS} more"),)
        block = Config(act="refuse", file=loggable(file) if file is not None else None, problems=told)
        self._put(block, verdict=Verdict.ERROR, keep=True)

    def chain(self, act: WriterAct, *, chain: str, seq: int | None, head: str | None) -> None:
        """Record that another writer's chain was born, how far it is known, or that its writer is gone."""
        role: Literal["keeper", "gate"] = "keeper" if chain.startswith("keeper") else "gate"
        self._put(Writer(act=act, chain=chain, role=role, seq=seq, head=head), keep=True)

    def checkpoint(self, block: Block) -> None:
        """Record a checkpoint of this chain."""
        self._put(block, keep=True)

    def _dropped(
        self, block: Conn, *, session: str | None, owner: str | None, call: CallScope | None, rule: str, times: int,
        first: str, last: str,
    ) -> None:  # fmt: skip
        many = times > 1
        common = Common(
            session=session, owner=owner, call=call, flow=new_flow(), parent=None, type=block.kind, phase="event",
            verdict=Verdict.DENY, reason=Reason.WALL_DROPPED.code, rule=rule, policy_hash=None,
            count=times if many else None, first=first if many else None, last=last if many else None,
        )  # fmt: skip
        self.writer.append(common, block)

    def _put(
        self,
        block: Block,
        *,
        session: str | None = None,
        owner: str | None = None,
        call: CallScope | None = None,
        reason: str | None = None,
        verdict: Verdict | None = None,
        keep: bool = False,
    ) -> None:
        common = Common(
            session=session, owner=owner, call=call, flow=None, parent=None, type=block.kind, phase="event",
            verdict=verdict, reason=reason, rule=None, policy_hash=None,
        )  # fmt: skip
        self.writer.append(common, block, keep=keep)


def _text(text: str | None, cap: int = TEXT_CAP) -> Loggable | None:
    return None if text is None else loggable(text, cap)


def _launch(note: LaunchNote) -> Launch:
    return Launch(
        id=loggable(note.id),
        act=note.act,
        boundary=_text(note.boundary),
        net=_text(note.net),
        image=_text(note.image),
        argv=_text(note.argv, _ARGV),
        limits=None if note.limits is None else {loggable(name): value for name, value in note.limits.items()},
        outcome=_text(note.outcome),
        untrusted_exit_code=note.untrusted_exit_code,
        duration_ms=None if note.seconds is None else int(note.seconds * 1000),
        truncated=note.truncated,
    )
