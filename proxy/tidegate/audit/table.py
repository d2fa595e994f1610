"""Entries as an aligned table for people.

A record file may have been written by a process that was taken over, so nothing of it reaches a
terminal unescaped. An allowed request is one row: its end, or its decision while it runs.

A terminal that is too narrow for all of it costs the time its year and its milliseconds, then whole columns, least
needed first, and what is left over goes to those that were cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidegate.audit.query import Entry, Fields
from tidegate.audit.redact import showable
from tidegate.policy.reasons import Reason

__all__ = ["Layout", "Row", "collapse", "row"]

_RESET = "\033[0m"
_COLOURS = {"allow": "\033[32m", "deny": "\033[31m", "error": "\033[33m", "redact": "\033[35m"}
_DIM = "\033[2m"


class _Column(NamedTuple):
    title: str
    width: int
    widest: int
    least: int
    right: bool = False


_COLUMNS = (
    _Column("TIME", 23, 23, 14),
    _Column("VERDICT", 7, 7, 7),
    _Column("WHAT", 7, 12, 7),
    _Column("HOST", 28, 48, 15),
    _Column("PATH OR DETAIL", 32, 64, 10),
    _Column("STATUS", 6, 6, 6, right=True),
    _Column("UP", 6, 6, 6, right=True),
    _Column("DOWN", 6, 6, 6, right=True),
    _Column("REASON", 20, 32, 16),
    _Column("RULE", 16, 32, 12),
    _Column("CREDENTIAL", 12, 24, 10),
    _Column("CALL", 20, 40, 12),
)
_TITLES = tuple(column.title for column in _COLUMNS)
_LEAVES = ("CALL", "CREDENTIAL", "UP", "DOWN", "RULE", "STATUS")
"""What is left out where there is no room for it, first to last."""
_GROWS = ("REASON", "HOST", "RULE", "PATH OR DETAIL", "CREDENTIAL", "CALL", "WHAT")
_GAP = 2


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
        "" if record.call is None else f"{record.call.tool}:{record.call.id}",
    )
    return Row(record.verdict or "", tuple(showable(cell) for cell in cells))


class Layout:
    """The widths of the columns: fixed for a stream, or fitted to rows that are all known; `most` bounds their sum."""

    left_out: tuple[str, ...] = ()
    """Titles of the columns that had no room."""

    def __init__(self, rows: Sequence[Row] | None = None, *, colour: bool, most: int | None = None) -> None:
        self._colour = colour
        self._widths = [column.width for column in _COLUMNS]
        if rows is not None:
            for at, column in enumerate(_COLUMNS):
                needed = max((len(row.cells[at]) for row in rows), default=0)
                self._widths[at] = min(max(needed, len(column.title)), column.widest)
            if not any(row.cells[_TITLES.index("CALL")] for row in rows):
                self._widths[_TITLES.index("CALL")] = 0  # nobody makes calls
        if most is not None and self._total(self._widths) > most:
            self._narrow(most)

    def header(self) -> str:
        """Return the line of titles."""
        line = self._joined(self._fit(_TITLES))
        return f"{_DIM}{line}{_RESET}" if self._colour else line

    def line(self, one: Row) -> str:
        """Return a row as a line; colour marks the verdict."""
        cells = self._fit(one.cells)
        code = _COLOURS.get(one.verdict)
        if self._colour and code is not None:
            cells[1] = f"{code}{cells[1]}{_RESET}"
        return self._joined(cells)

    @staticmethod
    def _total(widths: Sequence[int]) -> int:
        return sum(widths) + _GAP * (sum(width > 0 for width in widths) - 1)

    def _narrow(self, most: int) -> None:
        """Make the columns narrower, leave some out, and give what room is left to those that were cut."""
        wanted = self._widths
        widths = [min(width, column.least) for width, column in zip(wanted, _COLUMNS, strict=True)]
        left = []
        for title in _LEAVES:
            if self._total(widths) <= most:
                break
            if not widths[_TITLES.index(title)]:
                continue
            widths[_TITLES.index(title)] = 0
            left.append(title)
        for title in ("TIME", *_GROWS):
            at, spare = _TITLES.index(title), most - self._total(widths)
            more = wanted[at] - widths[at]
            if widths[at] and spare > 0 and (title != "TIME" or more <= spare):
                widths[at] += min(more, spare)
        self._widths, self.left_out = widths, tuple(left)

    def _joined(self, cells: Sequence[str]) -> str:
        shown = (cell for cell, width in zip(cells, self._widths, strict=True) if width)
        return (" " * _GAP).join(shown).rstrip()

    def _fit(self, cells: tuple[str, ...]) -> list[str]:
        parts = []
        for cell, column, width in zip(cells, _COLUMNS, self._widths, strict=True):
            if column.title == "TIME" and width == column.least and cell != column.title:
                short = cell[5:19]  # month to second
            else:
                short = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(short.rjust(width) if column.right else short.ljust(width))
        return parts


def _key(entry: Entry) -> tuple[str, str, str | None]:
    return entry.record.chain, entry.record.type, entry.record.flow


def _method(kind: str, phase: str, block: Fields) -> str:
    if kind == "http":
        return _text(block.get("method"))
    if kind == "dns":
        return _text(block.get("rrtype"))
    if kind == "conn":
        return _text(block.get("transport"))
    return kind if phase == "event" else f"{kind} {phase}"


def _host(kind: str, block: Fields) -> str:
    host = _text(block.get("host") if "host" in block else block.get("name") if kind in ("conn", "dns") else None)
    port = block.get("port")
    if kind == "conn" and not host:  # dialled by address, or a packet that the wall dropped
        return _address(_text(block.get("address")), port) or _client(block)
    return f"{host}:{port}" if host and isinstance(port, int) and port not in (80, 443) else host


def _address(address: str, port: object) -> str:
    if not address or not isinstance(port, int):
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _client(block: Fields) -> str:
    return f"from {_text(block.get('client'))}" if block.get("client") else ""


def _detail(kind: str, block: Fields) -> str:
    if kind == "conn" and block.get("end") == Reason.WALL_DROPPED.code:
        return _client(block) if block.get("address") else ""
    if kind == "conn":
        return _text(block.get("end"))
    if kind == "checkpoint":
        return f"up to {_text(block.get('covers'))}"
    if kind in ("http", "dns"):
        return ""
    if kind == "launch":
        command = None if block.get("act") == "end" else block.get("argv")
        told = (block.get("act"), block.get("outcome"), block.get("id"), command)
        return " ".join(filter(None, map(_text, told)))
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
