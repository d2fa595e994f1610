"""A gate whose wall clock can be moved: hours of a budget's window in a moment.

    with wall_clock() as clock, gate(config, env=clock.env) as running:
        clock.offset = 3600

Every process of the gate reads the offset; the boot clock, by which lifetimes run, stays as it is.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.lab.folder import open_folder
from tests.lab.gate import ROOT

__all__ = ["WallClock", "wall_clock"]

_SITE = """
import os, tidegate.clock
_file = os.path.join(os.path.dirname(__file__), "offset")
_wall = tidegate.clock.SystemClock.wall
def wall(self):
    try:
        with open(_file) as file:
            return _wall(self) + float(file.read() or 0)
    except OSError:
        return _wall(self)
tidegate.clock.SystemClock.wall = wall
"""


class WallClock:
    """The clock of one gate; see the module's text."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        path = [folder, *(ROOT / part for part in ("proxy", "addons", "launcher"))]
        self.env = {"PYTHONPATH": os.pathsep.join(map(str, path))}
        self.offset = 0.0

    @property
    def offset(self) -> float:
        """Seconds ahead of the machine's clock."""
        return float(self._file.read_text())

    @offset.setter
    def offset(self, seconds: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)


@contextlib.contextmanager
def wall_clock() -> Iterator[WallClock]:
    """Make a clock for a gate."""
    with open_folder() as folder:
        (folder / "sitecustomize.py").write_text(_SITE)
        yield WallClock(folder)
