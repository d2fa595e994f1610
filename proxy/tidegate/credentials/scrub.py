"""Responses: every live secret of the session, raw or encoded, becomes its placeholder again.

A body is decoded (`decode`), searched in one pass a chunk (`search`) for every form of every secret
(`variants`), and goes on as identity. Between chunks only an end that really is the beginning of a form is
held back, so an event that ends in a blank line leaves at once. What cannot be read raises Unscannable.

Literal matching cannot defeat an upstream that transforms at will (C-24); it keeps honest services from
sending a secret where the sandbox can read it.
"""

from collections import Counter
from collections.abc import Sequence

from tidegate.credentials.decode import Decoder, Unscannable
from tidegate.credentials.request import Fields
from tidegate.credentials.search import StringSet
from tidegate.credentials.variants import Form, variants
from tidegate.secret import Secret

__all__ = ["Needles", "Scrubber", "Unscannable"]


class Needles:
    """The secrets of a session, compiled. Immutable: make a new one on a lease change."""

    def __init__(self, forms: dict[bytes, Form]) -> None:
        self._forms = forms
        self._strings = StringSet(forms)

    @classmethod
    def compile(cls, pairs: Sequence[tuple[Secret, bytes]]) -> "Needles":
        """Compile (secret, placeholder) pairs; takes about a millisecond a pair."""
        forms: dict[bytes, Form] = {}
        for secret, placeholder in pairs:
            if len(secret):
                # The raw form of one secret may be a transformed form of another: the raw one wins.
                forms = variants(secret.reveal(), placeholder) | forms
        forms |= {secret.reveal(): Form(text, text) for secret, text in pairs if len(secret)}
        return cls(forms)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __repr__(self) -> str:
        return f"<Needles of {len(self._forms)} forms>"

    def scrub(self, text: bytes, *, found: Counter[bytes] | None = None) -> tuple[bytes, int]:
        """Clean a whole text (a reason phrase, a WebSocket message); return it with the number of hits.

        `found` counts the placeholders whose secrets were hit.
        """
        if self._strings.find(text) is None:
            return text, 0
        cleaned, _, hits = self._replace(text, Counter() if found is None else found, final=True)
        return cleaned, hits

    def scrub_headers(self, headers: Fields, *, found: Counter[bytes] | None = None) -> tuple[Fields, int]:
        """Clean names and values of header or trailer fields; return them with the number of hits."""
        if self._strings.find(b"\n".join([part for field in headers for part in field])) is None:
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

    def _stream(self, text: bytes, found: Counter[bytes]) -> tuple[bytes, bytes, int]:
        """Return what may go on, what must wait for more, and the number of hits."""
        if self._strings.find(text) is None:
            held = self._strings.tail(text)
            return (text, b"", 0) if not held else (text[:-held], text[-held:], 0)
        return self._replace(text, found, final=False)

    def _replace(self, text: bytes, found: Counter[bytes], *, final: bool) -> tuple[bytes, bytes, int]:
        out = bytearray()
        hits = place = 0
        limit = len(text) if final else len(text) - self._strings.tail(text)
        while (span := self._strings.find(text, place)) is not None:
            start, end = span
            if start >= limit:
                break  # a longer form that begins here or before may still come whole
            form = self._forms[text[start:end]]
            hits += 1
            found[form.placeholder] += 1
            out += text[place:start]
            if form.before is not None and start > place:
                out[-1] = form.before.mend(out[-1])
            out += form.text
            place = end
            if form.after is not None and end < len(text):
                out.append(form.after.mend(text[end]))
                place += 1
            if not final and place > limit:
                limit = len(text) - self._strings.tail(text[place:])
        out += text[place:limit]
        return bytes(out), text[max(place, limit) :], hits


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
        self._held = b""
        # Without a secret there is nothing to look for, and a body in any coding passes as it is.
        self._decoder = Decoder(content_encoding, cap=decoded_cap) if needles else None
        self._opaque = not needles and content_encoding.strip().lower() not in (b"", b"identity")
        self.identity = bool(self._decoder)
        self.length_may_change = bool(needles)
        self.hits = 0
        self.found: Counter[bytes] = Counter()

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
        ready, self._held, hits = self._needles._stream(self._held + text, self.found)
        self.hits += hits
        return ready
