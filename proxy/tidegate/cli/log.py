"""`tidegate log`: what was decided, by whom, about what."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from tidegate.cli.place import also_there, find_audit, must_be_there, state_options
from tidegate.cli.table import output_option, talk
from tidegate.errors import AuditError

if TYPE_CHECKING:
    from tidegate.audit.query import Entry, Reader
    from tidegate.audit.table import Layout

__all__ = ["log"]

_TOLD: Final = 20
_PAUSE_SECONDS: Final = 0.2


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


_ENDS: Final = (
    "changed", "clock_step", "expired", "parent_changed", "parent_ended", "policy_removed", "removed", "replaced",
    "revoked", "unsettled",
    "chain_refused", "checkpoint_refused", "session_misplaced", "session_not_here",
)  # fmt: skip
"""What the keeper's chain has for a reason beside those of policy: ends of sessions and leases, its incidents."""


class _Word(click.ParamType[str]):
    """One of the words that records have in a field; a slip must not look like an empty log."""

    def __init__(self, name: Literal["verdict", "reason", "type"]) -> None:
        self.name = name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        from tidegate.nearest import did_you_mean

        known = self._known()
        if value not in known:
            hint = did_you_mean(str(value), known) or f"; it is one of {', '.join(known)}"
            self.fail(f"no record has the {self.name} {str(value)!r}{hint}", param, ctx)
        return str(value)

    def _known(self) -> list[str]:
        from tidegate.audit.event import BLOCKS
        from tidegate.policy.reasons import Reason, Verdict

        if self.name == "verdict":
            return [verdict.value for verdict in Verdict]
        if self.name == "type":
            return sorted(block.kind for block in BLOCKS)
        return sorted({*(reason.code for reason in Reason), *_ENDS})


@click.command(short_help="Read the audit log.")
@click.option("--since", type=_Moment(), help="From this time on: RFC 3339, or back from now (15m, 2h, 7d).")
@click.option("--until", type=_Moment(), help="Before this time.")
@click.option("--session", help="Of this session, and of the calls made in it.")
@click.option("--call", help="Of this tool call: a tool, a call's id, or both as TOOL:ID.")
@click.option("--flow", help="Of this flow: the request_id that the client of a denial was told.")
@click.option("--host", help="About this name; *.example.com for all below it.")
@click.option("--verdict", type=_Word("verdict"), help="With this verdict: allow, deny, error or redact.")
@click.option("--reason", type=_Word("reason"), help="With this reason, such as not_in_allowlist.")
@click.option("--type", "kind", type=_Word("type"), help="Of this type, such as http, conn, dns, credential, incident.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is being written.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, readable=False),
    help="Audit directory; default: the gate's.",
)
@state_options
@output_option
@click.pass_context
def log(
    ctx: click.Context,
    *,
    since: str | None,
    until: str | None,
    session: str | None,
    call: str | None,
    flow: str | None,
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
    every record stands as it was written, one a line. What cannot be read is told on stderr, and
    the exit code is 1 then; all else is shown.

    Example: tidegate log --since 15m --verdict deny
    """
    from tidegate.audit.query import Filter, Reader

    wanted = Filter(
        since=since, until=until, session=session, call=call, flow=flow, host=host,
        verdict=verdict, reason=reason, type=kind,
    )  # fmt: skip
    if directory is not None:
        must_be_there(directory, "--dir")
    place = directory or find_audit(config=config, state_dir=state_dir)
    reader = Reader(place, wanted)
    if not follow and not reader.chains():
        raise _no_log(place, named=directory is not None)
    unread = _Unread(reader)
    entries = reader.follow(pause=unread.say_and_wait) if follow else reader.read()
    show = _print_lines if output == "json" else _print_table
    show(entries, follow=follow)
    _tell_doubts(reader)
    unread.say()
    if reader.unread:
        ctx.exit(1)


class _Unread:
    """Says what a reader could not read: each thing once, and the first so many by name."""

    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        self._seen = 0

    def say(self) -> None:
        """Say what is new."""
        faults = list(self._reader.unread.values())[self._seen :]
        room = max(_TOLD - self._seen, 0)
        self._seen += len(faults)
        for fault in faults[:room]:
            talk(f"not read: {fault}")
        if more := len(faults[room:]):
            talk(f"not read: {more} more; `tidegate audit verify` judges every chain")

    def say_and_wait(self) -> None:
        """Say what is new, then let some time pass."""
        self.say()
        time.sleep(_PAUSE_SECONDS)


def _no_log(place: Path, *, named: bool) -> AuditError:
    """Return the fault of a folder that holds no chain: what the log is made of, and how it is found."""
    if named:
        hint = "--dir is the folder that holds the chains, each a folder of its own (keeper-…, gate-…), and no chain"
    else:
        hint = "a gate writes it from its first start on: `tidegate up`; for another gate's give --state-dir, --config"
        hint += f" or --dir{also_there(place)}"
    return AuditError("there is no log in this folder", where=str(place), hint=hint)


def _tell_doubts(reader: "Reader") -> None:
    """Say what was read and may be nobody's word, or was no record at all."""
    from tidegate.audit.redact import showable

    for chain in sorted(reader.unannounced):
        talk(f"chain {showable(chain)} is unannounced: no keeper's chain tells of it, so its lines may be anybody's")
    if reader.skipped:
        talk(f"{reader.skipped} lines are no records and were left out; `tidegate audit verify` says more")


def _print_lines(entries: "Iterable[Entry]", *, follow: bool) -> None:
    for entry in entries:
        _say(entry.line.decode("utf-8", "backslashreplace"), flush=follow)


def _print_table(entries: "Iterable[Entry]", *, follow: bool) -> None:
    from tidegate.audit.table import Layout, collapse, row

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if follow:
        layout = Layout(colour=colour, most=_columns())
        _tell_left_out(layout)
        _say(layout.header(), flush=True)
        for entry in entries:
            _say(layout.line(row(entry)), flush=True)
        return
    rows = [row(entry) for entry in collapse(entries)]
    layout = Layout(rows, colour=colour, most=_columns())
    for line in (layout.header(), *map(layout.line, rows)):
        _say(line, flush=False)
    _tell_left_out(layout)


def _columns() -> int | None:
    """Return how wide the terminal is that is written to; None for a file, a pipe, or one that does not say."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except OSError:
        return None


def _tell_left_out(layout: "Layout") -> None:
    if layout.left_out:
        talk(f"no room here for {', '.join(layout.left_out)}: a wider terminal, a pipe or -o json has all")


def _say(line: str, *, flush: bool) -> None:
    print(line, flush=flush)
