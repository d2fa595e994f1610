"""`tidegate session`: open, look at, stop and end sessions."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.audit.redact import loggable
from tidegate.cli.client import AdminClient, segment
from tidegate.cli.env import FORMS, print_env
from tidegate.cli.place import state_options
from tidegate.cli.table import cell, moment, output_option, print_json, print_table, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate.session.call import ToolCall

__all__ = ["session"]


class _CallWord(click.ParamType["ToolCall"]):
    """A tool call as TOOL:ID, at the last colon: tools' names have some."""

    name = "tool:id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "ToolCall":
        """Return the call."""
        from tidegate.session.call import ToolCall

        if isinstance(value, ToolCall):
            return value
        tool, _, id = str(value).rpartition(":")
        try:
            return ToolCall.of(tool, id)
        except LaunchError as fault:
            self.fail(f"{fault.what}, as in web_search:call_1", param, ctx)


@click.group(short_help="Open, list and end sessions.")
def session() -> None:
    """Open, list and end sessions.

    Example: tidegate session new --policy triage -o json
    """


@session.command("new")
@state_options
@click.option("--policy", help="What the session may reach; with --parent, what that may.")
@click.option("--credential", "credentials", multiple=True, help="A credential it may use; repeat for more.")
@click.option(
    "--ttl-seconds", type=click.FloatRange(min=1), default=86400.0, show_default=True, help="How long it lives."
)
@click.option("--owner", default="default", show_default=True, help="Whose budget it draws from.")
@click.option("--from", "source", help="The one network it may come from, as CIDR.")
@click.option("--proxy-host", help="Host of the proxy URL, as the sandbox sees the gate.")
@click.option("--call", type=_CallWord(), help="The tool call that it is for, as TOOL:ID; each of its records says so.")
@click.option("--parent", help="The session that the call is made in: it has no more than that, and ends with it.")
@output_option
def new(
    *,
    config: Path | None,
    state_dir: Path | None,
    policy: str | None,
    credentials: tuple[str, ...],
    ttl_seconds: float,
    owner: str,
    source: str | None,
    proxy_host: str | None,
    call: "ToolCall | None",
    parent: str | None,
    output: str,
) -> None:
    """Open a session and print its id, proxy URL and end. The proxy URL holds the token, which is shown once.

    With -o json also the token by itself and the environment; `tidegate session env ID` prints that at any time.

    Example: tidegate session new --policy triage --credential github --ttl-seconds 3600 -o json
    """
    if parent is not None and call is None:
        raise click.UsageError("--parent is the session of a --call")
    if policy is None and parent is None:
        raise click.UsageError("Missing option '--policy'.")
    opened = AdminClient.find(config=config, state_dir=state_dir).post(
        "/v1/sessions",
        {
            "policy": policy,
            "credentials": list(credentials),
            "ttl_seconds": ttl_seconds,
            "owner": owner,
            "from": source,
            "proxy_host": proxy_host,
            "call": None if call is None else {"tool": call.tool, "id": call.id, "parent": parent},
        },
    )
    if output == "json":
        print_json({key: opened.get(key) for key in ("id", "token", "proxy_url", "env", "expires")})
        return
    for key, value in (
        ("id", opened.get("id")),
        ("proxy_url", opened.get("proxy_url")),
        ("expires", moment(opened.get("expires"))),
    ):
        click.echo(f"{key:10} {value}")


@session.command("list")
@state_options
@click.option("--owner", help="Only this owner's.")
@click.option("--call", help="Only those of this tool call: a tool, a call's id, or both as TOOL:ID.")
@output_option
def list_(*, config: Path | None, state_dir: Path | None, owner: str | None, call: str | None, output: str) -> None:
    """List live sessions.

    Example: tidegate session list
    """
    named = None if call is None else loggable(call)
    answer = AdminClient.find(config=config, state_dir=state_dir).get("/v1/sessions", owner=owner, call=named)
    found = answer.get("sessions")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    if output == "json":
        print_json(rows)
        return
    print_table(_COLUMNS, [_row(row) for row in rows])


_COLUMNS = ("id", "policy", "owner", "credentials", "from", "expires", "frozen", "origin", "call", "parent")


def _row(view: Mapping[str, object]) -> list[object]:
    call = view.get("call")
    named = call if isinstance(call, Mapping) else {}
    return [
        view.get("id"),
        view.get("policy"),
        view.get("owner"),
        view.get("credentials"),
        view.get("source"),
        moment(view.get("expires")),
        view.get("frozen"),
        view.get("origin"),
        f"{named.get('tool')}:{named.get('id')}" if named else None,
        named.get("parent"),
    ]


@session.command()
@state_options
@click.argument("id")
@output_option
def show(*, config: Path | None, state_dir: Path | None, id: str, output: str) -> None:
    """Show one session.

    Example: tidegate session show ID
    """
    view = AdminClient.find(config=config, state_dir=state_dir).get(f"/v1/sessions/{segment(id)}")
    if output == "json":
        print_json(view)
        return
    for name, value in zip(_COLUMNS, _row(view), strict=True):
        click.echo(f"{name:12} {cell(value)}")


@session.command("env")
@state_options
@click.argument("id")
@click.option("--proxy-host", help="Host of the proxy URL, as the sandbox sees the gate.")
@click.option("-o", "--output", type=click.Choice(FORMS), default="sh", show_default=True, help="Form of output.")
def env(*, config: Path | None, state_dir: Path | None, id: str, proxy_host: str | None, output: str) -> None:
    """Print the environment of a session, with a fresh token.

    Example: eval "$(tidegate session env ID)"
    """
    client = AdminClient.find(config=config, state_dir=state_dir)
    print_env(client.get(f"/v1/sessions/{segment(id)}/env", proxy_host=proxy_host), output)


def _end(name: str, verb: str, text: str) -> None:
    """Add a command that does one thing to one session."""

    @session.command(name, help=f"{text}\n\nExample: tidegate session {name} ID", short_help=text)
    @state_options
    @click.argument("ids", nargs=-1, required=True, metavar="ID...")
    def command(*, config: Path | None, state_dir: Path | None, ids: tuple[str, ...]) -> None:
        client = AdminClient.find(config=config, state_dir=state_dir)
        for one in ids:
            path = f"/v1/sessions/{segment(one)}"
            if name == "revoke":
                note = client.delete(path).get("note")
            else:
                note = client.post(f"{path}/{name}").get("note")
            click.echo(f"{verb} {one}")
            if note:
                talk(f"warning: {note}")


_end("revoke", "revoked", "End sessions for good; their connections are cut within a second.")
_end("freeze", "frozen", "Stop sessions: nothing new passes, nothing live is read, until they are thawed.")
_end("thaw", "thawed", "Let frozen sessions go on.")
