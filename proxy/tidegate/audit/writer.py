"""One process's chain of records on disk.

Theory of operation. A line is stamped with (seq, prev), hashed and written by one `write` to a file opened O_APPEND,
alone or with others that belong to it; only then do seq and head move. So a failed write changes nothing,
but for the short one below, and the next try resumes by itself when the disk does.

| what happens | what the writer does |
|---|---|
| write fails (full, read-only, EIO) | AuditError; chain unchanged |
| short write | takes it back (ftruncate); else whole lines stand, and a `torn` line tells of the cut one |
| free space below the reserve | AuditError for ordinary lines; `keep` lines (ends, incidents, checkpoints) go on |
| the file was moved or deleted | the next line opens a new segment; `verify` misses the old one |
| fdatasync fails | AuditError until a later one succeeds |

Nothing is ever continued: each process start is a new chain, begun by a `writer` `start` line.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

from tidegate import __version__
from tidegate.audit.event import SCHEMA_VERSION, Block, Common, Head, Writer
from tidegate.audit.segment import CHAIN_NAME, is_keeper, segment_name
from tidegate.audit.stamp import TimeText
from tidegate.clock import SYSTEM, Clock
from tidegate.errors import AuditError

__all__ = ["GENESIS", "ChainWriter", "Fsync", "Role"]

GENESIS = "0" * 64
"""`prev` of the first line."""

type Fsync = Literal["interval", "always", "never"]
type Role = Literal["keeper", "gate", "launcher", "wall", "console", "other"]

_MIB = 1 << 20
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_RESERVE_CAP_BYTES = 1024 * _MIB
_ATTEMPTS = 1000


class ChainWriter:
    """Appends records to `directory/chain/`; every failure is an AuditError that leaves the chain whole.

    Not for use by two threads or after a fork.
    """

    def __init__(
        self,
        directory: Path,
        chain: str,
        *,
        clock: Clock = SYSTEM,
        role: Role = "gate",
        segment_bytes: int = 64 * _MIB,
        fsync: Fsync = "interval",
        checkpoint_events: int = 1000,
        checkpoint_seconds: float = 10.0,
    ) -> None:
        """Make the chain's directory and write its first line; raises AuditError."""
        if not CHAIN_NAME.match(chain) or is_keeper(chain) is not (role == "keeper"):
            raise AuditError("the chain's name is not well formed, or not for this role", where=chain[:100])
        self.chain = chain
        self.seq = -1
        self.head = GENESIS
        self.last_bytes = 0
        self._clock = clock
        self._dir = directory / chain
        self._encode = msgspec.json.Encoder().encode
        self._time = TimeText()
        self._stamp_chain = f'"chain":"{chain}"'
        self._fd = -1
        self._path = self._dir
        self._size = 0
        self._segment_bytes = segment_bytes
        self._torn: tuple[int, str] | None = None
        self._room = 0
        self._fsync = fsync
        self._unsynced = False
        self._syncs: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._problem: str | None = None
        self.low_on_room = False
        self._sync_problem: str | None = None
        self._checkpoint_events = checkpoint_events
        self._checkpoint_seconds = checkpoint_seconds
        self._signed_seq = -1
        self._unsigned = 0
        self._signed_at = clock.boot()
        self._reserve = self._begin()
        start = Writer(act="start", chain=chain, role=role, pid=os.getpid(), version=__version__)
        self.append(_own(), start, keep=True)

    def append(self, common: Common, block: Block, *, keep: bool = False) -> int:
        """Write one record and return its seq; `keep` lines may use the reserve. Raises AuditError."""
        return self.append_all([(common, block)], keep=keep)

    def append_all(self, records: Sequence[tuple[Common, Block]], *, keep: bool = False) -> int:
        """Write records by one `write`, and return the last one's seq. Raises AuditError.

        All stand or none, unless a short write cannot be taken back.
        """
        if self._sync_problem is not None:
            self._sync_again()
        if self._fd < 0 or self._size >= self._segment_bytes:
            self._next_segment()
        rests = [self._make_rest(common, block) for common, block in records]
        if not keep:
            size = sum(map(len, rests))
            self._room -= size
            if self._room < 0:
                self._measure(size)
        seq = self._put(rests)
        if self._fsync == "always":
            self._sync_now()
        return seq

    def text_time(self, *, ago: float = 0.0) -> str:
        """Return the wall clock's time, or that of some seconds ago, as records write it."""
        return self._time.format(self._clock.wall() - ago)

    def current(self) -> Head:
        """Return where the chain stands."""
        return Head(self.chain, self.seq, self.head)

    def problem(self) -> str | None:
        """Return why the last try to write or to sync failed; None when all is well (readiness)."""
        room = "free space is down to the reserve" if self.low_on_room else None
        return self._problem or self._sync_problem or room

    def checkpoint_due(self) -> Head | None:
        """Return the head to have signed when enough lines or time have passed since the last, else None."""
        waited = self._clock.boot() - self._signed_at
        if self._unsigned >= self._checkpoint_events or (self._unsigned and waited >= self._checkpoint_seconds):
            return self.current()
        return None

    def signed(self, covers: int) -> None:
        """Note that a checkpoint over the lines up to `covers` has been written as the last line."""
        self._signed_seq = covers
        # The checkpoint's own line does not make the next one due, else an idle chain would grow for ever.
        self._unsigned = max(self.seq - covers - 1, 0)
        self._signed_at = self._clock.boot()

    def maintain(self) -> None:
        """Do what is due each second: notice a moved file, measure the room anew, sync in the background."""
        self._room = 0
        if self.low_on_room:
            self.low_on_room = self._free() < 0
        if self._fd >= 0 and not self._in_place():
            self._close_segment()
        if self._fsync == "interval":
            self._sync_soon()

    def close(self) -> None:
        """Write the last line, sync and close; a failure here is no fault of the caller's and is dropped."""
        try:
            if self._fd >= 0:
                self.append(_own(), Writer(act="stop", chain=self.chain), keep=True)
        except AuditError:
            pass  # the keeper's book still tells how far the chain went
        self._close_segment()
        if self._pool is not None:
            self._pool.shutdown()  # waits for the last sync

    def _make_rest(self, common: Common, block: Block) -> bytes:
        """Return a line from where its stamp ends."""
        body = self._encode(common)
        return b'%b,"%b":%b}' % (body[1:-1], block.key.encode(), self._encode(block))

    def _put(self, rests: Sequence[bytes]) -> int:
        ts, mono_ns = self._time.format(self._clock.wall()), int(self._clock.boot() * 1e9)
        stamp = f'{{"v":{SCHEMA_VERSION},"ts":"{ts}","mono_ns":{mono_ns},{self._stamp_chain},"seq":'
        seq, head = self.seq, self.head
        lines: list[bytes] = []
        for rest in rests:
            seq += 1
            line = f'{stamp}{seq},"prev":"{head}",'.encode() + rest
            head = hashlib.sha256(line).hexdigest()
            lines += line, b"\n"
        data = b"".join(lines)
        self._write(data)
        self.seq, self.head = seq, head
        self.last_bytes = len(data)
        self._size += len(data)
        self._unsigned += len(rests)
        self._unsynced = True
        self._problem = None
        return seq

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise self._failed(error.strerror or "write failed") from error
        if written != len(data):
            self._take_back(data[:written])
            raise self._failed("no room for the whole line")

    def _take_back(self, piece: bytes) -> None:
        try:
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - len(piece))
        except OSError:  # append-only attribute, Landlock, or the same fault again
            *whole, cut = piece.split(b"\n")
            for line in whole:  # they stand
                self.seq, self.head = self.seq + 1, hashlib.sha256(line).hexdigest()
            self._unsigned += len(whole)
            self._torn = (len(cut), hashlib.sha256(cut).hexdigest()) if cut else None
            self._close_segment()

    def _failed(self, what: str) -> AuditError:
        self._problem = what
        return AuditError(what, where=str(self._path), hint="nothing passes until the log can be written")

    def _begin(self) -> int:
        try:
            self._dir.mkdir(mode=0o750)
        except FileNotFoundError:
            raise AuditError("there is no audit directory", where=str(self._dir.parent)) from None
        except OSError as error:
            raise AuditError(error.strerror or "mkdir failed", where=str(self._dir)) from error
        return min(_free_bytes(self._dir) // 10, _RESERVE_CAP_BYTES)

    def _next_segment(self) -> None:
        fd, path = self._open()
        self._close_segment()
        self._fd, self._path, self._size = fd, path, 0
        if self._torn is not None:
            size, digest = self._torn
            mark = Writer(act="torn", chain=self.chain, torn_bytes=size, torn_sha256=digest)
            self._put([self._make_rest(_own(), mark)])
            self._torn = None

    def _open(self) -> tuple[int, Path]:
        for attempt in range(_ATTEMPTS):
            path = self._dir / segment_name(self.seq + 1, attempt)
            try:
                return os.open(path, _OPEN, 0o640), path
            except FileExistsError:
                continue
            except OSError as error:
                self._path = path
                raise self._failed(error.strerror or "open failed") from error
        raise self._failed("too many segments begin with the same line")

    def _close_segment(self) -> None:
        if self._fd >= 0:
            if self._fsync == "interval" and self._unsynced:
                self._submit_sync()
            os.close(self._fd)
            self._fd = -1

    def _in_place(self) -> bool:
        mine = os.fstat(self._fd)
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISREG(there.st_mode) and (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)

    def _measure(self, need: int) -> None:
        room = self._free() - need
        self.low_on_room = room < 0
        if self.low_on_room:
            raise AuditError("free space is down to the reserve", where=str(self._dir), hint="make room on that disk")
        # Other writers share the disk: look again before an eighth of what is left is used up.
        self._room = room // 8

    def _free(self) -> int:
        return _free_bytes(self._dir) - self._reserve

    def _sync_soon(self) -> None:
        for done in [sync for sync in self._syncs if sync.done()]:
            self._syncs.remove(done)
            error = done.exception()
            self._sync_problem = f"sync failed: {error}" if error is not None else None
        if self._fd >= 0 and not self._syncs and (self._unsynced or self._sync_problem):
            self._submit_sync()

    def _submit_sync(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-sync")
        try:
            copy = os.dup(self._fd)
        except OSError as error:  # no descriptor is left: the next second tries again
            self._sync_problem = f"sync failed: {error.strerror}"
            return
        self._unsynced = False
        self._syncs.append(self._pool.submit(_sync_and_close, copy))

    def _sync_now(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # the line stands, but may not survive: its effect must not happen
            self._sync_problem = f"sync failed: {error.strerror}"
            raise AuditError(self._sync_problem, where=str(self._path)) from error
        self._sync_problem = None

    def _sync_again(self) -> None:
        if self._fsync == "always" and self._fd >= 0:
            self._sync_now()
        elif self._sync_problem is not None:  # the background one is tried again each second
            raise AuditError(self._sync_problem, where=str(self._path), hint="it resumes when a sync succeeds")


def _own() -> Common:
    return Common(
        session=None, owner=None, flow=None, parent=None, type="writer", phase="event",
        verdict=None, reason=None, rule=None, policy_hash=None,
    )  # fmt: skip


def _free_bytes(directory: Path) -> int:
    try:
        room = os.statvfs(directory)
    except OSError:
        return 0  # what cannot be measured is not there
    return room.f_bavail * room.f_frsize


def _sync_and_close(fd: int) -> None:
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
