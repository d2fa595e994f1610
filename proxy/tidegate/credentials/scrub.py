"""Responses: every live secret of the session, raw or encoded, becomes its placeholder again.

A body is decoded (`decode`), searched for every form of every secret (`variants`), and goes on as identity: one
pass a chunk (`search`), and one more over a chunk with line breaks, without them (base64 in lines, as in MIME).
Between chunks only an end that really is the beginning of a form is held back, so an event that ends in a blank
line leaves at once. What cannot be read raises Unscannable.

Literal matching cannot defeat an upstream that transforms at will (C-24); it keeps honest services from
sending a secret where the sandbox can read it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.credentials.decode import Decoder, Unscannable
from tidegate.credentials.request import Fields
from tidegate.credentials.search import Search, StringSet, Unbroken
from tidegate.credentials.variants import Form, variants
from tidegate.secret import Secret

__all__ = ["Needles", "Scrubber", "Unscannable"]

_MOST_PARTS = 6
_LEAST_BROKEN = 4
"""So many characters of a needle make a line wait that ends there; fewer only after a full line of base64."""
_LINE = 80
_FULL_LINE = re.compile(rb"[A-Za-z0-9+/]{60}(?:\r?\n[A-Za-z0-9+/]{0,2}|\r)\Z")


class _Part(NamedTuple):
    strings: StringSet
    forms: dict[bytes, Form]


class Needles:
    """The secrets of a session, compiled. Immutable: `plus` makes another one when a secret comes.

    A new secret becomes a part of its own, at the price of that one secret; when there are many parts (`scattered`),
    it is time to compile them all anew, which is for another thread.
    """

    def __init__(self, parts: tuple[_Part, ...], raw: dict[bytes, Form]) -> None:
        self._parts = parts
        self._sets = tuple(part.strings for part in parts)
        self._raw = raw

    @classmethod
    def compile(cls, pairs: Sequence[tuple[Secret, bytes]]) -> "Needles":
        """Compile (secret, placeholder) pairs; takes half a millisecond a pair, for a secret of 4 KB some five."""
        return cls((), {}).plus(pairs)

    def plus(self, pairs: Sequence[tuple[Secret, bytes]]) -> "Needles":
        """Return these needles and those of more pairs."""
        forms: dict[bytes, Form] = {}
        raw: dict[bytes, Form] = {}
        for secret, placeholder in pairs:
            if len(secret) and secret.reveal() not in self._raw:
                for needle, form in variants(secret.reveal(), placeholder).items():
                    forms.setdefault(needle, form)
                # The raw form of one secret may be a transformed form of another: the raw one wins.
                raw[secret.reveal()] = Form(placeholder, placeholder)
        parts = (*self._parts, _Part(StringSet(forms), forms)) if forms else self._parts
        return Needles(parts, self._raw | raw)

    @property
    def scattered(self) -> bool:
        """Whether the search would be faster by much if all were compiled anew."""
        return len(self._parts) > _MOST_PARTS

    def since(self, older: "Needles") -> "Needles":
        """Return what `plus` has added to an older state of these needles."""
        raw = {secret: form for secret, form in self._raw.items() if secret not in older._raw}
        return Needles(self._parts[len(older._parts) :], raw)

    def __add__(self, other: "Needles") -> "Needles":
        """Return these needles and those."""
        return Needles((*self._parts, *other._parts), self._raw | other._raw)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __repr__(self) -> str:
        return f"<Needles of {sum(len(part.forms) for part in self._parts)} forms>"

    def scrub(self, text: bytes, *, found: Counter[bytes] | None = None) -> tuple[bytes, int]:
        """Clean a whole text (a reason phrase, a WebSocket message); return it with the number of hits.

        `found` counts the placeholders whose secrets were hit.
        """
        if not self._has(text):
            return text, 0
        cleaned, _, hits = self._replace(text, Counter() if found is None else found, final=True)
        return cleaned, hits

    def scrub_headers(self, headers: Fields, *, found: Counter[bytes] | None = None) -> tuple[Fields, int]:
        """Clean names and values of header or trailer fields; return them with the number of hits."""
        if not self._has(b"\0".join([part for field in headers for part in field])):
            return headers, 0
        cleaned: Fields = []
        total = 0
        for name, value in headers:
            new_name, in_name = self.scrub(name, found=found)
            new_value, in_value = self.scrub(value, found=found)
            # HTTP/2 allows no upper case in a name (RFC 9113 section 8.2.1).
            cleaned.append((new_name.lower() if in_name else name, new_value))
            total += in_name + in_value
        return cleaned, total

    def _stream(self, text: bytes, found: Counter[bytes], *, before: bytes = b"") -> tuple[bytes, bytes, int]:
        """Return what may go on, what must wait for more, and the number of hits; `before` has gone on already."""
        if self._is_quiet(text):
            return text, b"", 0
        if not self._has(text):
            held = self._tail(text, before)
            return (text, b"", 0) if not held else (text[:-held], text[-held:], 0)
        return self._replace(text, found, final=False, before=before)

    def _is_quiet(self, text: bytes) -> bool:
        if not all(one.is_quiet(text) for one in self._sets):
            return False
        if not Unbroken.differs(text):
            return True
        unbroken = Unbroken(text).text
        return all(one.is_quiet(unbroken) for one in self._sets)

    def _has(self, text: bytes) -> bool:
        if any(one.find(text) is not None for one in self._sets):
            return True
        if not Unbroken.differs(text):
            return False
        unbroken = Unbroken(text).text
        return any(one.find(unbroken) is not None for one in self._sets)

    def _tail(self, text: bytes, before: bytes) -> int:
        """Return how much of the end may be the beginning of a needle, also of one in lines."""
        held = max([one.tail(text) for one in self._sets], default=0)
        # An empty line ends an event, and no base64: what stands before it must not wait (B).
        if not Unbroken.differs(text) or text.endswith((b"\n\n", b"\n\r\n")):
            return held
        unbroken = Unbroken(text)
        broken = max([one.tail(unbroken.text) for one in self._sets], default=0)
        if broken < _LEAST_BROKEN and _FULL_LINE.search((before + text)[-_LINE:]) is None:
            return held
        return max(held, len(text) - unbroken.span((len(unbroken.text) - broken, len(unbroken.text)))[0])

    def _form(self, needle: bytes) -> Form:
        form = self._raw.get(needle)
        return form if form is not None else next(part.forms[needle] for part in self._parts if needle in part.forms)

    def _replace(
        self, text: bytes, found: Counter[bytes], *, final: bool, before: bytes = b""
    ) -> tuple[bytes, bytes, int]:
        out = bytearray()
        hits = place = 0
        limit = len(text) if final else len(text) - self._tail(text, before)
        finder = _Finder(self._sets, text)
        while (hit := finder.find(place)) is not None:
            start, end, needle = hit
            if start >= limit:
                break  # a longer form that begins here or before may still come whole
            form = self._form(needle)
            hits += 1
            found[form.placeholder] += 1
            out += text[place:start]
            if form.before is not None and start > place:
                out[-1] = form.before.mend(out[-1])
            out += form.text
            place = end
            if form.after is not None and end < limit and _begins_nothing(finder, end):
                out.append(form.after.mend(text[end]))
                place += 1
            if not final and place > limit:
                limit = len(text) - self._tail(text[place:], before + text[:place])
        out += text[place:limit]
        return bytes(out), text[max(place, limit) :], hits


def _begins_nothing(finder: "_Finder", at: int) -> bool:
    """Tell whether no needle begins at `at`: one that is mended at its first byte would pass."""
    following = finder.find(at)
    return following is None or following[0] != at


class _Finder:
    """Finds needles in a text as it stands and without its line breaks, the leftmost and longest first."""

    def __init__(self, sets: Sequence[StringSet], text: bytes) -> None:
        self._text = text
        self._plain = Search(sets, text)
        self._unbroken = Unbroken(text) if Unbroken.differs(text) else None
        self._broken = None if self._unbroken is None else Search(sets, self._unbroken.text)
        self._at = 0

    def find(self, place: int) -> tuple[int, int, bytes] | None:
        """Return start, end and needle of the next find at or after `place`."""
        span = self._plain.find(place)
        best = None if span is None else (*span, self._text[slice(*span)])
        if self._unbroken is None or self._broken is None:
            return best
        while (inner := self._broken.find(self._at)) is not None:
            start, end = self._unbroken.span(inner)
            if start >= place:
                if best is None or (start, -end) < (best[0], -best[1]):
                    best = start, end, self._unbroken.text[slice(*inner)]
                break
            self._at = inner[0] + 1
        return best


class Scrubber:
    """Cleans one response body as it streams.

    `identity`: Content-Encoding must be removed from the headers, since the body goes on decoded.
    `length_may_change`: Content-Length must be removed, and Content-MD5, Digest and the like are no longer true.
    `hits` counts, `found` by the placeholders whose secrets were hit.
    Raises Unscannable: from the constructor for an unknown coding, from feed and finish for a lying one. Then
    nothing more of the body may go on.
    """

    def __init__(self, needles: Needles, content_encoding: bytes = b"", *, decoded_cap: int = 1 << 30) -> None:
        self._needles = needles
        self._held = self._gone = b""
        # Without a secret there is nothing to look for, and a body in any coding passes as it is.
        self._decoder = Decoder(content_encoding, cap=decoded_cap) if needles else None
        self._opaque = not needles and content_encoding.strip().lower() not in (b"", b"identity")
        self.identity = bool(self._decoder)
        self.length_may_change = bool(needles)
        self.hits = 0
        self.found: Counter[bytes] = Counter()

    @property
    def held(self) -> int:
        """How many bytes wait for what comes next."""
        return len(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk of the body as received and return what may go on; may be empty."""
        if not self.identity or self._decoder is None:
            return self._clean(chunk) if self._needles or self._held else chunk
        return b"".join([self._clean(piece) for piece in self._decoder.pieces(chunk)])

    def finish(self) -> bytes:
        """Return the rest at the end of the body."""
        if self._decoder is not None:
            self._decoder.finish()
        rest, hits = self._needles.scrub(self._held, found=self.found)
        self._held = b""
        self.hits += hits
        return rest

    def renew(self, needles: Needles) -> None:
        """Use other needles from here on: a lease was added or ended."""
        if needles and self._opaque:
            raise Unscannable("a secret came into a body that was not being decoded")
        self._needles = needles

    def _clean(self, text: bytes) -> bytes:
        text = self._held + text
        ready, self._held, hits = self._needles._stream(text, self.found, before=self._gone)
        # As it came, not as it went on: what is asked of it is whether a line of the wire was full.
        self._gone = (self._gone + text[: len(text) - len(self._held)])[-_LINE:]
        self.hits += hits
        return ready
