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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidegate.config.load import Loaded
from tidegate.config.model import EnvSource, Settings
from tidegate.config.origin import key_line
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import ConfigError, TidegateError

__all__ = ["FileWatch", "Participant", "check_variables", "needs_restart", "source_variables", "two_phase"]


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


def source_variables(settings: Settings) -> dict[str, str]:
    """Return credential -> the environment variable that its secret comes from."""
    return {name: source.variable for name, source in settings.sources.items() if isinstance(source, EnvSource)}


def check_variables(given: Collection[str], new: Loaded) -> None:
    """Refuse a secret in a variable that the keeper did not get at its start. Raises `ConfigErrors`."""
    problems = [
        Problem(
            new.file,
            key_line(new.root, ("credentials", name, "source")),
            f"credentials.{name}.source",
            f"{variable} needs a restart: the keeper's environment is fixed at its start; `file` and `command` are not",
        )
        for name, variable in source_variables(new.settings).items()
        if variable not in given
    ]
    if problems:
        raise ConfigErrors(problems)


type _Mark = tuple[int, int, int]


class FileWatch:
    """Tells whether a configuration has changed, by the stat of its files and of all YAML and locks beside them.

    Those too, since a file that it names may not be there yet: then there is no other sign of its coming.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: frozenset[Path] = frozenset(files)
        self._seen = self._look()

    def follow(self, files: Iterable[Path]) -> None:
        """Watch these from now on. One that is new counts as a change, since it may have become another meanwhile."""
        self._files = frozenset(files)

    def changed(self) -> bool:
        """Return whether anything differs from the last look."""
        now = self._look()
        changed, self._seen = now != self._seen, now
        return changed

    def _look(self) -> Mapping[Path, _Mark]:
        marks: dict[Path, _Mark] = {}
        paths = {path for folder in {file.parent for file in self._files} for path in _kin(folder)}
        for path in self._files | paths:
            try:
                stat = path.stat()
            except OSError:
                continue
            marks[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return marks


def _kin(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.endswith((".yaml", ".yml", ".lock"))]
    except OSError:
        return []  # a folder that is being replaced; the next look sees the new one
