"""Where a chain ends on disk: for a successor that books the death of a writer it can read."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.audit.event import Head
from tidegate.audit.segment import segments
from tidegate.audit.writer import GENESIS
from tidegate.errors import AuditError

__all__ = ["Tail", "read_tail"]


class Tail(NamedTuple):
    """The last whole line, and the piece of a line behind it, if any."""

    head: Head
    torn_bytes: int | None
    torn_sha256: str | None


class _Seq(msgspec.Struct):
    seq: int


_decode = msgspec.json.Decoder(_Seq).decode


def read_tail(chain_dir: Path) -> Tail:
    """Return how far a chain goes, from its last segments; raises AuditError when it cannot be read."""
    torn: bytes | None = None
    try:
        for segment in reversed(segments(chain_dir)):
            *lines, rest = segment.path.read_bytes().split(b"\n")
            if rest and torn is None:
                torn = rest
            if lines:
                head = Head(chain_dir.name, _decode(lines[-1]).seq, hashlib.sha256(lines[-1]).hexdigest())
                break
            if not rest:
                continue
        else:
            head = Head(chain_dir.name, -1, GENESIS)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise AuditError(f"the chain's end cannot be read: {error}", where=str(chain_dir)) from None
    if torn is None:
        return Tail(head, None, None)
    return Tail(head, len(torn), hashlib.sha256(torn).hexdigest())
