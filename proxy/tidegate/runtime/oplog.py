"""The operational log: one line an event on stderr, plain or JSON, never more than a few a second of a kind.

It is for the operator who keeps the gate running; evidence belongs to the audit log.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Final, Literal, TextIO

__all__ = ["FORMAT_VARIABLE", "Format", "RateFilter", "inherited_format", "set_up"]

type Format = Literal["plain", "json"]

FORMAT_VARIABLE: Final = "TIDEGATE_LOG_FORMAT"
"""How `up` tells its children the format that was asked for."""

_PER_SECOND: Final = 10
_KINDS: Final = 1024


class RateFilter(logging.Filter):
    """Let a few records of one kind through each second and count the rest on the next that passes.

    A kind is the logger, the level and the message before its arguments are filled in: what a client can vary
    does not make a new kind.
    """

    def __init__(self, *, per_second: int = _PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._per_second = per_second
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        second = int(self._clock())
        kind = (record.name, record.levelno, str(record.msg))
        then, count, dropped = self._seen.get(kind, (second, 0, 0))
        if then != second:
            count = 0
        if count >= self._per_second:
            self._seen[kind] = (second, count, dropped + 1)
            return False
        if len(self._seen) >= _KINDS:
            self._seen.clear()
        self._seen[kind] = (second, count + 1, 0)
        if dropped:
            record.suppressed = dropped
        return True


def _text(record: logging.LogRecord) -> str:
    # One line, whatever is in it: a line break in a message must not look like a second record.
    text = "".join(repr(letter)[1:-1] if _odd(letter) else letter for letter in record.getMessage())
    dropped = getattr(record, "suppressed", 0)
    return f"{text} ({dropped} more like this were not written)" if dropped else text


def _odd(letter: str) -> bool:
    return ord(letter) < 32 or 127 <= ord(letter) < 160 or letter in "\u2028\u2029"


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        mark = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        line = f"tidegate: {mark}{_text(record)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": _text(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def inherited_format() -> Format:
    """Return the format that the process's parent was asked for."""
    return "json" if os.environ.get(FORMAT_VARIABLE) == "json" else "plain"


def set_up(*, style: Format = "plain", verbose: bool = False, stream: TextIO | None = None) -> None:
    """Send every logger to stderr in this form. Called once by each process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Plain())
    handler.addFilter(RateFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("aiohttp.access", "asyncio", "mitmproxy"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
