"""What is done once a command has run: its files copied, the shim's word read."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher.files.outputs import Collected, collect
from tidegate_launcher.net.shimmed import TOLD, fault_of
from tidegate_launcher.order import Order

__all__ = ["Afterwards"]

_WORD_BYTES: Final = 4096


class Afterwards:
    """What is done once a command has run. A fault there is told beside the result, which stands: it has run."""

    def __init__(self, order: Order) -> None:
        self._out, self._shim = order.out, order.net == "uds"
        self.outputs: Collected | None = None
        self.faults: list[str] = []
        self.shim = ""
        """What became of the shim, by its own word: it explains a result, and decides nothing."""

    @property
    def looks(self) -> bool:
        """Whether there is anything to look for in /work."""
        return self._shim or self._out is not None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a fault of ours for later."""
        try:
            yield
        except (LaunchError, OSError) as fault:
            self.faults.append(str(fault))

    def look(self, folder: int) -> None:
        """Look into what the command has left in /work."""
        if self._shim:
            self.shim = fault_of(_word(folder))
        if self._out is not None:
            with self.kept():
                self.outputs = collect(folder, self._out)


def _word(folder: int) -> bytes | None:
    """Return what the shim has written, and take it away: it is no output of the command's."""
    name = Path(TOLD).name
    try:
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with open(found, "rb", buffering=0) as file:
        plain = stat.S_ISREG(os.fstat(found).st_mode)
        word = file.read(_WORD_BYTES) if plain else None
    if plain:
        os.unlink(name, dir_fd=folder)
    return word
