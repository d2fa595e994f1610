"""The options that commands which launch something share, and what is made of them."""

import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.job import Limits
    from tidegate_launcher.lease import Ask

__all__ = ["ask_of", "brought_options", "limit_options", "limits_of", "session_options"]

_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def _size(_: click.Context, __: click.Parameter, given: str) -> int:
    """Read a number of bytes such as 512M."""
    match = _SIZE.fullmatch(given.upper())
    if match is None:
        raise click.BadParameter(f"{given!r} is no size: write such as 512M")
    return int(match[1]) * _UNITS[match[2]]


def _variable(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read NAME=VALUE."""
    for one in given:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", one):
            raise click.BadParameter(f"{one.partition('=')[0]!r} is no variable: write NAME=VALUE")
    return tuple((name, value) for name, _, value in (one.partition("=") for one in given))


def _all[F: Callable[..., object]](*options: Callable[[F], F]) -> Callable[[F], F]:
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def session_options[F: Callable[..., object]](function: F) -> F:
    """Add what a sandbox may reach, as whom, and what it is made of: `policy`, `credentials`, `owner`, `image`."""
    added: Callable[[F], F] = _all(
        click.option("--policy", help="What it may reach; without, the sandbox has no network."),
        click.option("--credential", "credentials", multiple=True, help="A credential it may use; repeat for more."),
        click.option("--owner", default="default", show_default=True, help="Whose budgets it draws on."),
        click.option("--image", default="minimal", show_default=True, help="Name or digest of the root filesystem."),
    )
    return added(function)


def limit_options[F: Callable[..., object]](function: F) -> F:
    """Add the limits: `seconds`, `memory`, `cpus`, `pids`, `disk`, `output_bytes`."""
    added: Callable[[F], F] = _all(
        click.option("--time", "seconds", type=float, default=30.0, show_default=True, metavar="SECONDS"),
        click.option("--memory", callback=_size, default="512M", show_default=True, metavar="SIZE"),
        click.option("--cpus", type=float, default=1.0, show_default=True, metavar="N"),
        click.option("--pids", type=int, default=128, show_default=True, metavar="N", help="Processes inside."),
        click.option(
            "--disk", callback=_size, default="64M", show_default=True, metavar="SIZE", help="Of /work and /tmp."
        ),
        click.option(
            "--output-bytes", callback=_size, default="8M", show_default=True, metavar="SIZE", help="Of each stream."
        ),
    )
    return added(function)


def brought_options[F: Callable[..., object]](function: F) -> F:
    """Add what a command brings and takes: `inputs`, `out`, `environment`."""
    path = click.Path(path_type=Path)
    added: Callable[[F], F] = _all(
        click.option("--in", "inputs", multiple=True, type=path, help="Copied to /in; repeat for more."),
        click.option("--out", type=path, help="Folder for what the command leaves in /work."),
        click.option("--env", "environment", multiple=True, callback=_variable, metavar="NAME=VALUE"),
    )
    return added(function)


def ask_of(given: dict[str, Any]) -> "Ask | None":
    """Return the session that is wanted of the gate; None without a policy. Raises `click.UsageError`."""
    from tidegate_launcher.lease import Ask

    if given["policy"] is None:
        if given["credentials"]:
            raise click.UsageError("--credential needs a --policy, whose rules say where it may go")
        return None
    return Ask(policy=given["policy"], credentials=given["credentials"], owner=given["owner"])


def limits_of(given: dict[str, Any]) -> "Limits":
    """Return the limits. Raises `click.UsageError`."""
    from tidegate_launcher.job import Limits

    try:
        return Limits(
            seconds=given["seconds"], memory_bytes=given["memory"], cpus=given["cpus"], pids=given["pids"],
            disk_bytes=given["disk"], output_bytes=given["output_bytes"],
        )  # fmt: skip
    except LaunchError as fault:
        raise click.UsageError(str(fault)) from fault
