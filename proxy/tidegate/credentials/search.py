"""A set of byte strings, searched for in one pass, whatever their number and length.

RE2's automaton makes one step a byte and is linear on any input (V-18), but its memory is bounded, and what
passes the bound is refused or crawls. So it is given the heads of the strings alone; where a head stands, the
whole string is looked up in the sorted list: the greatest one that is not above the text there begins it, or
one of its own beginnings does.

| | heads of | automaton | 1 MB without a find |
|---|---|---|---|
| 1 secret of 40 bytes (22 strings) | 32 bytes | 20 heads | 1 ms |
| 1000 secrets of 40 bytes (22 000) | 8 bytes | 6 700 heads, 10 ms to compile | 3 ms |
| 50 secrets of 4 KB (1 100) | 8 bytes | 360 heads | 3 ms |

`tail` answers the other question of a stream: which end of this chunk could be the beginning of a string?
It looks only at what really is a beginning, so that an event stream is not delayed. `is_quiet` answers both
questions at once for the chunk that has nothing to do with any string, as almost every one has not.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

import re2

__all__ = ["Search", "StringSet", "Unbroken"]

_FEW = 1000
_LONG_HEAD = 32
_SHORT_HEAD = 8
_START = 4
_BREAK = re.compile(rb"\r?\n|\r\Z")
_MAX_MEMORY = 64 << 20  # a bound, not what it takes: the heads of 88 000 strings fill some 10 MB

type _Span = tuple[int, int]


class StringSet:
    """An immutable set of non-empty byte strings."""

    def __init__(self, strings: Collection[bytes]) -> None:
        self._strings = sorted(set(strings))
        self._shorter = _beginnings(self._strings)
        self._longest = max(map(len, self._strings), default=0)
        self._head = _LONG_HEAD if len(self._strings) <= _FEW else _SHORT_HEAD
        self._starts = frozenset(text[:count] for text in self._strings for count in range(1, _START + 1))
        heads = {text[: self._head] for text in self._strings}
        self._heads = _compile(heads)
        # How a beginning that is shorter than its head can end: one byte, or the last two of them.
        self._ends = frozenset(head[:1] for head in heads) | frozenset(
            head[at : at + 2] for head in heads for at in range(len(head) - 1)
        )

    def find(self, text: bytes, start: int = 0) -> _Span | None:
        """Return start and end of the leftmost string in the text, the longest of those that begin there."""
        while (match := self._heads.search(text, start)) is not None:
            begin = int(match.start())
            size = self._size_at(text, begin)
            if size:
                return begin, begin + size
            start = begin + 1
        return None

    def _size_at(self, text: bytes, begin: int) -> int:
        """Return the length of the longest string that the text goes on with at `begin`; 0 for none."""
        # Every string between one that begins the text and the text itself, in order, begins with that one too.
        at = bisect_right(self._strings, text[begin : begin + self._longest]) - 1
        while at >= 0:
            if text.startswith(self._strings[at], begin):
                return len(self._strings[at])
            at = self._shorter[at]
        return 0

    def tail(self, text: bytes) -> int:
        """Return the length of the longest end of the text that is a beginning, though not all, of a string."""
        window = text[-(self._longest - 1) :] if self._longest > 1 else b""
        start = 0
        while (match := self._heads.search(window, start)) is not None:
            start = int(match.start())
            if self._is_beginning(window[start:]):
                return len(window) - start
            start += 1
        for count in range(min(self._head - 1, len(window)), 0, -1):
            end = window[-count:]
            if end[:_START] in self._starts and self._is_beginning(end):
                return count
        return 0

    def is_quiet(self, text: bytes) -> bool:
        """Tell whether no string is in the text and no end of it begins one. False may also mean «perhaps»."""
        # A beginning that is not shorter than its head has the whole head in it.
        return text[-2:] not in self._ends and text[-1:] not in self._ends and self._heads.search(text) is None

    def _is_beginning(self, text: bytes) -> bool:
        at = bisect_right(self._strings, text)
        return at < len(self._strings) and self._strings[at].startswith(text)

    def __contains__(self, text: bytes) -> bool:
        at = bisect_left(self._strings, text)
        return at < len(self._strings) and self._strings[at] == text


class Search:
    """One text, searched from left to right by several sets as if they were one; each set passes over it once."""

    def __init__(self, sets: Sequence[StringSet], text: bytes) -> None:
        self._sets = sets
        self._text = text
        self._next: list[_Span | None] = [one.find(text) for one in sets]

    def find(self, start: int = 0) -> _Span | None:
        """Return the leftmost, longest span at or after `start`, which must not go back."""
        best: _Span | None = None
        for index, span in enumerate(self._next):
            if span is not None and span[0] < start:
                span = self._next[index] = self._sets[index].find(self._text, start)
            if span is not None and (best is None or (span[0], -span[1]) < (best[0], -best[1])):
                best = span
        return best


class Unbroken:
    """A text without its line breaks, as a decoder of MIME base64 reads it (RFC 2045 section 6.8).

    A carriage return at the very end is half a break: its line feed comes with the next chunk.
    """

    def __init__(self, text: bytes) -> None:
        self._whole = text
        self.text = text.removesuffix(b"\r").replace(b"\r\n", b"").replace(b"\n", b"")
        self._breaks: tuple[list[int], list[int]] | None = None

    @staticmethod
    def differs(text: bytes) -> bool:
        """Tell whether the text has a line break, or ends in what may be half of one."""
        return b"\n" in text or text.endswith(b"\r")

    def span(self, span: _Span) -> _Span:
        """Return where a span of `text` lies in the whole text, the breaks inside it included."""
        return self._place(span[0]), self._place(span[1] - 1) + 1

    def _place(self, at: int) -> int:
        if self._breaks is None:
            found = [(match.start(), len(match[0])) for match in _BREAK.finditer(self._whole)]
            gone = list(accumulate((size for _, size in found), initial=0))
            self._breaks = [start - before for (start, _), before in zip(found, gone, strict=False)], gone
        starts, gone = self._breaks
        return at + gone[bisect_right(starts, at)]


def _beginnings(strings: list[bytes]) -> list[int]:
    """Return for each of the sorted strings the place of the longest other one that it begins with, or -1."""
    found: list[int] = []
    open_ones: list[int] = []
    for at, text in enumerate(strings):
        while open_ones and not text.startswith(strings[open_ones[-1]]):
            open_ones.pop()
        found.append(open_ones[-1] if open_ones else -1)
        open_ones.append(at)
    return found


def _compile(strings: Collection[bytes]) -> "re2._Regexp":
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    # An empty alternation would match everywhere: a class of nothing never does.
    pattern = b"|".join(re2.escape(text) for text in sorted(strings)) or rb"[^\x00-\xff]"
    return re2.compile(pattern, options)
