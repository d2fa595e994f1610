"""`tidegate health`: does the gate serve?"""

from pathlib import Path

import click

from tidegate.cli.client import AdminClient
from tidegate.cli.place import state_options
from tidegate.cli.table import output_option, print_json, talk

__all__ = ["health"]


@click.command(short_help="Say whether the gate serves; exit 1 when it does not.")
@state_options
@click.option("--only", type=click.Choice(["gate", "keeper"]), help="The half to ask, where only one runs here.")
@output_option
def health(*, config: Path | None, state_dir: Path | None, only: str | None, output: str) -> int:
    """Say whether the gate serves, and what is dangerous in its configuration. Exits 1 when it does not serve.

    Example: tidegate health -o json
    """
    name = "admin-gate.sock" if only == "gate" else "admin.sock"
    ready, account = AdminClient.find(config=config, state_dir=state_dir, name=name).ready()
    if output == "json":
        print_json(account)
    else:
        click.echo("ready" if ready else "not ready")
        for kind in ("problems", "warnings"):
            found = account.get(kind)
            for text in found if isinstance(found, list) else []:
                talk(f"{kind[:-1]}: {text}")
    return 0 if ready else 1
