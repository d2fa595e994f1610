"""What is known by its form alone, wherever it stands: a placeholder by its marker, a web token by its first letters.

Both are found in time that grows with the text and no faster: what is searched may be a stranger's, and megabytes.
"""

import re
from typing import Final

__all__ = ["CORE_PATTERN", "MARKER", "cut_placeholders", "cut_tokens"]

MARKER: Final = "71de9a7e"
"""Stands in every placeholder; hexadecimal, so that it fits every alphabet."""
CORE_PATTERN: Final = MARKER + "[0-9a-z]{22,}"
"""What follows the marker, marker included, in any letter case."""

_CORE: Final = re.compile(CORE_PATTERN, re.IGNORECASE | re.ASCII)
_WORD: Final = re.compile(r"[\w.-]+", re.ASCII)
_WORD_END: Final = re.compile(r"[\w.-]{0,160}\Z", re.ASCII)
_WORD_START: Final = re.compile(r"[\w-]*", re.ASCII)
_BEFORE: Final = 160
"""The most that stands before a marker: of a JSON web token its first two parts."""
_TOKEN_START: Final = "eyJ"
_FIRST_PART: Final = 11


def cut_tokens(text: str, mark: str) -> str:
    """Return the text with `mark` for each JSON web token (RFC 7519), to the end of the word that it stands in."""
    if _TOKEN_START not in text:
        return text
    return _WORD.sub(lambda found: _cut_token(found[0], mark), text)


def _cut_token(word: str, mark: str) -> str:
    parts = word.split(".")
    at = 0
    for part, second, third in zip(parts, parts[1:], parts[2:], strict=False):
        begins = part.find(_TOKEN_START)
        if begins >= 0 and len(part) - begins >= _FIRST_PART and second and third:
            return word[: at + begins] + mark + "." * (len(word) - len(word.rstrip(".")))
        at += len(part) + 1
    return word


def cut_placeholders(text: str, mark: str) -> str:
    """Return the text with `mark` for each placeholder, whosever it is, with its prefix and what follows it."""
    pieces: list[str] = []
    at = 0
    for found in _CORE.finditer(text):
        if found.start() < at:
            continue  # in the word that was cut already
        before = _WORD_END.search(text, max(at, found.start() - _BEFORE), found.start())
        after = _WORD_START.match(text, found.end())
        pieces += [text[at : before.start() if before else found.start()], mark]
        at = after.end() if after else found.end()
    return "".join([*pieces, text[at:]])
