"""A sandbox's output as a terminal may be shown it: text, and no command to the terminal (S-22)."""

import codecs
from typing import Final

__all__ = ["Plain", "plain"]

_KEPT: Final = frozenset("\n\t")


class Plain:
    """Makes bytes plain as they come: a character may be cut between two calls."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def take(self, data: bytes, *, last: bool = False) -> str:
        """Return what may be shown of `data`: each control character as `\\x1b`, each byte that is no text likewise."""
        return "".join(map(_shown, self._decoder.decode(data, last)))


def plain(data: bytes) -> str:
    """Return all of it plain."""
    return Plain().take(data, last=True)


def _shown(character: str) -> str:
    number = ord(character)
    if character in _KEPT or (number >= 0x20 and not 0x7F <= number < 0xA0 and character.isprintable()):
        return character
    if number in (0x0D,):
        return ""
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
