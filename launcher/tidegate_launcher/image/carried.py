"""Finding credentials in an unpacked image: what lies where credentials lie, and what looks like one.

A credential in an image is readable by every sandbox on it, and goes round the gate's keeper altogether. A file is
searched up to its first 4 MiB.
"""

import json
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Final, Protocol

import re2

from tidegate_launcher.image.report import Noted
from tidegate_launcher.image.shapes import ENVIRONMENT, FORMS, KEYS, PLACES, Place

__all__ = ["search", "search_config"]

_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_FOUND: Final = 200
_PROGRAM: Final = b"\x7fELF"
_SHORTEST_VALUE: Final = 8
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Pattern(Protocol):
    def search(self, text: bytes) -> object | None: ...


def search(root: int) -> Iterator[Noted]:
    """Yield what looks like a credential below a folder's descriptor, at most the first 200 of it."""
    for count, found in enumerate(_below(root, ""), 1):
        yield found
        if count >= _MOST_FOUND:
            return


def search_config(text: str | None) -> Iterator[Noted]:
    """Yield what looks like a credential in an image's configuration: a variable by its name, any text by its form."""
    if text is None:
        return
    for kind in _kinds(text.encode()):
        yield Noted("config", kind)
    name_of_secret = re2.compile(ENVIRONMENT)
    for line in _environment(text):
        name, _, value = line.partition("=")
        if len(value) >= _SHORTEST_VALUE and name_of_secret.search(name):
            yield Noted(f"config: {name}", "credential in the environment")


def _environment(text: str) -> list[str]:
    try:
        lines = json.loads(text)["config"]["Env"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []


def _below(folder: int, path: str) -> Iterator[Noted]:
    for name in sorted(os.listdir(folder)):
        here = f"{path}/{name}"
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISDIR(mode):
            inner = os.open(name, _OPEN_FOLDER, dir_fd=folder)
            try:
                yield from _below(inner, here)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            file = os.open(name, _OPEN_FILE, dir_fd=folder)
            try:
                yield from _in_file(here, _head(file))
            finally:
                os.close(file)


def _head(file: int) -> bytes:
    parts: list[bytes] = []
    left = _MOST_BYTES
    while left and (data := os.read(file, left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def _in_file(path: str, data: bytes) -> Iterator[Noted]:
    kinds = [place.kind for place in PLACES if _lies_at(path, place) and _holds(place.holds, data)]
    for kind in dict.fromkeys(kinds or _kinds(data)):
        yield Noted(path, kind)


def _lies_at(path: str, place: Place) -> bool:
    if "*" in place.path:
        return fnmatchcase(path, f"*/{place.path}")
    return path.endswith(f"/{place.path}")


@cache
def _pattern(text: str) -> _Pattern:
    # Latin-1: the text searched is bytes of any kind.
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(text.encode("ascii"), options)  # type: ignore[no-any-return]


def _holds(text: str, data: bytes) -> bool:
    return bool(data) and (not text or _pattern(text).search(data) is not None)


@cache
def _any() -> _Pattern:
    return _pattern("|".join(f"(?:{form.pattern})" for form in FORMS))


def _kinds(data: bytes) -> list[str]:
    """Return the kinds of what looks like a secret in a text: one search for all of them says «none» of most files."""
    if _any().search(data) is None:
        return []
    found = [form.kind for form in FORMS if _pattern(form.pattern).search(data) is not None]
    # Libraries of cryptography hold the keys of their self-tests.
    return [kind for kind in found if kind not in KEYS] if data.startswith(_PROGRAM) else found
