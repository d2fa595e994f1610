"""Entries as an aligned table for people.

A record file may have been written by a process that was taken over, so nothing of it reaches a
terminal unescaped. An allowed request is one row: its end, or its decision while it runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidegate.audit.query import Entry
from tidegate.audit.redact import showable

__all__ = ["Layout", "Row", "collapse", "row"]

_RESET = "\033[0m"
_COLOURS = {"allow": "\033[32m", "deny": "\033[31m", "error": "\033[33m", "redact": "\033[35m"}
_DIM = "\033[2m"


class _Column(NamedTuple):
    title: str
    width: int
    widest: int
    right: bool = False


_COLUMNS = (
    _Column("TIME", 23, 23),
    _Column("VERDICT", 7, 7),
    _Column("WHAT", 7, 12),
    _Column("HOST", 28, 48),
    _Column("PATH OR DETAIL", 32, 64),
    _Column("STATUS", 6, 6, right=True),
    _Column("UP", 6, 6, right=True),
    _Column("DOWN", 6, 6, right=True),
    _Column("REASON", 20, 32),
    _Column("RULE", 16, 32),
    _Column("CREDENTIAL", 12, 24),
)

type Block = dict[str, str | int | float | bool | list[str] | None]


class Row(NamedTuple):
    """One line of the table, already fit for a terminal."""

    verdict: str
    cells: tuple[str, ...]


def collapse(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Drop each decision whose end is there too; keep the order of the rest."""
    kept = list(entries)
    ended = {_key(entry) for entry in kept if entry.record.phase == "end" and entry.record.flow}
    return (entry for entry in kept if entry.record.phase != "decision" or _key(entry) not in ended)


def row(entry: Entry) -> Row:
    """Return an entry's row."""
    record, block = entry.record, entry.block()
    verdict = record.verdict or ""
    if record.observed:
        verdict += "*"
    reason = record.reason or (_text(block.get("end")) if record.type == "http" else "")
    if entry.unannounced:
        reason = f"UNANNOUNCED {reason}".rstrip()
    if record.count is not None:
        reason += f" ×{record.count}"
    cells = (
        record.ts[:23].replace("T", " "),
        verdict,
        _method(record.type, record.phase, block),
        _host(record.type, block),
        _text(block.get("path")) or _detail(record.type, block),
        _text(block.get("status")) or ("…" if record.phase == "decision" and record.verdict == "allow" else ""),
        _size(block.get("bytes_up")),
        _size(block.get("bytes_down")),
        reason,
        record.rule or "",
        _text(block.get("name") if record.type == "credential" else block.get("credential")),
    )
    return Row(record.verdict or "", tuple(showable(cell) for cell in cells))


class Layout:
    """The widths of the columns: fixed for a stream, or fitted to rows that are all known."""

    def __init__(self, rows: Sequence[Row] | None = None, *, colour: bool) -> None:
        self._colour = colour
        self._widths = [column.width for column in _COLUMNS]
        if rows is not None:
            for at, column in enumerate(_COLUMNS):
                needed = max((len(row.cells[at]) for row in rows), default=0)
                self._widths[at] = min(max(needed, len(column.title)), column.widest)

    def header(self) -> str:
        """Return the line of titles."""
        line = "  ".join(self._fit(tuple(column.title for column in _COLUMNS))).rstrip()
        return f"{_DIM}{line}{_RESET}" if self._colour else line

    def line(self, one: Row) -> str:
        """Return a row as a line; colour marks the verdict."""
        cells = self._fit(one.cells)
        code = _COLOURS.get(one.verdict)
        if self._colour and code is not None:
            cells[1] = f"{code}{cells[1]}{_RESET}"
        return "  ".join(cells).rstrip()

    def _fit(self, cells: tuple[str, ...]) -> list[str]:
        parts = []
        for cell, column, width in zip(cells, _COLUMNS, self._widths, strict=True):
            short = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(short.rjust(width) if column.right else short.ljust(width))
        return parts


def _key(entry: Entry) -> tuple[str, str, str | None]:
    return entry.record.chain, entry.record.type, entry.record.flow


def _method(kind: str, phase: str, block: Block) -> str:
    if kind == "http":
        return _text(block.get("method"))
    if kind == "dns":
        return _text(block.get("rrtype"))
    if kind == "conn":
        return _text(block.get("transport"))
    return kind if phase == "event" else f"{kind} {phase}"


def _host(kind: str, block: Block) -> str:
    host = _text(block.get("host") if "host" in block else block.get("name") if kind in ("conn", "dns") else None)
    port = block.get("port")
    return f"{host}:{port}" if host and isinstance(port, int) and port not in (80, 443) else host


def _detail(kind: str, block: Block) -> str:
    if kind == "conn":
        return _text(block.get("end"))
    if kind == "checkpoint":
        return f"up to {_text(block.get('covers'))}"
    if kind in ("http", "dns"):
        return ""
    shown = (
        block.get("act"),
        block.get("id") or block.get("chain"),
        None if kind == "credential" else block.get("name"),
    )
    words = [*map(_text, shown), _text(block.get("place") or block.get("detail"))]
    return " ".join(word for word in words if word)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _size(value: object) -> str:
    """Bytes in at most six characters: 812, 9.8k, 20.0M."""
    if not isinstance(value, int):
        return ""
    size = float(value)
    for unit in ("", "k", "M", "G", "T"):
        if size < 1000 or unit == "T":
            return f"{size:.0f}" if not unit else f"{size:.1f}{unit}"
        size /= 1000
    return ""
