"""Where things are: the options that say it, and the places when nobody does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.table import talk
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.config.location import Location

__all__ = [
    "SYSTEM_STATE",
    "also_there",
    "config_option",
    "find_audit",
    "find_config",
    "find_state",
    "must_be_there",
    "need_config",
    "state_options",
]

SYSTEM_STATE: Final = Path("/var/lib/tidegate")
"""Where a gate that root starts has its state, unless its file says otherwise."""
_SHOWN: Final = 5


def config_option[F: Callable[..., object]](function: F) -> F:
    """Add `-c/--config` to a command, as the argument `config`; `find_config` fills in what was not given."""
    option: Callable[[F], F] = click.option(
        "-c",
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Configuration of the gate [default: $TIDEGATE_CONFIG, ./tidegate.yaml, /etc/tidegate/tidegate.yaml].",
    )
    return option(function)


def state_options[F: Callable[..., object]](function: F) -> F:
    """Add `--config` and `--state-dir` to a command: how it finds the running gate."""
    state: Callable[[F], F] = click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Its state folder, in place of the file's.",
    )
    return config_option(state(function))


def find_config(given: Path | None) -> Path | None:
    """Return the configuration file: the given one, $TIDEGATE_CONFIG, ./tidegate.yaml, or the system's."""
    if given is not None:
        must_be_there(given, "configuration")
        return given
    from tidegate.config.location import configuration_file

    return configuration_file(os.environ)


def need_config(given: Path | None, *, by: str = "give --config FILE") -> Path:
    """Return the configuration file as `find_config` does. Raises `ConfigError` when there is none."""
    from tidegate.config.location import PLACES

    found = find_config(given)
    if found is None:
        hint = f"write one (docs/tutorial), or {by}"
        raise ConfigError("there is no configuration", where=str(PLACES[0]), hint=hint)
    return found


def must_be_there(path: Path, option: str) -> None:
    """Raise wrong usage for a file or folder that was named on the command line and does not exist."""
    if not os.path.lexists(path) and os.access(path.parent, os.X_OK):
        raise click.BadParameter(f"there is no {str(path)!r}", param_hint=option)


def find_state(*, config: Path | None, state_dir: Path | None) -> Path:
    """Return the state folder of the gate that the options mean.

    Given, or $TIDEGATE_STATE_DIR, or the configuration's: what else is wrong there is a warning, since the gate runs
    on. Raises `ConfigError` when the folder itself cannot be read.
    """
    if state_dir is not None:
        return state_dir
    if named := os.environ.get("TIDEGATE_STATE_DIR"):
        return Path(named)
    return _locate(config, with_audit=False).state_dir


def also_there(looked_at: Path) -> str:
    """Return, as more of a hint, that a gate has its state where this user did not look; else nothing."""
    if looked_at.is_relative_to(SYSTEM_STATE):
        return ""
    if not any((SYSTEM_STATE / name).exists() for name in ("admin.sock", "gate/admin.sock")):
        return ""
    return f"; a gate has its state in {SYSTEM_STATE}: give --state-dir {SYSTEM_STATE}, as root or its own user"


def find_audit(*, config: Path | None, state_dir: Path | None) -> Path:
    """Return the audit directory of the gate that the options mean; see `find_state`."""
    if state_dir is not None and config is None:
        return state_dir / "audit"
    return _locate(config, with_audit=True).audit_dir


def _locate(config: Path | None, *, with_audit: bool) -> "Location":
    from tidegate.config.location import locate

    path = find_config(config)
    found = locate(path, environ=os.environ, with_audit=with_audit)
    ctx = click.get_current_context(silent=True)
    said = ctx.meta if ctx is not None else {}
    if found.problems and not said.get(__name__):
        said[__name__] = True
        talk("warning: the file has errors; a running gate goes on with what it had before them")
        for problem in found.problems[:_SHOWN]:
            talk(f"warning: {problem}")
        if (more := len(found.problems) - _SHOWN) > 0:
            talk(f"warning: and {more} more; see `tidegate policy check`")
    return found
