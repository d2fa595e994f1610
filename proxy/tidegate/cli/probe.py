"""`tidegate probe`: try the ways out of a sandbox from inside, and say which are open."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from tidegate.errors import LaunchError

__all__ = ["probe"]

_SECONDS: Final = 120.0


@click.command(short_help="Try the ways out of a sandbox, from inside.")
@click.option("--emit", is_flag=True, help="Print the program, for a sandbox that this machine cannot enter.")
@click.option("--in", "place", metavar="NAME", help="A network namespace, or a container that has python3.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--only", "kinds", multiple=True, metavar="KIND", help="Ways of this kind alone; repeat for more.")
def probe(*, emit: bool, place: str | None, as_json: bool, kinds: tuple[str, ...]) -> int:
    """Try the ways out of a sandbox, from inside. Exits 1 when one is open.

    In a network namespace only what concerns the network says anything of the sandbox: name the kinds direct, metadata,
    private, host, dns, udp, icmp, link, proxy.

    Example: tidegate probe --in sandbox --only direct --only dns
    """
    program = Path(_file()).read_text()
    if emit:
        click.echo(program, nl=False)
        return 0
    if place is None:
        raise click.UsageError("give --emit, or --in NAME")
    options = [*(["--json"] if as_json else []), *(["--only", *kinds] if kinds else [])]
    command = [*_entry(place), "-", *options]
    try:
        return subprocess.run(command, input=program, text=True, timeout=_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        raise LaunchError(f"the probe did not end within {_SECONDS:g} s", where=place) from None


def _entry(place: str) -> list[str]:
    """Return what runs Python inside."""
    if Path("/run/netns", place).exists():
        return ["ip", "netns", "exec", place, sys.executable]
    engine = next((found for name in ("docker", "podman") if (found := shutil.which(name))), None)
    if engine is None:
        raise LaunchError(f"there is no network namespace {place}, and no container engine here", where="--in")
    return [engine, "exec", "-i", place, "python3"]


def _file() -> str:
    import tidegate_launcher

    return str(Path(tidegate_launcher.__file__).with_name("probe.py"))
