"""Change the configuration of a running gate: everything, or nothing (invariant 8).

| phase | who | on failure |
|---|---|---|
| load | supervisor: read, validate, nothing else | old settings everywhere |
| prepare | keeper and workers side by side: check, compile, hold beside the old | old settings everywhere |
| commit | keeper, then workers: switch to what is held, by epoch | who cannot switch is ended and starts with the new |

The keeper switches first: what it has taken away is gone before a worker could still allow its use, and what it has
added is there before a worker allows it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from tidegate.config.load import Loaded
from tidegate.config.model import EnvSource, Settings
from tidegate.config.origin import key_line
from tidegate.config.problem import ConfigErrors, Problem
from tidegate.errors import ConfigError, TidegateError

__all__ = ["NotPrepared", "Participant", "check_variables", "needs_restart", "source_variables", "two_phase"]


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


class NotPrepared(ConfigError):
    """A participant refused good settings as things stand; it may take the same ones later."""


async def two_phase(epoch: int, offers: Sequence[tuple[Participant, bytes]], *, decided: Callable[[], None]) -> None:
    """Have all participants prepare, side by side, and only then all of them commit, in order.

    `decided` is called between the phases: unless it raises, there is no way back from then on.
    Raises `NotPrepared` when one cannot prepare; nothing has changed then.
    """
    asks = [participant.prepare(epoch, settings) for participant, settings in offers]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    refused: list[str] = []
    for (participant, _), answer in zip(offers, answers, strict=True):
        if isinstance(answer, TidegateError | TimeoutError):
            what = str(answer) or "no answer in time"
            refused.append(f"{participant.name} cannot take the new configuration: {what}")
        elif answer is not None:
            raise answer  # a defect of ours, which no refusal may hide
    if refused:
        raise NotPrepared("; ".join(refused), hint="the old one stays in force")
    decided()
    for participant, _ in offers:
        await participant.commit(epoch)


def needs_restart(old: Settings, new: Settings) -> list[str]:
    """Return the keys that differ and cannot change under a running gate."""
    found = [key for key in ("state_dir", "listen", "workers") if getattr(old, key) != getattr(new, key)]
    if old.dns.answer != new.dns.answer:
        found.append("dns.answer")  # where names lead is settled when the responder is opened
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
