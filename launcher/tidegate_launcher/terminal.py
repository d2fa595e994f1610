"""A sandbox's output as a terminal may be shown it: text, and no command to the terminal (S-22)."""

import codecs
import unicodedata
from typing import Final

__all__ = ["Plain", "plain"]

_KEPT: Final = frozenset("\n\t")


class Plain:
    """Makes bytes plain as they come: a character may be cut between two calls."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def take(self, data: bytes, *, last: bool = False) -> str:
        """Return what may be shown of `data`: each control character as `\\x1b`, each byte that is no text likewise.

        A carriage return is left out: it would put what follows in the place of what was said.
        """
        return "".join(map(_shown, self._decoder.decode(data, last)))


def plain(data: bytes | str) -> str:
    """Return all of it plain."""
    return Plain().take(data.encode(errors="backslashreplace") if isinstance(data, str) else data, last=True)


def _shown(character: str) -> str:
    if character in _KEPT or character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    if character == "\r":
        return ""
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
