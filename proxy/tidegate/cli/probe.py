"""`tidegate probe`: try the ways out of a sandbox from inside, and say which are open."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from tidegate.cli.table import output_option, print_json, talk
from tidegate.errors import LaunchError

__all__ = ["patience", "probe"]

_ANSWER_SECONDS: Final = 2.0
"""How long the probe waits for each answer, unless it is told."""
_START_SECONDS, _WAITS = 60.0, 40
"""What a slow machine needs besides, and how many waits may follow one another: the ways stand in a queue."""
_ENGINES: Final = ("docker", "podman")
_NAMESPACES: Final = Path("/run/netns")
_NO_PYTHON: Final = frozenset({126, 127})
"""Exit codes of a container engine: the program cannot be run, or is not there (125 and 1 are faults of its own)."""


@click.command(short_help="Try the ways out of a sandbox, from inside.")
@click.option("--emit", is_flag=True, help="Print the program, for a sandbox that this machine cannot enter.")
@click.option("--in", "place", metavar="NAME", help="A network namespace, or a container that has python3.")
@output_option
@click.option("--allowed", metavar="NAME[:PORT][/PATH]", help="An https page that the policy allows, to try with.")
@click.option("--denied", metavar="NAME", help="A name that the policy does not allow.  [default: example.com]")
@click.option("--proxy", metavar="URL", help="The gate's proxy as the sandbox sees it.  [default: its $HTTPS_PROXY]")
@click.option("--seconds", type=click.FloatRange(0.1, 30), help="How long to wait for each answer.  [default: 2]")
@click.option("--flood", is_flag=True, help="Also try more connections than the wall lets through.")
@click.option("--only", "kinds", multiple=True, metavar="KIND", help="Ways of this kind alone; repeat for more.")
def probe(
    *,
    emit: bool,
    place: str | None,
    output: str,
    allowed: str | None,
    denied: str | None,
    proxy: str | None,
    seconds: float | None,
    flood: bool,
    kinds: tuple[str, ...],
) -> int:
    """Try the ways out of a sandbox, from inside. Exits 1 when one is open.

    Ways through the gate need something that it allows, to tell a refusal from a gate that refuses everything: give
    --allowed. In a network namespace only the kinds that concern the network are tried, unless --only names others.

    Example: tidegate probe --in sandbox --allowed api.github.com/zen --proxy http://10.77.0.1:8080
    """
    from tidegate_launcher.probe import KINDS, NETWORK

    if emit:
        click.echo(_program(), nl=False)
        return 0
    if place is None:
        raise click.UsageError("give --emit, or --in NAME")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise click.UsageError(f"--only: there is no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    if _is_namespace(place) and not kinds:
        kinds = NETWORK
        talk(f"{place} is a network namespace: tried is what concerns the network")
    named = {"--allowed": allowed, "--denied": denied, "--proxy": proxy, "--seconds": seconds}
    given = [f"{option}={value}" for option, value in named.items() if value is not None]
    options = [*given, *(["--flood"] if flood else []), *(["--only", *kinds] if kinds else [])]
    report = _run(place, options, most_seconds=patience(seconds))
    _show(report, output)
    return 1 if report["count"]["open"] else 0


def patience(seconds: float | None) -> float:
    """Return how long the whole may take when each answer is waited for so long."""
    return _START_SECONDS + _WAITS * (_ANSWER_SECONDS if seconds is None else seconds)


def _run(place: str, options: list[str], *, most_seconds: float) -> dict[str, Any]:
    """Run the probe inside and return its report. Raises `LaunchError`."""
    command = [*entry(place), "-", "--json", *options]
    try:
        done = subprocess.run(
            command, input=_program(), stdout=subprocess.PIPE, text=True, timeout=most_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        hint = "a lower --seconds, or fewer kinds by --only, takes less; --only one after the other shows what hangs"
        raise LaunchError(f"the probe did not end within {most_seconds:g} s", where=place, hint=hint) from None
    if done.returncode == 2:
        raise click.UsageError("the probe did not take these options: see above")
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        report["count"]["open"]
    except (ValueError, LookupError, TypeError):
        hint = "it needs python3 inside" if done.returncode in _NO_PYTHON else "the lines above say why"
        raise LaunchError(f"the probe did not run (exit code {done.returncode})", where=place, hint=hint) from None
    return report


def _show(report: dict[str, Any], output: str) -> None:
    from tidegate_launcher.probe import card

    if output == "json":
        print_json(report)
        return
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    click.echo(card(report, min(100, shutil.get_terminal_size((80, 24)).columns), colour=colour), nl=False)


def entry(place: str) -> list[str]:
    """Return what runs Python inside of a network namespace or a container. Raises `LaunchError`."""
    from tidegate_launcher.privilege import CAP_SYS_ADMIN, holds

    if _is_namespace(place):
        if not holds(CAP_SYS_ADMIN):
            hint = "this needs root, or CAP_SYS_ADMIN"
            raise LaunchError("the namespace cannot be entered: Operation not permitted", where=place, hint=hint)
        return ["ip", "netns", "exec", place, sys.executable]
    engines = [found for name in _ENGINES if (found := shutil.which(name))]
    if not engines:
        raise LaunchError(f"there is no network namespace {place}, and no container engine here", where="--in")
    known = next((engine for engine in engines if _knows(engine, place)), None)
    if known is None:
        names = " and ".join(Path(engine).name for engine in engines)
        raise LaunchError(
            f"there is no network namespace {place}, and no container of that name",
            where=f"--in, {names}",
            hint="" if os.geteuid() == 0 else "root's containers are root's to see: run this as root for one of them",
        )
    return [known, "exec", "-i", place, "python3"]


def _is_namespace(place: str) -> bool:
    return "/" not in place and place not in ("", ".", "..") and (_NAMESPACES / place).exists()


def _knows(engine: str, container: str) -> bool:
    """Return whether an engine has a container of that name; one that does not answer has none."""
    asked = [engine, "container", "inspect", "--format", "{{.Id}}", container]
    try:
        return subprocess.run(asked, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _program() -> str:
    import tidegate_launcher

    return Path(tidegate_launcher.__file__).with_name("probe.py").read_text()
