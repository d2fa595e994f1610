"""`tidegate health`: does the gate serve?"""

import os
from pathlib import Path

import click

from tidegate.cli.client import AdminClient
from tidegate.cli.place import find_state, state_options
from tidegate.cli.table import output_option, print_json, talk

__all__ = ["health"]


def _socket(state: Path, only: str | None) -> Path:
    """Return the socket of the half that is meant: without a word the one that is ours to ask."""
    whole, gate = state / "admin.sock", state / "gate" / "admin.sock"
    if only == "gate" or (only is None and not os.access(whole, os.W_OK) and os.access(gate, os.W_OK)):
        return gate
    return whole


@click.command(short_help="Say whether the gate serves; exit 1 when it does not.")
@state_options
@click.option(
    "--only", type=click.Choice(["gate", "keeper"]), help="The half to ask [default: the one that may be asked]."
)
@output_option
def health(*, config: Path | None, state_dir: Path | None, only: str | None, output: str) -> int:
    """Say whether the gate serves, and what is dangerous in its configuration. Exits 1 when it does not serve.

    Example: tidegate health -o json
    """
    state = find_state(config=config, state_dir=state_dir)
    ready, account = AdminClient(_socket(state, only)).ready()
    if output == "json":
        print_json(account)
    else:
        click.echo("ready" if ready else "not ready")
        for kind in ("problems", "warnings"):
            found = account.get(kind)
            for text in found if isinstance(found, list) else []:
                talk(f"{kind[:-1]}: {text}")
    return 0 if ready else 1
