"""Builds the C programs of the bench on first use."""

import functools
import subprocess
from pathlib import Path

__all__ = ["program"]

_HERE = Path(__file__).parent


@functools.cache
def program(name: str) -> Path:
    """Return the path of `load` or `events`, built when its source is newer."""
    done = subprocess.run(["make", "-s", "-C", str(_HERE), f"build/{name}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"cannot build {name} (gcc and libssl-dev are needed):\n{done.stderr}")
    return _HERE / "build" / name
