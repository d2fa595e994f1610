"""`tidegate harness`: tokens by which a harness opens sessions of named policies, up to a count."""

from collections.abc import Mapping
from pathlib import Path

import click

from tidegate.cli.client import AdminClient, segment
from tidegate.cli.place import state_options
from tidegate.cli.table import moment, output_option, print_json, print_table

__all__ = ["harness"]


@click.group(short_help="Give a harness the right to open sessions.")
def harness() -> None:
    """Give a harness the right to open sessions: named policies, a count, a lifetime, and nothing else.

    Example: tidegate harness new --policy triage --max-sessions 20 --ttl-seconds 86400
    """


@harness.command("new")
@state_options
@click.option("--policy", "policies", multiple=True, required=True, help="A policy it may use; repeat for more.")
@click.option("--max-sessions", type=click.IntRange(1, 100_000), required=True, help="Live sessions at once.")
@click.option("--ttl-seconds", type=click.FloatRange(min=1), required=True, help="How long the token lives.")
@click.option("--owner", default="default", show_default=True, help="Whose budget its sessions draw from.")
@output_option
def new(
    *,
    config: Path | None,
    state_dir: Path | None,
    policies: tuple[str, ...],
    max_sessions: int,
    ttl_seconds: float,
    owner: str,
    output: str,
) -> None:
    """Make a token, shown once; it is presented as a bearer token on STATE/session.sock.

    Example: tidegate harness new --policy triage --max-sessions 20 --ttl-seconds 86400 -o json
    """
    opened = AdminClient.find(config=config, state_dir=state_dir).post(
        "/v1/harness",
        {"policies": list(policies), "max_sessions": max_sessions, "ttl_seconds": ttl_seconds, "owner": owner},
    )
    if output == "json":
        print_json(opened)
        return
    click.echo(f"id       {opened.get('id')}\ntoken    {opened.get('token')}\nexpires  {moment(opened.get('expires'))}")


@harness.command("list")
@state_options
@output_option
def list_(*, config: Path | None, state_dir: Path | None, output: str) -> None:
    """List harness tokens, without the tokens.

    Example: tidegate harness list
    """
    found = AdminClient.find(config=config, state_dir=state_dir).get("/v1/harness").get("harnesses")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    if output == "json":
        print_json(rows)
        return
    columns = ("id", "owner", "policies", "sessions", "max_sessions")
    print_table(
        (*columns, "expires"), [[*(row.get(name) for name in columns), moment(row.get("expires"))] for row in rows]
    )


@harness.command("revoke")
@state_options
@click.argument("id")
def revoke(*, config: Path | None, state_dir: Path | None, id: str) -> None:
    """End a token and every session that it opened.

    Example: tidegate harness revoke ID
    """
    AdminClient.find(config=config, state_dir=state_dir).delete(f"/v1/harness/{segment(id)}")
    click.echo(f"revoked {id}")
