"""Where a chain's lines lie: `AUDIT/<chain>/<first-seq>.jsonl`, padded so that a listing is in order.

A second file for the same first seq (the first one holds nothing but a cut line that could not
be taken back) is named `<first-seq>-r<n>.jsonl`.
"""

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tidegate.audit.unread import Unreadable, reading

__all__ = [
    "CHAIN_NAME",
    "Segment",
    "chains",
    "impostors",
    "is_keeper",
    "new_chain",
    "open_segment",
    "segment_name",
    "segments",
]

CHAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
_SEGMENT = re.compile(r"([0-9]{1,18})(?:-r([0-9]{1,4}))?\.jsonl\Z")
_NAMES = "the gate makes no hard link: undo a copy made of links (`cp -l`), or take the worker that owns it for fallen"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    """Return a chain's segments in order; other files are not a chain's. Raises `Unreadable`."""
    found = []
    with reading(f"{chain_dir.name}/"), _folder(chain_dir) as folder:
        for name in os.listdir(folder):
            if match := _SEGMENT.match(name):
                found.append(Segment(int(match[1]), int(match[2] or 0), chain_dir / name))
    return sorted(found)


def open_segment(path: Path) -> BinaryIO:
    """Open a segment for reading; raises OSError, and `Unreadable` for what is no regular file with one name.

    A pipe in its place would hold the reader for ever, and a link, also one for its folder, would have it read what
    another chose. A file of many names would be read as often, and costs its owner one.
    """
    with _folder(path.parent) as folder:
        descriptor = os.open(path.name, _READ, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        where = f"{path.parent.name}/{path.name}"
        if stat.S_ISREG(status.st_mode):
            raise Unreadable("this file has another name too", where=where, hint=_NAMES)
        raise Unreadable("this is no regular file", where=where)
    return os.fdopen(descriptor, "rb", buffering=0)


def chains(directory: Path) -> list[Path]:
    """Return the chain directories of an audit directory, by name."""
    return [directory / name for name, folder in _named(directory) if folder]


def impostors(directory: Path) -> set[str]:
    """Return the chains' names under which no folder lies, but something else."""
    return {name for name, folder in _named(directory) if not folder}


def _named(directory: Path) -> list[tuple[str, bool]]:
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if CHAIN_NAME.match(entry.name)]
    return sorted(found)


@contextlib.contextmanager
def _folder(chain_dir: Path) -> Iterator[int]:
    descriptor = os.open(chain_dir, _READ | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
