"""Which gate is meant when none is named: the same one that the command line would find."""

import os
from pathlib import Path

from tidegate.config.location import configuration_file, locate

__all__ = ["audit_folder", "state_folder"]


def state_folder(given: str | Path | None = None) -> Path:
    """Return the state folder of the gate: given, $TIDEGATE_STATE_DIR, or that of the configuration file.

    The file is $TIDEGATE_CONFIG, `./tidegate.yaml` or `/etc/tidegate/tidegate.yaml`; without one it is where a gate of
    this user has its state. Raises `ConfigError`.
    """
    named = given or os.environ.get("TIDEGATE_STATE_DIR")
    if named:
        return Path(named)
    return locate(configuration_file(os.environ), environ=os.environ, with_audit=False).state_dir


def audit_folder(given: str | Path | None = None) -> Path:
    """Return the folder with the gate's log: that of the given state folder, else as `state_folder` finds it."""
    if given:
        return Path(given) / "audit"
    return locate(configuration_file(os.environ), environ=os.environ, with_audit=True).audit_dir
