"""Placeholders in a text, as they stand or in an encoded form, and whose they are.

One pass looks for the marker in every letter case, and for its base64 and hexadecimal forms. Percent signs,
`\\u00` and `&#` are undone, up to `_ROUNDS` times, and the result is looked at again. A placeholder is no
secret, so this is an alarm and a help for clients that put it in the wrong place, no boundary: what no one
recognises is merely never swapped.
"""

import base64
import html
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from tidegate.credentials.placeholder import MARKER, find_placeholders
from tidegate.credentials.search import StringSet

__all__ = ["Known", "Sighting", "hinted", "sightings"]

_ROUNDS = 3
_ESCAPE = re.compile(rb"\\(?:u00|x)([0-9a-fA-F]{2})")
_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/_-]{32,}")
_HEX_RUN = re.compile(rb"[0-9a-fA-F]{60,}")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")


class Sighting(msgspec.Struct, frozen=True):
    """A placeholder that was seen: from its marker on, and whether it had to be decoded first."""

    core: bytes
    encoded: bool


def _hints() -> Iterator[bytes]:
    for letters in itertools.product(*[sorted({char, char.upper()}) for char in MARKER]):
        marker = "".join(letters).encode()
        yield marker
        yield marker.hex().encode()
        yield marker.hex().upper().encode()
        for offset in range(3):
            text = base64.b64encode(bytes(offset) + marker)
            yield text[-(-offset * 8 // 6) : (offset + len(marker)) * 8 // 6]


_HINTS = StringSet(frozenset(_hints()))


def hinted(text: bytes) -> bool:
    """Tell in one pass whether the text may hold a placeholder, raw, in base64 or in hexadecimal."""
    return _HINTS.find(text) is not None


def sightings(text: bytes) -> list[Sighting]:
    """Return the placeholders of any session in the text, each once; one that stands as it is, is not encoded."""
    seen: dict[bytes, Sighting] = {}
    for depth, form in enumerate(_decodings(text)):
        if not hinted(form):
            continue
        for core in find_placeholders(form):
            seen.setdefault(core, Sighting(core, depth > 0))
        for core in _inside_runs(form):
            seen.setdefault(core, Sighting(core, True))
    return list(seen.values())


def _decodings(text: bytes) -> Iterator[bytes]:
    yield text
    for _ in range(_ROUNDS):
        decoded = _undo(text)
        if decoded == text:
            return
        text = decoded
        yield text


def _undo(text: bytes) -> bytes:
    if b"%" in text:
        text = unquote_to_bytes(text)
    if b"\\" in text:
        text = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text)
    if b"&#" in text:
        text = html.unescape(text.decode("latin-1")).encode("latin-1", "replace")
    return text


def _inside_runs(text: bytes) -> Iterator[bytes]:
    for run in _BASE64_RUN.findall(text):
        standard = run.translate(_TO_STANDARD)
        for offset in range(4):
            part = standard[offset:]
            yield from find_placeholders(base64.b64decode(part[: len(part) // 4 * 4] + _rest(part)))
    for run in _HEX_RUN.findall(text):
        for part in (run, run[1:]):
            yield from find_placeholders(bytes.fromhex(part[: len(part) // 2 * 2].decode()))


def _rest(part: bytes) -> bytes:
    """Return the last, short group of a base64 text with its padding; a single character says nothing."""
    rest = part[len(part) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


class _Held(Protocol):
    @property
    def placeholder(self) -> str: ...


class Known[H: _Held]:
    """The placeholders of a session, to tell its own sightings from those of others."""

    def __init__(self, holdings: Sequence[H]) -> None:
        self._cores = [
            (core, holding) for holding in holdings for core in find_placeholders(holding.placeholder.encode())[:1]
        ]

    def owner(self, sighting: Sighting) -> tuple[H | None, bool]:
        """Return the holding behind a sighting (None: not of this session), and whether it stands in its own case.

        A core may be followed by other letters, or be cut at the end of a chunk; the 22 random characters
        that any sighting has are enough to tell.
        """
        for core, holding in self._cores:
            if _same(core, sighting.core):
                return holding, True
            if _same(core.lower(), sighting.core.lower()):
                return holding, False
        return None, True


def _same(known: bytes, seen: bytes) -> bool:
    return seen.startswith(known) or known.startswith(seen)
