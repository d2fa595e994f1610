"""Where a chain's lines lie: `AUDIT/<chain>/<first-seq>.jsonl`, padded so that a listing is in order.

A second file for the same first seq (the first one holds nothing but a cut line that could not
be taken back) is named `<first-seq>-r<n>.jsonl`.
"""

import errno
import os
import re
import secrets
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tidegate.errors import AuditError

__all__ = [
    "CHAIN_NAME",
    "Segment",
    "chains",
    "is_keeper",
    "new_chain",
    "open_segment",
    "segment_name",
    "segments",
    "unreadable",
]

CHAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
_SEGMENT = re.compile(r"(\d{1,18})(?:-r(\d{1,4}))?\.jsonl\Z")


class Segment(NamedTuple):
    """One file of a chain; sorts in the order of writing."""

    first_seq: int
    attempt: int
    path: Path


def new_chain(role: str) -> str:
    """Return a chain name that no other process start has: the role and 64 random bits."""
    return f"{role}-{secrets.token_hex(8)}"


def is_keeper(chain: str) -> bool:
    """Return True for a name that only a keeper's own chain may bear: it signs no other's under it."""
    return chain.startswith("keeper")


def segment_name(first_seq: int, attempt: int = 0) -> str:
    """Return the file name of the segment that begins with `first_seq`."""
    return f"{first_seq:012d}-r{attempt}.jsonl" if attempt else f"{first_seq:012d}.jsonl"


def segments(chain_dir: Path) -> list[Segment]:
    """Return a chain's segments in order; other files are not a chain's."""
    found = []
    for name in os.listdir(chain_dir):
        if match := _SEGMENT.match(name):
            found.append(Segment(int(match[1]), int(match[2] or 0), chain_dir / name))
    return sorted(found)


def open_segment(path: Path) -> BinaryIO:
    """Open a segment for reading; raises OSError for what is no regular file.

    A pipe in its place would hold the reader for ever, and a link would have it read what another chose.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def chains(directory: Path) -> list[Path]:
    """Return the chain directories of an audit directory, by name."""
    with os.scandir(directory) as entries:
        found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [directory / name for name in sorted(found) if CHAIN_NAME.match(name)]


def unreadable(path: Path, error: OSError) -> AuditError:
    """Return the fault of a file or folder that cannot be read: what this user may not read is not therefore wrong."""
    if isinstance(error, PermissionError):
        return AuditError(f"cannot read {path}", hint="run this as root, or as the user that runs the gate")
    return AuditError(error.strerror or "cannot be read", where=str(path))
