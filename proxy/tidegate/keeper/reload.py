"""From one epoch's settings to the next, in two steps: all that can fail, then the switch (invariant 8)."""

import asyncio
from typing import final

import msgspec

from tidegate.config.model import SessionSpec
from tidegate.errors import ConfigError, KeeperError
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import EpochPush, SessionEnded
from tidegate.keeper.sandbox import write_sandbox
from tidegate.keeper.sessions import Record
from tidegate.keeper.settings import Rulebook
from tidegate.session.identity import SessionId

__all__ = ["Reload"]


@final
class Reload:
    """Holds checked settings between `configure` and `commit`."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._held: Rulebook | None = None

    async def configure(self, epoch: int, encoded: bytes, proxy_urls: tuple[str, ...]) -> None:
        """Check the settings and hold them; raises `TidegateError` and changes nothing.

        The supervisor, which knows of every participant's refusal, has it put on record (`ConfigRefused`).
        """
        keeper = self._keeper
        self._held = None
        if keeper.rules is not None and epoch <= keeper.rules.epoch:
            raise KeeperError(f"epoch {epoch} is not after {keeper.rules.epoch}")
        # In a thread, so that ten thousand rules do not make the workers think that the keeper hangs.
        held = await asyncio.to_thread(Rulebook, encoded, epoch=epoch, proxy_urls=proxy_urls)
        self._check_dynamic(held)
        await keeper.sourcing.check(held)
        keeper.open_journal(held)
        self._held = held

    def _check_dynamic(self, held: Rulebook) -> None:
        """Refuse a file session whose name or source a live one has that the file does not own."""
        for record in self._keeper.sessions.live():
            if record.origin == "file":
                continue
            for name, spec in held.settings.sessions.items():
                if name == record.id or (spec.from_ is not None and spec.from_ == record.source):
                    raise ConfigError(
                        f"live session {record.id} has this name or source: wait for its end, or end it with "
                        f"`tidegate session revoke {record.id}`",
                        where=f"sessions.{name}",
                    )

    def commit(self, epoch: int) -> None:
        """Switch to the held settings; raises `KeeperError` when others, or none, are held."""
        held, keeper = self._held, self._keeper
        if held is None or held.epoch != epoch:
            raise KeeperError(f"no settings are held for epoch {epoch}")
        keeper.journal.committed(epoch, held.settings.hash)
        self._held, old, keeper.rules = None, keeper.rules, held
        keeper.set_epoch(epoch)
        # From here on nothing may stop half-way: what one session cannot have is told as a problem.
        keeper.clear_notes()
        self._end_leases(old, held)
        self._refresh_dynamic(held)
        self._refresh_file(held)
        self._end_wider()
        keeper.push(EpochPush(epoch), None)

    def _end_leases(self, old: Rulebook | None, new: Rulebook) -> None:
        """End the leases of credentials that are gone or are no longer what they were."""
        if old is None:
            return
        for name, spec in old.settings.credentials.items():
            if new.credential(name) != spec or new.settings.sources.get(name) != old.settings.sources.get(name):
                for record in self._keeper.sessions.live():
                    with self._keeper.noting(f"credential {name}"):
                        self._keeper.leases.end_credential(record.id, name, "changed")

    def _refresh_dynamic(self, book: Rulebook) -> None:
        for record in list(self._keeper.sessions.live()):
            if record.origin != "file":
                with self._keeper.noting(f"session {record.id}"):
                    self._one_dynamic(book, record)

    def _one_dynamic(self, book: Rulebook, record: Record) -> None:
        if record.policy not in book.policies:
            self._keeper.end_session(record, "policy_removed")
            return
        held = tuple(name for name in record.credentials if book.credential(name) is not None)
        self._change(record, msgspec.structs.replace(record, credentials=held))

    def _refresh_file(self, book: Rulebook) -> None:
        keeper = self._keeper
        for record in keeper.sessions.all():
            if record.origin == "file" and record.id not in book.settings.sessions:
                with keeper.noting(f"sessions.{record.id}"):
                    if not record.ended:
                        keeper.end_session(record, "removed")
                keeper.sessions.drop(record.id)  # so that the file can name it anew
        known = {record.id: record for record in keeper.sessions.all()}
        changed = [(known.get(SessionId(name)), _wanted(name, spec)) for name, spec in book.settings.sessions.items()]
        for old, wanted in changed:  # sources first: two sessions may swap theirs
            if old is not None and old.source is not None and old.source != wanted.source and not old.ended:
                keeper.sessions.put(msgspec.structs.replace(old, source=None))
        for old, wanted in changed:
            with keeper.noting(f"sessions.{wanted.id}"):
                self._one_file_session(book, old, wanted)

    def _end_wider(self) -> None:
        """End the sessions of calls whose parent, one of the file, is no longer what they were opened under."""
        keeper = self._keeper
        for record in keeper.sessions.all():
            parent = None if record.parent is None else keeper.sessions.get(record.parent)
            if parent is None or keeper.sessions.get(record.id) is None:
                continue
            has = (parent.policy, parent.owner, set(record.credentials) <= set(parent.credentials))
            if has != (record.policy, record.owner, True):
                with keeper.noting(f"session {record.id}"):
                    keeper.end_session(record, "parent_changed")

    def _one_file_session(self, book: Rulebook, old: Record | None, wanted: Record) -> None:
        keeper = self._keeper
        if old is None:
            keeper.note_session("open", wanted)
            record = keeper.sessions.put(keeper.with_placeholders(wanted))
        elif old.ended:
            return  # revoked; it stays so until the file has been without it
        else:
            kept = msgspec.structs.replace(
                wanted, frozen=old.frozen, placeholders=old.placeholders, shapes=old.shapes, boot=old.boot
            )
            record = self._change(old, kept)
        write_sandbox(keeper, record, proxy_urls=book.proxy_urls)

    def _change(self, old: Record, new: Record) -> Record:
        """Keep the session's new form; what workers know of the old one is cut, and opened anew on the next use."""
        keeper = self._keeper
        record = keeper.sessions.put(keeper.with_placeholders(new))
        for name in old.placeholders:
            if record.placeholders.get(name) != old.placeholders[name]:
                keeper.leases.end_credential(record.id, name, "changed")
        if _visible(record) != _visible(old):
            keeper.push(SessionEnded(record.id, "changed"), None)
        return record


def _wanted(name: str, spec: SessionSpec) -> Record:
    return Record(
        id=SessionId(name),
        owner=spec.owner,
        policy=spec.policy,
        credentials=spec.credentials,
        source=spec.from_,
        origin="file",
    )


def _visible(record: Record) -> tuple[object, ...]:
    return record.owner, record.policy, record.source, record.placeholders
