"""Where things are: the options that say it, and the places when nobody does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from tidegate.errors import ConfigError

__all__ = ["config_option", "find_config", "find_state", "state_options"]

_PLACES: Final = (Path("tidegate.yaml"), Path("/etc/tidegate/tidegate.yaml"))


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
        return given
    if named := os.environ.get("TIDEGATE_CONFIG"):
        return Path(named)
    return next((place for place in _PLACES if place.is_file()), None)


def find_state(*, config: Path | None, state_dir: Path | None) -> Path:
    """Return the state folder of the gate that the options mean.

    Given, or $TIDEGATE_STATE_DIR, or the configuration's. Raises `ConfigError` when that cannot be read.
    """
    if state_dir is not None:
        return state_dir
    if named := os.environ.get("TIDEGATE_STATE_DIR"):
        return Path(named)
    from tidegate.config.load import load

    try:
        return Path(load(find_config(config), environ=os.environ, flags={}).state_dir)
    except ConfigError as fault:
        fault.hint = fault.hint or "give --state-dir to reach a gate whose file is being edited"
        raise
