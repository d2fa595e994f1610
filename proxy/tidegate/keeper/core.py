"""The keeper's state in one place, and what touches more than one part of it.

The desks (`worker_desk`, `admin_desk`) take asks and speak to this; it knows neither frames nor
sockets. Everything here runs on one loop and none of it waits, except where a secret is fetched.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, final

import msgspec

from tidegate.audit.checkpoint import encode_key
from tidegate.audit.event import Session
from tidegate.audit.segment import new_chain
from tidegate.ca.bundle import bundle_pem, system_bundle, write_public
from tidegate.clock import Clock
from tidegate.credentials.placeholder import new_placeholder
from tidegate.errors import AuditError, ConfigError, CredentialError, KeeperError, TidegateError
from tidegate.keeper.budgets import BudgetBook
from tidegate.keeper.chains import ChainBook
from tidegate.keeper.harness import HarnessBook
from tidegate.keeper.journal import Journal, SessionAct
from tidegate.keeper.keys import Keys
from tidegate.keeper.leases import Fetched, LeaseBook
from tidegate.keeper.muster import Muster
from tidegate.keeper.protocol import Push, SessionEnded, SessionFrozen, SourceBound
from tidegate.keeper.sessions import Record, SessionBook, boot_id
from tidegate.keeper.settings import Rulebook
from tidegate.keeper.sourcing import Sourcing
from tidegate.keeper.store import Store
from tidegate.keeper.virtual import VirtualBook
from tidegate.session.identity import SessionId

__all__ = ["Keeper"]

_CLOCK_STEP_SECONDS: Final = 5.0


@final
class Keeper:
    """Everything the keeper keeps. `push(push, but)` is set by the server that has the links."""

    def __init__(self, state: Path, store: Store, clock: Clock, sourcing: Sourcing, environ: Mapping[str, str]) -> None:
        boot = boot_id()
        self.state = state
        self.store = store
        self.clock = clock
        self.sourcing = sourcing
        self.push: Callable[[Push, object], None] = lambda push, but: None
        self.keys = Keys(store, clock)
        self.sessions = SessionBook(store, clock, boot=boot)
        self.sessions.on_bound = lambda network: self.push(SourceBound(network), None)
        self.harnesses = HarnessBook(store, clock, boot=boot)
        self.budgets = BudgetBook(store, clock)
        self.virtual = VirtualBook(store)
        self.chains = ChainBook(store, self.keys, clock)
        self.muster = Muster(clock)
        self.leases = LeaseBook(
            store,
            clock,
            boot=boot,
            fetch=self._fetch,
            journal=lambda: self.journal,
            push=lambda push, but: self.push(push, but),
            settle=self.muster.settle,
        )
        self.rules: Rulebook | None = None
        self.workers: Callable[[], int] = lambda: 0
        self._environ = environ
        self._journal: Journal | None = None
        self._offset = clock.wall() - clock.boot()
        self._problems: dict[str, str] = {}
        kept = store.get("own", "epoch")
        self.epoch = int(kept) if kept else 0
        self.restarted = bool(kept)

    # --- what must be there ----------------------------------------------------------------------

    @property
    def journal(self) -> Journal:
        """The keeper's chain; raises `AuditError` before the first settings."""
        if self._journal is None:
            raise AuditError("the keeper has no settings yet")
        return self._journal

    @property
    def book(self) -> Rulebook:
        """The settings in force; raises `KeeperError` before the first ones."""
        if self.rules is None:
            raise KeeperError("the keeper has no settings yet")
        return self.rules

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong, in plain words; no secret can be in it."""
        found = [*self._problems.values()]
        if self._journal is not None and (text := self._journal.writer.problem()) is not None:
            found.append(f"audit: {text}")
        if self.sourcing.minter is not None and not self.sourcing.minter.alive:
            found.append("the minter is gone: commands of credentials cannot run")
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """Return what keeps nobody else from being served: a source that failed, a session of the file that is over."""
        failed = [f"credential {name}: {text}, when last asked" for name, text in sorted(self.leases.problems.items())]
        over = filter(None, (self.stays_revoked(record.id) for record in self.sessions.all() if record.ended))
        return (*failed, *over)

    def stays_revoked(self, sid: SessionId) -> str:
        """Return how to bring back a session of the file that is not live, or nothing when it is none."""
        if self.rules is None or sid not in self.rules.settings.sessions or self.sessions.get(sid) is not None:
            return ""
        return (
            f"sessions.{sid} is in the file but revoked, and stays so over reloads and restarts; to bring it back, "
            "take it out of the file, have the gate reload, and put it in again"
        )

    def open_journal(self, book: Rulebook) -> None:
        """Begin the keeper's chain, once; raises `AuditError`."""
        if self._journal is None:
            directory = Path(book.settings.audit.dir)
            try:
                journal = Journal(directory, new_chain("keeper"), settings=book.settings.audit, clock=self.clock)
            except OSError as fault:
                raise AuditError(f"the audit folder cannot be made: {fault.strerror}", where=str(directory)) from fault
            self.chains.bury_predecessor(journal)
            self._journal = journal

    def write_public(self) -> None:
        """Write what everyone may read: ca.pem, bundle.pem, audit.pub."""
        pem = self.keys.authority.pem()
        write_public(self.state / "ca.pem", pem)
        write_public(self.state / "bundle.pem", self.bundle())
        write_public(self.state / "audit.pub", self.audit_key() + "\n")

    def bundle(self) -> str:
        """Return the system's roots and ours."""
        return bundle_pem(self.keys.authority.pem(), system_bundle(self._environ))

    def audit_key(self) -> str:
        """Return the public audit key as a note verifier key."""
        return encode_key(self.keys.audit.public_key())

    def set_epoch(self, epoch: int) -> None:
        """Remember the epoch over a restart."""
        self.store.put("own", "epoch", str(epoch).encode())
        self.epoch = epoch

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Turn a fault of one part into a problem that `status` tells, so that the others go on."""
        try:
            yield
        except (TidegateError, OSError) as fault:
            self._problems[what] = f"{what}: {fault}"

    def clear_notes(self) -> None:
        """Forget the problems of the settings before."""
        self._problems.clear()

    # --- sessions --------------------------------------------------------------------------------

    def with_placeholders(self, record: Record) -> Record:
        """Return the record with a placeholder for each of its credentials; one that fits is kept."""
        kept, shapes = {}, {}
        holders: dict[str, str] = {}
        for name in record.credentials:
            spec = self.book.credential(name)
            if spec is None:
                raise ConfigError(f"there is no credential {name!r}")
            variable = spec.placeholder.env
            if variable and holders.setdefault(variable, name) != name:
                raise ConfigError(
                    f"{holders[variable]} and {name} both want the variable {variable}", hint="open two sessions"
                )
            shapes[name] = spec.placeholder.shape
            same = record.shapes.get(name) == shapes[name] and name in record.placeholders
            kept[name] = record.placeholders[name] if same else new_placeholder(shapes[name])
        return msgspec.structs.replace(record, placeholders=kept, shapes=shapes)

    def environment(self, record: Record) -> dict[str, str]:
        """Return the session's placeholders by the variable that shall hold each."""
        found = {}
        for name, placeholder in record.placeholders.items():
            spec = self.book.credential(name)
            if spec is not None and spec.placeholder.env:
                found[spec.placeholder.env] = placeholder
        return found

    def end_session(self, record: Record, why: str) -> None:
        """End a session for good, and those of calls made in it: none of them is live when the first is on record."""
        over = [(record, why), *((child, "parent_ended") for child in self.sessions.beneath(record.id))]
        for one, word in reversed(over):  # the parent last: a keeper that falls here finds no child without one
            self._end(one, word)
        for one, word in over:
            self.note_session("expire" if word == "expired" else "revoke", one, reason=word)

    def _end(self, record: Record, why: str) -> None:
        """Tell every link that a session is over, then forget all that was its."""
        self.push(SessionEnded(record.id, why), None)
        if record.origin == "file":  # its name must not come back to life with the next reload
            self.sessions.put(msgspec.structs.replace(record, ended=True, placeholders={}, shapes={}))
        else:
            self.sessions.drop(record.id)
        self.leases.drop_session(record.id)
        self.budgets.drop(f"session/{record.id}/")
        self.virtual.drop(record.id, returns=record.origin == "file")

    def freeze(self, record: Record, *, frozen: bool) -> None:
        """Freeze a session and those of calls made in it, or thaw them."""
        whole = [record, *self.sessions.beneath(record.id)]
        for one in whole:
            self.sessions.put(msgspec.structs.replace(one, frozen=frozen))
            self.push(SessionFrozen(one.id, frozen), None)
        for one in whole:
            self.note_session("freeze" if frozen else "thaw", one)

    def note_session(
        self, act: SessionAct, record: Record, *, listener: str | None = None, reason: str | None = None
    ) -> None:
        """Record a step in a session's life."""
        left = record.expires_in(self.clock)
        block = Session(
            id=record.id,
            act=act,
            origin=record.origin if act == "open" else None,
            policy=record.policy,
            source=record.source,
            listener=listener,
            credentials=record.credentials,
            ttl_seconds=int(left) if act == "open" and left is not None else None,
        )
        self.journal.session(block, owner=record.owner, call=record.call, reason=reason)

    def count_sessions(self, *, policy: str | None = None, owner: str | None = None, origin: str | None = None) -> int:
        """Count the live sessions of a policy, an owner or an origin."""
        return sum(
            1
            for record in self.sessions.live()
            if policy in (None, record.policy) and owner in (None, record.owner) and origin in (None, record.origin)
        )

    async def _fetch(self, record: Record, credential: str) -> Fetched:
        book = self.book
        spec = book.credential(credential)
        if spec is None:
            raise CredentialError("there is no such credential any more", where=f"credentials.{credential}")
        secret = await self.sourcing.fetch(book, credential)
        await self.muster.ready()
        now = self.sessions.get(record.id)  # the fetch took its time: it may have been revoked, or changed
        if now is None or credential not in now.placeholders or self.book.credential(credential) != spec:
            raise CredentialError("the session or the credential changed meanwhile", where=f"credentials.{credential}")
        kind = type(book.source(credential)).__name__.removesuffix("Source").lower()
        return Fetched(secret, float(spec.ttl_seconds), kind, spec.place.kind)

    # --- each second -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: expired sessions, leases, writers that are gone, checkpoints, the clock."""
        if self._journal is None:
            return
        for step in (self._watch_clock, self._expire, self._tick_leases, self._tick_chains):
            what = step.__name__.strip("_")
            self._problems.pop(what, None)
            with self.noting(what):  # the next turn tries again; readiness tells meanwhile
                step()

    def _watch_clock(self) -> None:
        offset = self.clock.wall() - self.clock.boot()
        step, self._offset = offset - self._offset, offset
        if abs(step) > _CLOCK_STEP_SECONDS:
            self.leases.end_all("clock_step")
            self.journal.fault("clock_step", f"the wall clock moved by {step:+.0f} s; leases are fetched anew")

    def _expire(self) -> None:
        for record, why in self.sessions.over():
            self.end_session(record, why)

    def _tick_leases(self) -> None:
        self.leases.tick(self.sessions.get)

    def _tick_chains(self) -> None:
        self.journal.writer.maintain()
        self.chains.bury(self.journal)
        self.chains.sign_own(self.journal)

    async def close(self) -> None:
        """End in order: fetches, the chain, the store."""
        await self.leases.close()
        if self._journal is not None:
            with self.noting("close"):
                self.chains.sign_own(self._journal, due=False)
            self._journal.writer.close()
            self.chains.note_own(self._journal)
        self.store.close()
