"""One chain, read from its first byte to its last and checked line by line.

A walk stops at the first thing wrong, since everything behind it hangs on it, and names the line
that is wrong: where `prev` does not fit, that is the line before.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tidegate.audit.checkpoint import open_note
from tidegate.audit.event import SCHEMA_VERSION, Checkpoint, Head, Writer
from tidegate.audit.lines import LINE_CAP, read_lines
from tidegate.audit.segment import Segment, is_keeper, segments
from tidegate.audit.unread import Unreadable
from tidegate.audit.writer import GENESIS
from tidegate.errors import AuditError

__all__ = ["Torn", "Walk", "Wrong", "walk"]

_HASH_BYTES = 32
_EMPTY_MOST = 1000
_TOUCHED = "keep the folder as it is, and compare it with a copy from before"


class _Line(msgspec.Struct, frozen=True):
    v: int
    ts: str
    chain: str
    seq: int
    prev: str
    type: str
    writer: Writer | None = None
    checkpoint: Checkpoint | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Torn(NamedTuple):
    """A piece of a line at the end of a segment: where, how long, its SHA-256."""

    where: str
    size: int
    sha256: str


class Wrong(NamedTuple):
    """The first thing wrong in a chain: `file:line`, what, and the next step.

    `unread`: it could not be read, so nothing is said of what it holds.
    """

    where: str
    what: str
    hint: str = _TOUCHED
    unread: bool = False


class Walk:
    """What a chain holds: its hashes by seq, its writer marks, how far signatures reach."""

    def __init__(self, chain: str) -> None:
        self.chain = chain
        self.role = ""
        self.first_ts = ""
        self.seq = -1
        self.where = f"{chain}/"
        self.signed_seq = -1
        self.writers: list[tuple[str, Writer]] = []
        self.torn: Torn | None = None
        self.wrong: Wrong | None = None
        self._hashes = bytearray()

    def hash_at(self, seq: int) -> str | None:
        """Return the hash of line `seq`, GENESIS for -1, None for a line that is not there."""
        if seq == -1:
            return GENESIS
        piece = self._hashes[seq * _HASH_BYTES : (seq + 1) * _HASH_BYTES] if seq >= 0 else b""
        return piece.hex() if piece else None

    def take(self, line: bytes, where: str, segment: Segment, public_key: Ed25519PublicKey, *, first: bool) -> None:
        """Check one line and add it; raises AuditError with `where` at the line that is wrong."""
        try:
            record = _decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:  # the second: nested without end
            raise AuditError(f"this is no record: {error}", where=where) from None
        self._check_torn(record, where)
        self._check_place(record, where, segment, first=first)
        if record.writer is not None:
            self.writers.append((where, record.writer))
        if record.type == "checkpoint":
            self._check_checkpoint(record.checkpoint, where, public_key)
        self._hashes += hashlib.sha256(line).digest()
        self.seq, self.where = record.seq, where

    def _check_place(self, record: _Line, where: str, segment: Segment, *, first: bool) -> None:
        expected = self.seq + 1
        if record.v != SCHEMA_VERSION:
            raise AuditError(f"schema version {record.v} is not known to this reader", where=where)
        if record.chain != self.chain:
            raise AuditError(f"a line of chain {record.chain!r} stands here", where=where)
        if record.seq != expected:
            what = f"seq {record.seq} stands where {expected} should: lines are missing or moved"
            raise AuditError(what, where=where)
        if record.prev != self.hash_at(self.seq):
            blame = self.where if expected else where
            raise AuditError(f"the line was changed: {where} was written after another one", where=blame)
        if first and segment.first_seq != record.seq:
            raise AuditError(f"the file's name says that it begins with seq {segment.first_seq}", where=where)
        if expected == 0:
            self._check_start(record, where)

    def _check_start(self, record: _Line, where: str) -> None:
        if record.writer is None or record.writer.act != "start" or record.writer.chain != self.chain:
            raise AuditError("the chain does not begin with its start mark", where=where)
        self.role = record.writer.role or "other"
        # A worker could call itself a keeper; it cannot have a chain of that name signed.
        if (self.role == "keeper") is not is_keeper(self.chain):
            raise AuditError(f"a chain of this name cannot be a {self.role}'s", where=where)
        self.first_ts = record.ts

    def _check_torn(self, record: _Line, where: str) -> None:
        """A cut line is in order only if the very next line says so."""
        if self.torn is None:
            return
        mark = record.writer
        if mark is None or mark.act != "torn" or (mark.torn_bytes, mark.torn_sha256) != self.torn[1:]:
            raise AuditError(f"the line is cut short, and {where} does not say so", where=self.torn.where)
        self.torn = None

    def _check_checkpoint(self, block: Checkpoint | None, where: str, public_key: Ed25519PublicKey) -> None:
        if block is None:
            raise AuditError("a checkpoint without its block", where=where)
        try:
            head = open_note(block.note, public_key)
        except AuditError as error:
            raise AuditError(error.what, where=where) from None
        if head != Head(self.chain, block.covers, block.head):
            raise AuditError("the checkpoint was signed for another place", where=where)
        if self.hash_at(head.seq) != head.head:
            raise AuditError(f"the lines up to seq {head.seq} are not those that were signed", where=where)
        self.signed_seq = max(self.signed_seq, head.seq)


def walk(chain_dir: Path, public_key: Ed25519PublicKey) -> Walk:
    """Read a chain; what is wrong with it stands in the answer, nothing is raised."""
    found = Walk(chain_dir.name)
    try:
        empty = 0
        for segment in segments(chain_dir):
            before = found.seq
            _walk_segment(found, segment, public_key)
            empty += found.seq == before
            if empty > _EMPTY_MOST:  # each has to be opened, and costs its owner nothing but a name
                what = f"more than {_EMPTY_MOST} files of this chain have no line"
                raise Unreadable(what, where=f"{chain_dir.name}/{segment.path.name}")
        if found.seq < 0 and found.torn is None:
            found.wrong = Wrong(f"{chain_dir.name}/", "the chain has no line")
    except Unreadable as error:
        found.wrong = Wrong(error.where, error.what, error.hint, unread=True)
    except AuditError as error:
        found.wrong = Wrong(error.where, error.what)
    return found


def _walk_segment(found: Walk, segment: Segment, public_key: Ed25519PublicKey) -> None:
    name = f"{found.chain}/{segment.path.name}"
    number = 0
    for number, (line, whole) in enumerate(read_lines(segment.path), 1):
        where = f"{name}:{number}"
        if not whole:
            if found.torn is not None or len(line) >= LINE_CAP:
                raise AuditError("the line has no end", where=where)
            found.torn = Torn(where, len(line), hashlib.sha256(line).hexdigest())
            return
        found.take(line, where, segment, public_key, first=number == 1)
