"""`tidegate env`: the environment of a session, for a shell, an env file or a program."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidegate.cli.client import AdminClient, segment
from tidegate.cli.place import state_options
from tidegate.cli.table import print_json, talk
from tidegate.errors import TidegateError

__all__ = ["FORMS", "env", "open_session", "print_env", "variables"]

FORMS: Final = ("sh", "dotenv", "json")


@click.command(short_help="Print the environment of a session, for a shell or a file.")
@state_options
@click.option("--session", "session_id", help="An open session; without it a new one is opened.")
@click.option("--policy", help="Policy of the new session; may be left out where there is only one.")
@click.option("--credential", "credentials", multiple=True, help="A credential it may use; repeat for more.")
@click.option("--ttl-seconds", type=click.FloatRange(min=1), default=86400.0, show_default=True)
@click.option("--proxy-host", help="Host of the proxy URL, as the sandbox sees the gate.")
@click.option("-o", "--output", type=click.Choice(FORMS), default="sh", show_default=True, help="Form of output.")
def env(
    *,
    config: Path | None,
    state_dir: Path | None,
    session_id: str | None,
    policy: str | None,
    credentials: tuple[str, ...],
    ttl_seconds: float,
    proxy_host: str | None,
    output: str,
) -> None:
    """Print every proxy, CA and placeholder variable of a session.

    Example: eval "$(tidegate env --policy triage)"
    """
    client = AdminClient.find(config=config, state_dir=state_dir)
    if session_id is not None:
        opened = client.get(f"/v1/sessions/{segment(session_id)}/env", proxy_host=proxy_host)
    else:
        opened = open_session(
            client, policy=policy, credentials=credentials, ttl_seconds=ttl_seconds, proxy_host=proxy_host
        )
        talk(f"opened session {opened.get('id')}; end it with `tidegate session revoke {opened.get('id')}`")
    print_env(opened, output)


def open_session(
    client: AdminClient,
    *,
    policy: str | None,
    credentials: tuple[str, ...],
    ttl_seconds: float | None,
    proxy_host: str | None = None,
) -> dict[str, object]:
    """Open a session; the policy may be left out where the gate has exactly one. Raises `TidegateError`."""
    if policy is None:
        found = client.get("/v1/status").get("policies")
        names = [str(name) for name in found] if isinstance(found, list) else []
        if len(names) != 1:
            raise click.UsageError(f"give --policy; the gate has: {', '.join(names) or 'none'}")
        policy = names[0]
    return client.post(
        "/v1/sessions",
        {
            "policy": policy,
            "credentials": list(credentials),
            "ttl_seconds": ttl_seconds,
            "proxy_host": proxy_host,
        },
    )


def variables(opened: Mapping[str, object]) -> dict[str, str]:
    """Return the variables in the gate's answer."""
    found = opened.get("env")
    if not isinstance(found, Mapping):
        raise TidegateError("the gate's answer holds no environment")
    return {str(name): str(value) for name, value in found.items()}


def print_env(opened: Mapping[str, object], form: str) -> None:
    """Print the variables in this form."""
    found = variables(opened)
    if form == "json":
        print_json(found)
        return
    for name, value in sorted(found.items()):
        click.echo(f"{name}={value}" if form == "dotenv" else f"export {name}={shlex.quote(value)}")
