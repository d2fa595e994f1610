"""The forms in which a service may send a secret back, each with the same form of the placeholder.

| form | what replaces it |
|---|---|
| raw, lower, upper, reversed | the placeholder, reversed where the secret was |
| percent: as needed, as encodeURIComponent does, all; both cases; `+` for a blank | the placeholder; every byte |
| hex, both cases | hex of the placeholder |
| JSON: as needed, with `\\/`, with `<>&`, every byte; both cases | the placeholder; every byte escaped |
| HTML: named, decimal, hex; as needed, every byte | the placeholder; every byte escaped |
| base64 and base64url, three alignments | the same of the placeholder if what follows stays aligned, else `*` |

Only whole secrets are needles, never a part of one (C-37). A base64 needle leaves out the two characters
that the bytes before and after the secret have a share in; `Edge` says which of their bits are the
placeholder's, so that what decodes is the placeholder, whole.
"""

import base64
import html
import json
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

__all__ = ["Edge", "Form", "variants"]

_SHORTEST = 6
_COMPONENT_SAFE = "!'()*"
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = _STANDARD[:-2] + b"-_"

type _Encode = Callable[[bytes], bytes]


class Edge(NamedTuple):
    """The bits of one base64 character that belong to the placeholder: those of `mask`, with the value `bits`."""

    mask: int
    bits: int
    alphabet: bytes

    def mend(self, char: int) -> int:
        """Return the base64 character with the placeholder's bits; any other byte comes back as it is."""
        index = self.alphabet.find(char)
        return char if index < 0 else self.alphabet[index & ~self.mask | self.bits]


class Form(NamedTuple):
    """What takes the needle's place, whose placeholder it is, and how the characters beside it are mended."""

    text: bytes
    placeholder: bytes
    before: Edge | None = None
    after: Edge | None = None


def variants(secret: bytes, placeholder: bytes) -> dict[bytes, Form]:
    """Return needle → what replaces it for one secret; the raw form wins where forms coincide."""
    found = {secret: Form(placeholder, placeholder)}
    for needle, form in _all_forms(secret, placeholder):
        if len(needle) >= min(_SHORTEST, len(secret)):
            found.setdefault(needle, form)
    return found


def _all_forms(secret: bytes, placeholder: bytes) -> Iterator[tuple[bytes, Form]]:
    plain = Form(placeholder, placeholder)  # a placeholder has nothing to escape, whatever the escaping
    yield secret.lower(), plain
    yield secret.upper(), plain
    yield secret[::-1], Form(placeholder[::-1], placeholder)
    for encode in _EVERY_BYTE:
        yield encode(secret), Form(encode(placeholder), placeholder)
    for encode in _MINIMAL:
        yield encode(secret), plain
    for alphabet in (_STANDARD, _URL_SAFE):
        for offset in range(3):
            yield _base64(secret, placeholder, offset, alphabet)


def _each(pattern: str) -> _Encode:
    table = [pattern.format(byte).encode() for byte in range(256)]
    return lambda text: b"".join([table[byte] for byte in text])


_EVERY_BYTE: tuple[_Encode, ...] = (
    _each("{:02x}"),
    _each("{:02X}"),
    _each("%{:02x}"),
    _each("%{:02X}"),
    _each("\\x{:02x}"),
    _each("\\u{:04x}"),
    _each("\\u{:04X}"),
    _each("&#{};"),
    _each("&#x{:x};"),
    _each("&#x{:X};"),
)


def _lower_percent(text: str) -> str:
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


def _escaped(pattern: str, only: str | None) -> Callable[[str], str]:
    """Escape by `pattern` the characters of `only`, or all but letters and digits."""

    def form(text: str) -> str:
        return "".join(
            pattern.format(ord(char)) if (char in only if only is not None else not char.isalnum()) else char
            for char in text
        )

    return form


_TEXT_FORMS: tuple[Callable[[str], str], ...] = (
    lambda text: quote(text, safe=""),
    lambda text: _lower_percent(quote(text, safe="")),
    lambda text: quote(text, safe="/"),
    lambda text: _lower_percent(quote(text, safe="/")),
    lambda text: quote(text, safe=_COMPONENT_SAFE),
    quote_plus,
    lambda text: _lower_percent(quote_plus(text)),
    _json,
    lambda text: _json(text).replace("/", "\\/"),
    _json_ascii,
    lambda text: _json_ascii(text).replace("/", "\\/"),
    lambda text: _escaped("\\u{:04x}", "<>&")(_json(text)),
    _escaped("\\u{:04x}", None),
    _escaped("\\u{:04X}", None),
    lambda text: html.escape(text, quote=False),
    lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    html.escape,
    _escaped("&#{};", None),
    _escaped("&#x{:x};", None),
    _escaped("&#x{:X};", None),
)


def _of_text(form: Callable[[str], str]) -> _Encode:
    def apply(value: bytes) -> bytes:
        try:
            return form(value.decode()).encode()
        except UnicodeDecodeError:
            return value  # no text: the raw and every-byte forms are all there is

    return apply


_MINIMAL = tuple(_of_text(form) for form in _TEXT_FORMS)


def _base64(secret: bytes, placeholder: bytes, offset: int, alphabet: bytes) -> tuple[bytes, Form]:
    """Return needle and form of base64(…secret…), the secret beginning `offset` bytes into a group of three."""
    needle = _stable(secret, offset, alphabet)
    if (len(secret) - len(placeholder)) % 3:
        # What follows would lose its alignment: only blanks of the same length fit.
        return needle, Form(b"*" * len(needle), placeholder)
    whole = _encoded(placeholder, offset, alphabet)
    first, last = offset * 8 // 6, (offset + len(placeholder)) * 8 // 6
    before = after = None
    if shared := offset * 8 % 6:
        mask = 0x3F >> shared
        before = Edge(mask, alphabet.index(whole[first]) & mask, alphabet)
    if shared := (offset + len(placeholder)) * 8 % 6:
        mask = 0x3F & ~(0x3F >> shared)
        after = Edge(mask, alphabet.index(whole[last]) & mask, alphabet)
    return needle, Form(_stable(placeholder, offset, alphabet), placeholder, before, after)


def _encoded(value: bytes, offset: int, alphabet: bytes) -> bytes:
    return base64.b64encode(bytes(offset) + value, altchars=alphabet[-2:])


def _stable(value: bytes, offset: int, alphabet: bytes) -> bytes:
    """Return the characters all of whose six bits are the value's."""
    first, last = -(-offset * 8 // 6), (offset + len(value)) * 8 // 6
    return _encoded(value, offset, alphabet)[first:last]
