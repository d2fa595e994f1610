"""What a runtime says of itself in its own log, `--log-format=json`: a file that no guest can write."""

from pathlib import Path
from typing import Final

import msgspec

__all__ = ["LOG_BYTES", "lines_of", "logged_fault"]

LOG_BYTES: Final = 65536
"""How much of a log is read."""
_TEXT: Final = 1000


class _Line(msgspec.Struct):
    msg: str = ""
    level: str = ""


def logged_fault(log: Path) -> str:
    """Return the first error, or nothing."""
    for line in lines_of(log):
        try:
            told = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError:
            continue
        if told.level == "error":
            return told.msg[:_TEXT]
    return ""


def lines_of(file: Path) -> list[bytes]:
    """Return the first lines of a file; none where there is no such file."""
    try:
        with file.open("rb") as opened:
            return opened.read(LOG_BYTES).splitlines()
    except OSError:
        return []
