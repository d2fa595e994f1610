"""Reading the log: all chains merged by time, filtered, followed.

Within a chain the order of writing is kept, whatever the wall clock did (V-12). Lines that are no
record are skipped and counted, what cannot be read is noted and left: reading is for people, `verify` is for evidence.

The merge waits for the next record of each chain, and holds one of each. So a chain, which may be a fallen worker's, is

| bounded in | by |
|---|---|
| how long it keeps the merge waiting | `_STRANGE_MOST`: so many more lines and files that are none than are end it |
| what is held of it | its current line, and small blocks (`lines`); long lines only of what a keeper announced |
"""

import contextlib
import heapq
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tidegate.audit.event import BLOCKS, CallScope, Writer
from tidegate.audit.lines import LINE_CAP, read_lines
from tidegate.audit.segment import chains, impostors, is_keeper, segments
from tidegate.audit.unread import Unreadable, unreadable

__all__ = ["Entry", "Fields", "Filter", "Reader", "parse_time"]

type Fields = dict[str, str | int | float | bool | list[str] | dict[str, float] | None]
"""A block's fields by name, each of a kind that some block has."""

_KEYS = {block.kind: block.key for block in BLOCKS}
_SPAN = re.compile(r"(\d{1,6})([smhd])\Z")
_STRANGE_MOST: Final = 1000
_UNANNOUNCED_CAP: Final = 1 << 14
"""Bytes of a line in a chain that no keeper tells of: anybody makes as many of these as a disk has room for."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Line(msgspec.Struct, frozen=True):
    ts: str
    chain: str
    seq: int
    type: str
    phase: str = "event"
    session: str | None = None
    owner: str | None = None
    call: CallScope | None = None
    flow: str | None = None
    verdict: str | None = None
    reason: str | None = None
    rule: str | None = None
    observed: bool = False
    count: int | None = None


class _Mark(msgspec.Struct, frozen=True):
    writer: Writer


_decode = msgspec.json.Decoder(_Line).decode
_decode_mark = msgspec.json.Decoder(_Mark).decode
_decode_all = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_block = msgspec.json.Decoder(Fields).decode


class Entry(NamedTuple):
    """A record and the exact line it was read from."""

    line: bytes
    record: _Line
    unannounced: bool = False
    """No keeper's chain tells of the chain it stands in: it may be anybody's."""

    def block(self) -> Fields:
        """Return the block of the record's type; empty when it has another form."""
        try:
            return _decode_block(_decode_all(self.line)[_KEYS.get(self.record.type, self.record.type)])
        except (msgspec.MsgspecError, RecursionError, KeyError):
            return {}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What to show; None is «any». Times as records write them, `host` exact or `*.suffix`.

    `session` is also that of the calls made in it; `call` a tool, a call's id, or both as `TOOL:ID`.
    """

    since: str | None = None
    until: str | None = None
    session: str | None = None
    host: str | None = None
    verdict: str | None = None
    reason: str | None = None
    type: str | None = None
    flow: str | None = None
    call: str | None = None

    def matches(self, entry: Entry) -> bool:
        """Return True for an entry to show."""
        record = entry.record
        return (
            (self.since is None or record.ts >= self.since)
            and (self.until is None or record.ts < self.until)
            and (self.session is None or self.session in (record.session, record.call and record.call.parent))
            and (self.call is None or (record.call is not None and record.call.is_named(self.call)))
            and (self.verdict is None or record.verdict == self.verdict)
            and (self.reason is None or record.reason == self.reason)
            and (self.flow is None or record.flow == self.flow)
            and (self.type is None or record.type == self.type)
            and (self.host is None or self._host_matches(entry))
        )

    def _host_matches(self, entry: Entry) -> bool:
        wanted = (self.host or "").lower()
        if entry.record.type not in ("conn", "http", "dns", "ws", "credential", "incident", "grant"):
            return False
        block = entry.block()
        names = [block.get("host")] if "host" in block else [block.get("name")]
        return any(isinstance(name, str) and _name_matches(name.lower(), wanted) for name in names)


@dataclass
class _Course:
    """How far one pass over the log has come: bytes read of each segment, and the chains that it has given up."""

    at: dict[Path, int] = field(default_factory=dict)
    ended: set[Path] = field(default_factory=set)


class Reader:
    """Reads an audit directory; `skipped` counts lines that were no records.

    `unread` has what could not be read, by where it is and in the order of finding; the rest is read all the same.
    `unannounced` are the chains that no keeper's chain tells of and that say more than that they began.
    """

    def __init__(self, directory: Path, wanted: Filter) -> None:
        self.skipped = 0
        self.unread: dict[str, Unreadable] = {}
        self.unannounced: set[str] = set()
        self._book: set[str] = set()
        self._directory = directory
        self._wanted = wanted
        self._shown = _Course()
        self._booked = _Course()
        self._endless: set[Path] = set()

    def read(self) -> Iterator[Entry]:
        """Yield what is there now and has not been read yet, oldest first."""
        found = self.chains()
        self._read_book([path for path in found if is_keeper(path.name)])
        for name in sorted(self._book & impostors(self._directory)):
            self._note(Unreadable("no folder stands in its place", where=f"{name}/"))
        # `merge` takes each chain in its own order, also where a clock was stepped back.
        merged = heapq.merge(*(self._chain(path) for path in found), key=lambda entry: entry.record.ts)
        return (entry for entry in merged if self._wanted.matches(entry))

    def chains(self) -> list[Path]:
        """Return the folders of the chains that are there. Raises `AuditError`."""
        try:
            return chains(self._directory)
        except OSError as error:
            raise unreadable(self._directory, error) from error

    def follow(self, *, pause: Callable[[], object] = lambda: time.sleep(0.2)) -> Iterator[Entry]:
        """Yield what is there, then what is added, for ever."""
        while True:
            yield from self.read()
            pause()

    def _read_book(self, keepers: list[Path]) -> None:
        """Take in what the keepers' chains newly say of others."""
        for chain_dir in keepers:
            for line, record in self._records(chain_dir, self._booked):
                if record is None or record.type != "writer":
                    continue
                with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                    mark = _decode_mark(line).writer
                    if mark.act in ("born", "dead"):
                        self._book.add(mark.chain)

    def _chain(self, chain_dir: Path) -> Iterator[Entry]:
        known = is_keeper(chain_dir.name) or chain_dir.name in self._book
        for line, record in self._records(chain_dir, self._shown):
            if record is None:
                self.skipped += 1
                continue
            # A writer's own marks say nothing of anyone, and stand there before the keeper has heard of it.
            strange = not known and record.type != "writer"
            if strange:
                self.unannounced.add(chain_dir.name)
            if not known and len(line) > _UNANNOUNCED_CAP:
                what = f"no keeper's chain tells of this one, so lines above {_UNANNOUNCED_CAP} bytes are left out"
                self._note(Unreadable(what, where=f"{chain_dir.name}/"))
                continue
            yield Entry(line, record, strange)

    def _records(self, chain_dir: Path, course: _Course) -> Iterator[tuple[bytes, _Line | None]]:
        """Yield the new lines of a chain, each as a record where it is one, until too many are none."""
        strange = 0
        for segment in [] if chain_dir in course.ended else self._segments(chain_dir):
            strange += segment not in course.at  # a file without a record holds the others up as well
            for line in self._new_lines(segment, course.at):
                record = _read(line)
                strange = strange + 1 if record is None else max(strange - 1, 0)
                yield line, record
                if strange > _STRANGE_MOST:
                    break
            if strange > _STRANGE_MOST:
                course.ended.add(chain_dir)
                what = f"more than {_STRANGE_MOST} lines or files are no records, so no more of this chain is read"
                self._note(Unreadable(what, where=f"{chain_dir.name}/"))
                return

    def _segments(self, chain_dir: Path) -> list[Path]:
        try:
            return [segment.path for segment in segments(chain_dir)]
        except Unreadable as fault:
            self._note(fault)
            return []

    def _new_lines(self, path: Path, read: dict[Path, int]) -> Iterator[bytes]:
        at = read.get(path, 0)
        if path in self._endless or (at and not self._grew(path, read)):
            return
        try:
            for line, whole in read_lines(path, at):
                if not whole:
                    self._check_end(path, line)
                    return  # still being written, or cut: read again from here next time
                read[path] = at = at + len(line) + 1
                yield line
        except Unreadable as fault:
            self._note(fault)

    def _grew(self, path: Path, read: dict[Path, int]) -> bool:
        """Tell whether there may be more of a segment than was read; what was cut is read on from its new end."""
        size = _size(path)
        if size is not None and size < read[path]:
            self._note(Unreadable("this was cut below what had been read", where=f"{path.parent.name}/{path.name}"))
            read[path] = size
        return size != read[path]

    def _check_end(self, path: Path, line: bytes) -> None:
        if len(line) >= LINE_CAP:
            self._endless.add(path)
            raise Unreadable("a line has no end, so nothing behind it is read", where=f"{path.parent.name}/{path.name}")

    def _note(self, fault: Unreadable) -> None:
        if not fault.gone:  # taken away between two looks, as by a rotation: `verify` knows what must be there
            fault.__cause__ = None  # its frames, and the fault's own, hold what was read
            self.unread.setdefault(fault.where, fault.with_traceback(None))


def _read(line: bytes) -> _Line | None:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _size(path: Path) -> int | None:
    try:
        status = path.lstat()
    except OSError:
        return None  # opening it tells why
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def parse_time(text: str, now: float) -> str:
    """Return a time as records write it, from RFC 3339 or a span back from `now` (`90s`, `15m`, `2h`, `7d`).

    Raises ValueError.
    """
    if match := _SPAN.match(text):
        moment = datetime.fromtimestamp(now, UTC) - timedelta(seconds=int(match[1]) * _UNITS[match[2]])
    else:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _name_matches(name: str, wanted: str) -> bool:
    return name.endswith(wanted[1:]) if wanted.startswith("*.") else name == wanted
