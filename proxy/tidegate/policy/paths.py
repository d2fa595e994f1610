"""Paths and path globs: segments compared once decoded, and no guess where readings differ.

Theory of operation. Servers, caches and frameworks disagree on dot segments, empty segments,
encoded separators, path parameters and double encodings. A path on which one or two decodings
would change the segments is `ambiguous`: it never matches a path-scoped allow or a credential's
scope, and always matches a path-scoped deny of its host (P-32). It is still forwarded byte for
byte under a rule that is not path-scoped.

| glob piece        | meaning                                                  |
|-------------------|----------------------------------------------------------|
| `name`            | that segment                                             |
| `*`               | one segment, not empty                                   |
| `v*`, `a*b`       | one segment, `*` being any text within it                |
| `**`              | any number of whole segments, none included              |
"""

import re
import unicodedata
from functools import lru_cache

import msgspec

from tidegate.policy.names import PolicyError
from tidegate.policy.reasons import Reason

__all__ = ["ANY_PATH", "CompiledGlob", "Path", "PathGlob", "compile_glob", "parse_glob", "parse_target"]


class Path(msgspec.Struct, frozen=True):
    """A request path: `text` as sent without the query, its segments decoded once.

    `/a/b/` has the segments `("a", "b", "")`.
    """

    text: str
    query: str | None
    segments: tuple[str, ...]
    ambiguous: bool


class PathGlob(msgspec.Struct, frozen=True):
    """A path glob of a rule or a credential's scope, by its text."""

    text: str

    def __str__(self) -> str:
        return self.text

    def matches(self, segments: tuple[str, ...]) -> bool:
        """Tell whether the segments match, in time linear in them (V-18)."""
        return compile_glob(self).matches(segments)


# RFC 9112 section 3.2.1; what a request line can carry at all is visible ASCII without a fragment.
_TARGET = re.compile(r"/[!-\"$-~]*", re.ASCII)
_NEEDS_A_LOOK = re.compile(r"[%\\;]|//|\.(?:/|\Z)", re.ASCII)
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}", re.ASCII)
_ESCAPED_OCTET = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
# Encoded letters, digits, `-`, `.`, `_`: no client needs them (RFC 3986 section 2.3), and only some
# servers read them back. `~` is left out, since older clients encode it.
_NEEDLESS_ESCAPE = re.compile(r"%(?:3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|2[DdEe]|5[Ff])", re.ASCII)
# What a second reader could take for structure: separators, parameters, query, fragment, controls.
_STRUCTURE = re.compile(r"[/\\;?#\x00-\x1f\x7f-\x9f]")


def parse_target(target: str) -> Path | Reason:
    """Return the path of an origin-form target (with its query), or `MALFORMED_TARGET`."""
    if not _TARGET.fullmatch(target):
        return Reason.MALFORMED_TARGET
    text, mark, query = target.partition("?")
    pieces = text[1:].split("/")
    if not _NEEDS_A_LOOK.search(text):
        return Path(text, query if mark else None, tuple(pieces), False)
    decoded = [_decode(piece) for piece in pieces]
    ambiguous = "" in pieces[:-1] or None in decoded
    segments = tuple(raw if piece is None else piece for piece, raw in zip(decoded, pieces, strict=True))
    return Path(text, query if mark else None, segments, ambiguous)


def _decode(piece: str) -> str | None:
    """Return the segment decoded once, or None where another reading would differ."""
    if "%" in piece and (_BAD_ESCAPE.search(piece) or _NEEDLESS_ESCAPE.search(piece)):
        return None
    try:
        once = _unescape(piece).decode("utf-8")
    except UnicodeDecodeError:  # also overlong forms such as %c0%ae
        return None
    # Dot segments; and some servers trim blanks and dots at a segment's end before they look.
    if _STRUCTURE.search(once) or _ESCAPE.search(once) or once.endswith((".", " ")):
        return None
    if not once.isascii():
        # Best-fit mappings turn full-width forms into the real thing: U+FF0F, U+2024 and the like.
        folded = unicodedata.normalize("NFKC", once)
        if folded != once and (_STRUCTURE.search(folded) or folded.count(".") != once.count(".") or "%" in folded):
            return None
    return once


