"""What may stand in a record: text from outside becomes `Loggable` here and nowhere else.

A `Loggable` is capped, on one line, free of control, format and unassigned characters (so
neither a terminal nor a log reader can be steered by it, V-11), and made without any query
value or body field in clear: those become short keyed hashes. A `Secret` is no text, so it
cannot become one by accident (invariant 5).
"""

import hashlib
import re
from typing import NewType

from tidegate.traces import cut_tokens

__all__ = ["PATH_CAP", "TEXT_CAP", "Loggable", "Redactor", "loggable", "showable"]

Loggable = NewType("Loggable", str)
"""Text that may be written to a record and shown on a terminal."""

TEXT_CAP = 256
PATH_CAP = 1024
_QUERY_PARTS = 24
_NAME_CAP = 40
_MARK = "…+{}"
_BEFORE_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[/\\]+|[/\\]{2,}")
_AFTER_AUTHORITY = re.compile(r"[/\\]")
_AT = re.compile(r"@|%40")


def loggable(text: str | bytes, cap: int = TEXT_CAP) -> Loggable:
    """Return `text` on one line, at most `cap` characters of it, everything unprintable escaped.

    Escapes are `\\xNN`, `\\uNNNN` or `\\UNNNNNNNN`; a backslash is doubled so that they cannot be
    forged. What is cut off is counted: `…+12`. Bytes are read as UTF-8, else byte by byte.
    """
    if not isinstance(text, str | bytes):
        raise TypeError("only text can be logged")
    if isinstance(text, bytes):
        cut = text[: cap * 4]
        rest = len(text) - len(cut)
        text = cut.decode("utf-8", "surrogateescape")
    else:
        rest = 0
    if not rest and len(text) <= cap and "\\" not in text and text.isprintable():
        return Loggable(text)
    return _escaped(text, cap, rest)


def showable(text: str) -> str:
    """Return text from a record fit for a terminal: escapes that stand there already are left alone."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escaped(text: str, cap: int, rest: int) -> Loggable:
    parts: list[str] = []
    size = 0
    taken = 0
    for taken, char in enumerate(text):  # noqa: B007 - the index tells how much was cut
        piece = char if char != "\\" and char.isprintable() else _escape(char)
        if size + len(piece) > cap:
            break
        parts.append(piece)
        size += len(piece)
    else:
        taken = len(text)
    rest += len(text) - taken
    if rest:
        parts.append(_MARK.format(rest))
    return Loggable("".join(parts))


def _escape(char: str) -> str:
    code = ord(char)
    if char == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class Redactor:
    """Makes loggable forms of URLs and queries; the key, which is the caller's, hides values."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]

    def value(self, value: str | bytes) -> Loggable:
        """Return the keyed hash of a value: `h:` and 16 hex digits (BLAKE2b, RFC 7693)."""
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return Loggable("h:" + hashlib.blake2b(raw, digest_size=8, key=self._key).hexdigest())

    def query(self, query: str) -> Loggable:
        """Return a query string: names in clear where they look like names, values as keyed hashes."""
        parts = query.split("&", _QUERY_PARTS)
        shown = [self._pair(part) for part in parts[:_QUERY_PARTS]]
        if len(parts) > _QUERY_PARTS:
            shown.append(self.value(parts[_QUERY_PARTS]))
        return Loggable("&".join(shown))

    def url(self, url: str | bytes) -> Loggable:
        """Return a target that was not read, or a redirect's: no userinfo, query values and fragment hashed."""
        text = url.decode("utf-8", "surrogateescape") if isinstance(url, bytes) else url
        text, hash_mark, fragment = text.partition("#")
        text, question, query = text.partition("?")
        shown = loggable(_without_userinfo(text), PATH_CAP)
        if question:
            shown = Loggable(f"{shown}?{self.query(query)}")
        return Loggable(f"{shown}#{self.value(fragment)}") if hash_mark else shown

    def _pair(self, part: str) -> str:
        name, equals, value = part.partition("=")
        # A bare word may itself be the value (`?sk-…`), and so may a long or odd name.
        if not equals or len(name) > _NAME_CAP or not name.isascii() or not name.isprintable() or "\\" in name:
            return self.value(part)
        return f"{name}={self.value(value)}"


def _without_userinfo(text: str) -> str:
    """Cut what may be a user's name and word, whatever the form: `//u:p@h`, `u:p@h:443`, one slash, `u:p`.

    What stands behind the host's colon and is no port is cut too, and up to the last `@` of all: it is the word, when
    the host is the name of a user and the word has a slash in it.
    """
    start = _BEFORE_AUTHORITY.match(text)
    before = start[0] if start is not None else ""
    if not before and text.startswith(("/", "\\")):
        return text
    end = _AFTER_AUTHORITY.search(text, len(before))
    at = len(text) if end is None else end.start()
    *user, place = _AT.split(text[len(before) : at])
    rest = text[at:]
    host, colon, port = place.rpartition(":")
    if colon and port and not (port.isdecimal() and port.isascii()) and not place.endswith("]"):
        place, rest = f"{host}:…", _AT.split(rest)[-1]
    return cut_tokens(f"{before}{'…@' if user else ''}{place}{rest}", "…")
