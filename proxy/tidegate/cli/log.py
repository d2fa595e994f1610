"""`tidegate log`: what was decided, by whom, about what."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.place import find_audit, state_options
from tidegate.cli.table import output_option, talk

if TYPE_CHECKING:
    from tidegate.audit.query import Entry

__all__ = ["log"]


class _Moment(click.ParamType[str]):
    """A time: RFC 3339, or a span back from now."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as records write it."""
        from tidegate.audit.query import parse_time

        try:
            return parse_time(str(value), time.time())
        except ValueError:
            self.fail(f"{value!r} is neither a time (2030-01-02T03:04:05Z) nor a span (90s, 15m, 2h, 7d)", param, ctx)


@click.command(short_help="Read the audit log.")
@click.option("--since", type=_Moment(), help="From this time on: RFC 3339, or back from now (15m, 2h, 7d).")
@click.option("--until", type=_Moment(), help="Before this time.")
@click.option("--session", help="Of this session.")
@click.option("--host", help="About this name; *.example.com for all below it.")
@click.option("--verdict", type=click.Choice(["allow", "deny", "error", "redact"]), help="With this verdict.")
@click.option("--reason", help="With this reason, such as not_in_allowlist.")
@click.option("--type", "kind", help="Of this type, such as http, conn, dns, credential, incident.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is being written.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Audit directory; default: the gate's.")
@state_options
@output_option
def log(
    *,
    since: str | None,
    until: str | None,
    session: str | None,
    host: str | None,
    verdict: str | None,
    reason: str | None,
    kind: str | None,
    follow: bool,
    directory: Path | None,
    config: Path | None,
    state_dir: Path | None,
    output: str,
) -> None:
    """Read the audit log, all its chains merged by time.

    As a table, an allowed request is one row (its end, or its decision while it runs); as JSON,
    every record stands as it was written, one a line.

    Example: tidegate log --since 15m --verdict deny
    """
    from tidegate.audit.query import Filter, Reader
    from tidegate.audit.redact import showable

    wanted = Filter(since=since, until=until, session=session, host=host, verdict=verdict, reason=reason, type=kind)
    reader = Reader(directory or find_audit(config=config, state_dir=state_dir), wanted)
    entries = reader.follow() if follow else reader.read()
    if output == "json":
        for entry in entries:
            _say(entry.line.decode("utf-8", "backslashreplace"), flush=follow)
    else:
        _print_table(entries, follow=follow)
    for chain in sorted(reader.unannounced):
        talk(f"chain {showable(chain)} is unannounced: no keeper's chain tells of it, so its lines may be anybody's")
    if reader.skipped:
        talk(f"{reader.skipped} lines or files are no records and were left out; `tidegate audit verify` says more")


def _print_table(entries: "Iterable[Entry]", *, follow: bool) -> None:
    from tidegate.audit.table import Layout, collapse, row

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if follow:
        layout = Layout(colour=colour)
        _say(layout.header(), flush=True)
        for entry in entries:
            _say(layout.line(row(entry)), flush=True)
        return
    rows = [row(entry) for entry in collapse(entries)]
    layout = Layout(rows, colour=colour)
    for line in (layout.header(), *map(layout.line, rows)):
        _say(line, flush=False)


def _say(line: str, *, flush: bool) -> None:
    print(line, flush=flush)