def _unescape(piece: str) -> bytes:
    raw = piece.encode("utf-8")
    return _ESCAPED_OCTET.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), raw) if "%" in piece else raw


def parse_glob(text: str) -> PathGlob:
    """Return the glob; raise `PolicyError` with what is wrong."""
    if not text.startswith("/"):
        raise PolicyError(f"path {text!r} does not start with /", hint="write /repos/acme/**, without scheme or host")
    if "?" in text or "#" in text:
        raise PolicyError(f"path {text!r} has a query or a fragment", hint="rules judge the path alone")
    pieces = text[1:].split("/")
    if "" in pieces[:-1]:
        raise PolicyError(f"path {text!r} has an empty segment", hint="no path with // ever matches a path rule")
    for piece in pieces:
        if "**" in piece and piece != "**":
            raise PolicyError(f"path {text!r} mixes ** with other text", hint="** stands for whole segments: /a/**/b")
        if _decode(piece) is None:
            raise PolicyError(
                f"path {text!r}: segment {piece!r} can be read in more than one way",
                hint="no request for it can match; write it without escapes, dots, ; or backslash",
            )
    return PathGlob(text)


class CompiledGlob:
    """A glob ready to match: `prefix` are its leading literal segments, used by the index too."""

    __slots__ = ("_rest", "exact", "glob", "prefix", "tree")

    def __init__(self, glob: PathGlob) -> None:
        pieces = [_decode(piece) or "" for piece in glob.text[1:].split("/")]
        cut = next((i for i, piece in enumerate(pieces) if "*" in piece), len(pieces))
        self.glob = glob
        self.prefix: tuple[str, ...] = tuple(pieces[:cut])
        self.exact = cut == len(pieces)
        self.tree = pieces[cut:] == ["**"]
        self._rest = tuple(_runs(pieces[cut:]))

    def matches(self, segments: tuple[str, ...]) -> bool:
        """Tell whether the segments match."""
        cut = len(self.prefix)
        if segments[:cut] != self.prefix:
            return False
        if self.tree:
            return True
        if self.exact:
            return len(segments) == cut
        return _match_runs(segments[cut:], self._rest)


# One segment of a glob between `**`: the literal pieces around its `*`, or one literal alone.
type _Segment = tuple[str, ...]
type _Run = tuple[_Segment, ...]


def _runs(pieces: list[str]) -> list[_Run]:
    runs: list[list[_Segment]] = [[]]
    for piece in pieces:
        if piece == "**":
            runs.append([])
        else:
            runs[-1].append(tuple(piece.split("*")))
    return [tuple(run) for run in runs]


def _match_segment(segment: str, pieces: _Segment) -> bool:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return segment == first
    if not segment or len(segment) < len(first) + len(last):
        return False
    if not (segment.startswith(first) and segment.endswith(last)):
        return False
    at, end = len(first), len(segment) - len(last)
    for piece in pieces[1:-1]:  # leftmost is enough: `*` takes any text
        found = segment.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _match_run(segments: tuple[str, ...], at: int, run: _Run) -> bool:
    return all(_match_segment(segments[at + i], pieces) for i, pieces in enumerate(run))


def _match_runs(segments: tuple[str, ...], runs: tuple[_Run, ...]) -> bool:
    """Match runs of segments parted by `**`: first and last are anchored, the others go leftmost."""
    first, last = runs[0], runs[-1]
    if len(runs) == 1:
        return len(segments) == len(first) and _match_run(segments, 0, first)
    end = len(segments) - len(last)
    at = len(first)
    if end < at or not _match_run(segments, 0, first) or not _match_run(segments, end, last):
        return False
    for run in runs[1:-1]:
        while at + len(run) <= end and not _match_run(segments, at, run):
            at += 1
        at += len(run)
        if at > end:
            return False
    return True


@lru_cache(maxsize=65536)
def compile_glob(glob: PathGlob) -> CompiledGlob:
    """Return the glob ready to match. Cached."""
    return CompiledGlob(glob)


ANY_PATH = PathGlob("/**")
"""The default of a rule: every path, and not path-scoped."""
