"""Where a running gate keeps its state and its log, also while its file is being edited and is wrong.

The gate goes on with its last good configuration when a file is broken; whoever wants to ask it, or to revoke a
session, must not wait until the file is whole. Two keys are enough for that, and these are read by themselves.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.config.load import load, load_text
from tidegate.config.problem import ConfigErrors, Problem

__all__ = ["PLACES", "Location", "configuration_file", "locate"]

PLACES: Final = (Path("tidegate.yaml"), Path("/etc/tidegate/tidegate.yaml"))
"""Where a configuration is looked for that nobody names."""

_VARIABLES: Final = frozenset({"HOME", "XDG_STATE_HOME"}) | {
    f"TIDEGATE_{key}{suffix}" for key in ("STATE_DIR", "AUDIT_DIR") for suffix in ("", "_FILE")
}


class Location(NamedTuple):
    """The folders of a gate, and what is wrong with the rest of its configuration."""

    state_dir: Path
    audit_dir: Path
    problems: tuple[Problem, ...] = ()


def configuration_file(environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file when none is named: $TIDEGATE_CONFIG, ./tidegate.yaml, or the system's."""
    if named := environ.get("TIDEGATE_CONFIG"):
        return Path(named)
    return next((place for place in PLACES if place.is_file()), None)


def locate(path: Path | None, *, environ: Mapping[str, str], with_audit: bool) -> Location:
    """Return the folders of the gate of this file.

    Raises `ConfigErrors` when the keys themselves cannot be read: `state_dir`, and `audit` if it is wanted.
    """
    try:
        settings = load(path, environ=environ, flags={})
        return Location(Path(settings.state_dir), Path(settings.audit.dir))
    except ConfigErrors as fault:
        return _salvage(path, environ, ("state_dir", "audit") if with_audit else ("state_dir",), fault)


def _salvage(path: Path | None, environ: Mapping[str, str], keys: tuple[str, ...], fault: ConfigErrors) -> Location:
    try:
        data = path.read_bytes() if path else b""
        kept = "version: 1\n" + "".join(_block(data.decode("utf-8-sig"), key) for key in keys)
        few = {name: value for name, value in environ.items() if name in _VARIABLES}
        settings = load_text(kept.encode(), path, environ=few)
    except (OSError, ValueError, ConfigErrors) as other:
        fault.hint = "give --state-dir to reach a gate whose file is being edited"
        raise fault from other
    return Location(Path(settings.state_dir), Path(settings.audit.dir), tuple(fault.problems))


def _block(text: str, key: str) -> str:
    """Return the lines of one top-level key; `ValueError` when it is there in some form that cannot be cut out."""
    found = re.findall(rf"(?m)^{key}[ \t]*:.*\n?(?:(?:[ \t].*|[ \t]*#.*)?\n)*", text + "\n")
    # In braces, indented or twice: which one is meant, or where it ends, takes a file that can be read.
    if len(found) > 1 or (not found and re.search(rf"(?m)^[^#\n]*\b{key}\b[\"']?[ \t]*:", text)):
        raise ValueError(key)
    return str(found[0]) if found else ""
