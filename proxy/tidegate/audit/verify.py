"""Is the log whole? Answered with the public key alone.

| checked | how |
|---|---|
| no line changed, taken out, put in or moved | seq, `prev` and hash of every line (`walk`) |
| nothing rewritten before a signature | every checkpoint's note, over the hash that stands there |
| no chain missing, none cut below its last signature | the book in the keeper's chains: `born`, `head`, `dead` |
| no chain made up | every chain is `born` in a keeper's book |
| nothing kept from this reader | a chain or file that cannot be read is a problem by itself (`unread`) |
| no keeper's chain missing | each but the newest is `dead` in another keeper's book |

What this cannot show: lines cut off after the last signed head, and lies told when they were
written. Heads sent elsewhere, or witnesses who cosign, narrow the first.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tidegate.audit.event import Writer
from tidegate.audit.segment import chains, impostors, is_keeper
from tidegate.audit.unread import STRANGE, unreadable
from tidegate.audit.walk import Torn, Walk, Wrong, walk

__all__ = ["ChainReport", "Report", "verify"]

_SETTLE_SECONDS = 0.3


class ChainReport(NamedTuple):
    """A chain in numbers: lines in all, lines under a signature (its own or the book's)."""

    chain: str
    role: str
    lines: int
    signed: int
    state: str


@dataclass
class Report:
    """What a verification found; `problems` in the order of chains, empty when the log is whole."""

    problems: list[Wrong] = field(default_factory=list)
    notes: list[Wrong] = field(default_factory=list)
    chains: list[ChainReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


class _Claim(NamedTuple):
    """The keeper's word that `seq` of a chain has hash `head`."""

    where: str
    seq: int
    head: str


@dataclass
class _Entry:
    """What the book says of one chain."""

    where: str
    dead: bool = False
    torn: tuple[int, str] | None = None
    claims: list[_Claim] = field(default_factory=list)


def verify(directory: Path, public_key: Ed25519PublicKey) -> Report:
    """Check every chain in `directory`. Raises AuditError only when the folder itself cannot be read.

    A chain that cannot be read is a problem of this chain; the others are judged.

    A log that is being written can look wrong for a moment (a line half written, a chain just
    born): what is found wrong is looked at once more before it is said.
    """
    report = _verify(directory, public_key)
    if not report.ok:
        time.sleep(_SETTLE_SECONDS)
        report = _verify(directory, public_key)
    return report


def _verify(directory: Path, public_key: Ed25519PublicKey) -> Report:
    try:
        found = chains(directory)
        strange = impostors(directory)
    except OSError as error:
        raise unreadable(directory, error) from error
    # The book is read before the other chains: they only grow, so what it says of them holds then too.
    found.sort(key=lambda path: (not is_keeper(path.name), path.name))
    walks: dict[str, Walk] = {}
    for path in found:
        walks[path.name] = walk(path, public_key)
    keepers = [one for one in walks.values() if one.role == "keeper"]
    book = _read_book(keepers)
    report = Report()
    if not keepers and not any(is_keeper(one.chain) and _unread(one) for one in walks.values()):
        report.problems.append(
            Wrong(f"{directory.name}/", "there is no keeper's chain, so none can tell what is missing")
        )
    for one in walks.values():
        _judge(one, book.get(one.chain), report)
    for chain in sorted(book.keys() - walks.keys()):
        _judge_missing(chain, book[chain], report, strange=chain in strange)
    _judge_succession(keepers, book, report)
    return report


def _read_book(keepers: list[Walk]) -> dict[str, _Entry]:
    book: dict[str, _Entry] = {}
    for keeper in sorted(keepers, key=lambda one: (one.first_ts, one.chain)):
        for where, mark in keeper.writers:
            if mark.act in ("born", "head", "dead") and mark.chain != keeper.chain:
                _note(book.setdefault(mark.chain, _Entry(where)), where, mark)
    return book


def _note(entry: _Entry, where: str, mark: Writer) -> None:
    entry.dead = mark.act == "dead"  # a writer that reports again was only out of touch
    if mark.seq is not None and mark.head is not None:
        entry.claims.append(_Claim(where, mark.seq, mark.head))
    if mark.torn_bytes is not None and mark.torn_sha256 is not None:
        entry.torn = (mark.torn_bytes, mark.torn_sha256)


def _judge(one: Walk, entry: _Entry | None, report: Report) -> None:
    signed = one.signed_seq
    if one.wrong is not None:
        report.problems.append(one.wrong)
    elif entry is not None:
        signed = max([signed, *(claim.seq for claim in entry.claims)])
        _judge_claims(one, entry, report)
    if one.torn is not None and one.wrong is None:
        _judge_torn(one.torn, entry, report)
    if one.role == "keeper":
        if one.signed_seq < 0 and one.wrong is None:
            report.problems.append(Wrong(one.where, "a keeper's chain without a signed checkpoint"))
    elif entry is None and not _unread(one):
        # A writer that died before the keeper knew it leaves its start mark and no more.
        bare = one.seq == 0 and one.wrong is None
        told = report.notes if bare else report.problems
        what = "unannounced: no keeper's chain that was read tells of this one, so its lines prove nothing"
        told.append(Wrong(f"{one.chain}/", what))
    state = "unread" if _unread(one) else "broken" if one.wrong else "ended" if entry and entry.dead else "open"
    report.chains.append(ChainReport(one.chain, one.role or "?", one.seq + 1, min(signed, one.seq) + 1, state))


def _judge_claims(one: Walk, entry: _Entry, report: Report) -> None:
    for claim in entry.claims:
        there = one.hash_at(claim.seq)
        if there is None:
            what = f"the chain ends at seq {one.seq}, but {claim.where} tells of seq {claim.seq}: its tail is missing"
        elif there != claim.head:
            what = f"line {claim.seq} of the chain is not the one that {claim.where} tells of"
        else:
            continue
        report.problems.append(Wrong(one.where, what))
        return


def _judge_torn(torn: Torn, entry: _Entry | None, report: Report) -> None:
    if entry is None or not entry.dead or (entry.torn is not None and entry.torn != torn[1:]):
        report.problems.append(Wrong(torn.where, "the line is cut short"))
    else:
        report.notes.append(Wrong(torn.where, "the last line was cut short when its writer died"))


def _unread(one: Walk) -> bool:
    return one.wrong is not None and one.wrong.unread


def _judge_missing(chain: str, entry: _Entry, report: Report, *, strange: bool) -> None:
    if strange:
        what = f"no folder stands in the place of this chain; {entry.where} tells of it"
        report.problems.append(Wrong(f"{chain}/", what, STRANGE, unread=True))
    elif not entry.dead or any(claim.seq >= 0 for claim in entry.claims):
        report.problems.append(Wrong(f"{chain}/", f"the chain is missing; {entry.where} tells of it"))


def _judge_succession(keepers: list[Walk], book: dict[str, _Entry], report: Report) -> None:
    untold = sorted((one for one in keepers if one.chain not in book), key=lambda one: (one.first_ts, one.chain))
    for one in untold[:-1]:
        report.problems.append(Wrong(f"{one.chain}/", "no later keeper's chain tells of this keeper's chain"))
    if keepers and not untold:
        report.problems.append(Wrong("keeper", "each keeper's chain is told of by another: the newest is missing"))
