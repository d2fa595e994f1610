"""Where the set-up keeps what it fetched."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder: `TIDEGATE_CACHE`, else one of the user's own. It may not be there."""
    given = environ.get("TIDEGATE_CACHE")
    if given:
        return Path(given)
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache") / "tidegate"
