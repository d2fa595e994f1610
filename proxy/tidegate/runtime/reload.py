"""Change the configuration of a running gate: everything, or nothing (invariant 8).

| phase | who | on failure |
|---|---|---|
| load | supervisor: read, validate, nothing else | old settings everywhere |
| prepare | keeper, then workers: check, compile, hold beside the old | old settings everywhere |
| commit | keeper, then workers: switch to what is held, by epoch | who cannot switch is ended and starts with the new |

The keeper switches first: what it has taken away is gone before a worker could still allow its use, and what it has
added is there before a worker allows it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidegate.config.model import Settings
from tidegate.errors import ConfigError, TidegateError

__all__ = ["FileWatch", "Participant", "needs_restart", "two_phase"]


class Participant(Protocol):
    """Someone who holds settings and can switch to others."""

    @property
    def name(self) -> str:
        """Who it is, in messages."""
        ...

    async def prepare(self, epoch: int, settings: bytes) -> None:
        """Check and hold the settings. Raises `TidegateError` or `TimeoutError`."""
        ...

    async def commit(self, epoch: int) -> None:
        """Switch to the settings held for this epoch."""
        ...


async def two_phase(epoch: int, offers: Sequence[tuple[Participant, bytes]], *, decided: Callable[[], None]) -> None:
    """Have all participants prepare, in order, and only then all of them commit, in order.

    `decided` is called between the phases: there is no way back from then on.
    Raises `ConfigError` when one cannot prepare; nothing has changed then.
    """
    for participant, settings in offers:
        try:
            await participant.prepare(epoch, settings)
        except (TidegateError, TimeoutError) as fault:
            what = str(fault) or "no answer in time"
            raise ConfigError(
                f"{participant.name} cannot take the new configuration: {what}", hint="the old one stays in force"
            ) from fault
    decided()
    for participant, _ in offers:
        await participant.commit(epoch)


def needs_restart(old: Settings, new: Settings) -> list[str]:
    """Return the keys that differ and cannot change under a running gate."""
    found = [key for key in ("state_dir", "listen", "workers") if getattr(old, key) != getattr(new, key)]
    if old.audit.dir != new.audit.dir:
        found.append("audit.dir")
    return found


type _Mark = tuple[int, int, int]


class FileWatch:
    """Tells whether a configuration has changed, by the stat of every YAML and lock file in its folder.

    The folder, not the file: editors and mounted volumes replace files instead of writing them.
    """

    def __init__(self, file: Path | None, others: Iterable[Path] = ()) -> None:
        self._folders = sorted({path.parent for path in (*others, *([file] if file else []))})
        self._seen = self._look()

    def changed(self) -> bool:
        """Return whether anything differs from the last look."""
        now = self._look()
        changed, self._seen = now != self._seen, now
        return changed

    def _look(self) -> Mapping[str, _Mark]:
        marks: dict[str, _Mark] = {}
        for folder in self._folders:
            try:
                names = sorted(os.listdir(folder))
            except OSError:
                continue  # a folder that is being replaced; the next look sees the new one
            for name in names:
                if name.endswith((".yaml", ".yml", ".lock")):
                    path = folder / name
                    try:
                        stat = path.stat()
                    except OSError:
                        continue
                    marks[str(path)] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return marks
