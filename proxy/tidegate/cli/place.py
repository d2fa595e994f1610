"""Where things are when nobody says: the configuration file and the state folder."""

import os
from pathlib import Path
from typing import Final

from tidegate.errors import ConfigError

__all__ = ["find_config", "find_state"]

_PLACES: Final = (Path("tidegate.yaml"), Path("/etc/tidegate/tidegate.yaml"))


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
