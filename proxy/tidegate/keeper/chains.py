"""The book of audit chains: who writes which, how far each is known, and the only pen for checkpoints.

| ask | answered |
|---|---|
| a chain not seen before | born: recorded, tied to the claim of the link that named it |
| a later (seq, head) by the same claim | signed, recorded, remembered |
| a later one that is said to be the last | the same, and dead from then on |
| the same (seq, head) again | signed again (the first answer may have been lost) |
| an earlier seq, another head for the same seq, another's claim, a dead chain | refused, incident |

A writer whose link is gone for longer than the grace is dead, and stays so; where the supervisor has seen its
process end, the grace is short.
"""

import hashlib
import hmac
import re
from typing import Final, final

import msgspec

from tidegate.audit.checkpoint import sign_note
from tidegate.audit.event import Checkpoint, Head
from tidegate.audit.segment import CHAIN_NAME
from tidegate.clock import Clock
from tidegate.keeper.journal import Journal
from tidegate.keeper.keys import Keys
from tidegate.keeper.store import Store, fetch, keep, walk

__all__ = ["ChainBook"]

_SHELF: Final = "chains"
_GRACE_SECONDS: Final = 30.0
_LAST_WORDS_SECONDS: Final = 1.0  # what a killed worker had sent may still be on its way
_MOST_PER_CLAIM: Final = 16
_HEAD: Final = re.compile(r"[0-9a-f]{64}")
_GENESIS: Final = "0" * 64


class _Known(msgspec.Struct, frozen=True):
    claim: str
    seq: int = -1
    head: str = _GENESIS
    dead: bool = False


class _Own(msgspec.Struct, frozen=True):
    """The keeper's own chain, for the keeper that comes after."""

    chain: str
    seq: int
    head: str


@final
class ChainBook:
    """Chains and checkpoints."""

    def __init__(self, store: Store, keys: Keys, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._known = dict(walk(store, _SHELF, _Known))
        self._gone_at: dict[str, float] = {name: clock.boot() for name, one in self._known.items() if not one.dead}
        self._pids: dict[str, int] = {}
        """Claim, hashed, -> process; for this life of the keeper only."""
        self._ended: set[str] = set()

    def bury_predecessor(self, journal: Journal) -> None:
        """Record how far the chain of the keeper before this one is known, and take its place."""
        old = fetch(self._store, "own", "chain", _Own)
        if old is not None:
            journal.chain("dead", chain=old.chain, seq=old.seq, head=old.head)
        # At once, since a keeper killed a moment later must have left a chain that can be told from a forged one.
        self.sign_own(journal, due=False)

    def note_own(self, journal: Journal) -> None:
        """Remember how far the keeper's own chain goes."""
        now = journal.writer.current()
        keep(self._store, "own", "chain", _Own(now.chain, now.seq, now.head))

    def announce(self, chain: str, claim: str, journal: Journal) -> bool:
        """Take a chain on for the holder of `claim`; False when it is not his."""
        known = self._known.get(chain)
        if known is not None:
            if known.dead or not hmac.compare_digest(known.claim, _digest(claim)):
                return False
            self._gone_at.pop(chain, None)
            return True
        if not CHAIN_NAME.match(chain) or chain.startswith("keeper") or self._count(claim) >= _MOST_PER_CLAIM:
            return False
        journal.chain("born", chain=chain, seq=None, head=None)
        self._put(chain, _Known(_digest(claim)))
        return True

    def sign(self, head: Head, claim: str, journal: Journal, *, last: bool = False) -> str | None:
        """Return a signed note over a forward step, or None when it is not one. `last`: the chain ends there."""
        if not _HEAD.fullmatch(head.head) or head.seq < 0 or not self.announce(head.chain, claim, journal):
            return None
        known = self._known[head.chain]
        if head.seq < known.seq or (head.seq == known.seq and head.head != known.head):
            return None
        if last or head.seq > known.seq:
            journal.chain("dead" if last else "head", chain=head.chain, seq=head.seq, head=head.head)
            self._put(head.chain, _Known(known.claim, head.seq, head.head, dead=last))
        return self._note(head)

    def met(self, claim: str, pid: int) -> None:
        """Remember which process speaks with this claim."""
        self._pids[_digest(claim)] = pid

    def ended(self, pid: int) -> None:
        """Note that this process is gone for certain, so that its chains need no grace to come back."""
        for mark in [mark for mark, other in self._pids.items() if other == pid]:
            del self._pids[mark]
            self._ended.add(mark)
            self._leave(mark)

    def lost(self, claim: str) -> None:
        """Note that the link with this claim has ended; its chains have the grace to come back."""
        self._leave(_digest(claim))

    def _leave(self, mark: str) -> None:
        now = self._clock.boot()
        gone = now - _GRACE_SECONDS + _LAST_WORDS_SECONDS if mark in self._ended else now
        for chain, known in self._known.items():
            if known.claim == mark and not known.dead:
                self._gone_at[chain] = min(gone, self._gone_at.get(chain, gone))

    def bury(self, journal: Journal) -> None:
        """Record the writers that did not come back."""
        due = self._clock.boot() - _GRACE_SECONDS
        for chain in [chain for chain, at in self._gone_at.items() if at <= due]:
            known = self._known[chain]
            journal.chain("dead", chain=chain, seq=known.seq, head=known.head)
            self._put(chain, msgspec.structs.replace(known, dead=True))
            del self._gone_at[chain]
            self._pids.pop(known.claim, None)
            self._ended.discard(known.claim)

    def sign_own(self, journal: Journal, *, due: bool = True) -> None:
        """Put a checkpoint on the keeper's own chain, when one is due or (`due=False`) in any case."""
        head = journal.writer.checkpoint_due() if due else journal.writer.current()
        if head is None:
            return
        journal.checkpoint(Checkpoint(covers=head.seq, head=head.head, note=self._note(head)))
        journal.writer.signed(head.seq)
        self.note_own(journal)

    def _note(self, head: Head) -> str:
        return sign_note(head, self._keys.sign_audit, self._keys.audit.public_key())

    def _count(self, claim: str) -> int:
        mark = _digest(claim)
        return sum(1 for known in self._known.values() if known.claim == mark and not known.dead)

    def _put(self, chain: str, known: _Known) -> None:
        self._known[chain] = known
        keep(self._store, _SHELF, chain, known)


def _digest(claim: str) -> str:
    return hashlib.sha256(claim.encode()).hexdigest()
