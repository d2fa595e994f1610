"""The book of sessions: who is alive, from where, until when.

Lifetimes run on the boot clock. A record also has the wall time and the boot's id, so that after
a reboot what is left of it is told by the wall clock, and never more than it had.
"""

import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, final

import msgspec

from tidegate.audit.event import CallScope
from tidegate.clock import Clock
from tidegate.errors import ConfigError, KeeperError
from tidegate.keeper.store import Store, keep, walk
from tidegate.session.identity import IPNetwork, SessionId, Source, new_session_id
from tidegate.session.token import FOREVER

__all__ = ["Record", "SessionBook", "boot_id"]

_SHELF: Final = "sessions"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `origin` is `file`, `admin`, `launch` or `harness:ID`; `ended` marks a file session that was revoked.

    `doors`: it is opened for its own doors, and its token is good nowhere else. `call`: it is for one tool call, and
    a child of the session that the call is made in, where there is one.
    """

    id: SessionId
    owner: str
    policy: str
    credentials: tuple[str, ...]
    source: str | None
    origin: str
    expires_wall: float | None = None
    expires_boot: float | None = None
    boot: str = ""
    frozen: bool = False
    doors: bool = False
    ended: bool = False
    call: CallScope | None = None
    placeholders: dict[str, str] = {}
    shapes: dict[str, str] = {}

    @property
    def exp(self) -> int:
        """The token's `exp` claim."""
        return FOREVER if self.expires_wall is None else int(self.expires_wall)

    @property
    def parent(self) -> SessionId | None:
        """The session that this one is a child of."""
        return None if self.call is None or self.call.parent is None else SessionId(self.call.parent)

    def expires_in(self, clock: Clock) -> float | None:
        """Return the seconds left, or None for a session without an end."""
        return None if self.expires_boot is None else max(self.expires_boot - clock.boot(), 0.0)


def boot_id() -> str:
    """Return the kernel's id of this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@final
class SessionBook:
    """Sessions by id and by source network, kept in the store.

    `on_bound` hears of a network that was bound to another session, or to one for the first time.
    """

    def __init__(self, store: Store, clock: Clock, *, boot: str) -> None:
        self._store = store
        self._clock = clock
        self._boot = boot
        self._by_id: dict[SessionId, Record] = {}
        self._by_source: dict[IPNetwork, SessionId] = {}
        self._by_parent: dict[SessionId, dict[SessionId, None]] = {}
        self.on_bound: Callable[[str], None] = lambda network: None
        for _, record in walk(store, _SHELF, Record):
            self._load(record)

    def _load(self, record: Record) -> None:
        if record.expires_wall is not None and record.boot != self._boot:
            left = max(record.expires_wall - self._clock.wall(), 0.0)
            record = msgspec.structs.replace(record, expires_boot=self._clock.boot() + left, boot=self._boot)
            keep(self._store, _SHELF, record.id, record)
        self._index(record)

    def _index(self, record: Record) -> None:
        old = self._by_id.get(record.id)
        if old is not None and old.source is not None:
            self._by_source.pop(ipaddress.ip_network(old.source), None)
        self._by_id[record.id] = record
        if record.parent is not None:
            self._by_parent.setdefault(record.parent, {})[record.id] = None
        if record.source is not None and not record.ended:
            self._by_source[ipaddress.ip_network(record.source)] = record.id

    def fresh_id(self) -> SessionId:
        """Return an id that no session has."""
        while (sid := new_session_id()) in self._by_id:
            pass
        return sid

    def lifetime(self, ttl_seconds: float | None) -> tuple[float | None, float | None]:
        """Return when a session with this TTL ends, by the wall and by the boot clock."""
        if ttl_seconds is None:
            return None, None
        return self._clock.wall() + ttl_seconds, self._clock.boot() + ttl_seconds

    def put(self, record: Record) -> Record:
        """Keep a new or changed session; raises `ConfigError` when its source is another's."""
        holder = None if record.source is None else self._by_source.get(ipaddress.ip_network(record.source))
        if holder is not None and holder != record.id:
            raise ConfigError(f"{record.source} is the source of session {holder} already")
        record = msgspec.structs.replace(record, boot=self._boot)
        keep(self._store, _SHELF, record.id, record)
        self._index(record)
        if holder is None and record.source is not None and not record.ended:
            self.on_bound(record.source)
        return record

    def drop(self, sid: SessionId) -> None:
        """Forget a session."""
        record = self._by_id.pop(sid, None)
        if record is not None and record.source is not None:
            network = ipaddress.ip_network(record.source)
            if self._by_source.get(network) == sid:
                del self._by_source[network]
        if record is not None and record.parent is not None:
            siblings = self._by_parent.get(record.parent, {})
            siblings.pop(sid, None)
            if not siblings:
                self._by_parent.pop(record.parent, None)
        self._store.drop(_SHELF, sid)

    def get(self, sid: SessionId) -> Record | None:
        """Return a live session, or None: unknown, ended or past its time, or a call's whose parent is."""
        record = self._by_id.get(sid)
        if record is None or record.ended or record.expires_in(self._clock) == 0.0:
            return None
        return record if record.parent is None or self.get(record.parent) is not None else None

    def need(self, sid: SessionId) -> Record:
        """Return a live session; raises `KeeperError`."""
        record = self.get(sid)
        if record is None:
            raise KeeperError(f"there is no live session {sid!r}")
        return record

    def line(self, record: Record) -> tuple[Record, ...]:
        """Return a live session and what it is a child of, up to the one that is nobody's."""
        found = [record]
        while (parent := found[-1].parent) is not None:
            found.append(self.need(parent))
        return tuple(found)

    def beneath(self, sid: SessionId) -> list[Record]:
        """Return the sessions of calls made in a session, and of those made in these, each after its parent."""
        found = [self._by_id[child] for child in self._by_parent.get(sid, ())]
        for one in found:  # which grows meanwhile
            found += [self._by_id[child] for child in self._by_parent.get(one.id, ())]
        return found

    def at(self, source: Source) -> Record | None:
        """Return the live session whose network the peer stands in, the narrowest one."""
        if source.address is None:
            return None
        lengths = {network.prefixlen for network in self._by_source if network.version == source.address.version}
        for length in sorted(lengths, reverse=True):
            sid = self._by_source.get(ipaddress.ip_network((source.address, length), strict=False))
            if sid is not None:
                return self.get(sid)
        return None

    def live(self) -> Iterator[Record]:
        """Walk over the live sessions."""
        for sid in list(self._by_id):
            if (record := self.get(sid)) is not None:
                yield record

    def over(self) -> Iterator[tuple[Record, str]]:
        """Walk over what has ended by itself, with the reason; who takes one may end it and others meanwhile."""
        for record in self.all():
            if record.ended or self._by_id.get(record.id) is not record:
                continue
            if record.expires_in(self._clock) == 0.0:
                yield record, "expired"
            elif self.get(record.id) is None:
                yield record, "parent_ended"

    def all(self) -> list[Record]:
        """Return every record, expired and ended ones too."""
        return list(self._by_id.values())
