"""How a command prints: a table for people, JSON for programs; data on stdout, talk on stderr."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from tidegate.audit.redact import showable

__all__ = ["cell", "moment", "output_option", "print_json", "print_table", "shown", "talk"]

_SHOWN_CAP: Final = 4096
"""Characters of one text that are shown to a person."""


def output_option[F: Callable[..., object]](function: F) -> F:
    """Add `-o table|json` to a command, as the argument `output`."""
    option: Callable[[F], F] = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Form of output.",
    )
    return option(function)


def print_json(value: object) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under upper-case column names, each column as wide as it must be."""
    cells = [[column.upper() for column in columns], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def cell(value: object) -> str:
    """Return a value as it stands in a table: `-` for nothing, never a character that drives the terminal."""
    if value is None or value == () or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    # A name may come from a file that someone else wrote: nothing of it may drive the terminal.
    return "".join(letter if letter.isprintable() else "�" for letter in str(value))


def moment(seconds: object) -> str:
    """Return wall seconds as RFC 3339, or a dash."""
    if not isinstance(seconds, int | float):
        return "-"
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # a number that is no time
        return "-"


def shown(text: str) -> str:
    """Return text that may be somebody else's on one line: escaped where it would drive a terminal, and capped."""
    rest = len(text) - _SHOWN_CAP
    return f"{showable(text[:_SHOWN_CAP])}…+{rest}" if rest > 0 else showable(text)


def talk(text: str) -> None:
    """Say something to the person, on stderr."""
    click.echo(f"tidegate: {shown(text)}", err=True)
