"""Which settings a keeper on its own has in force: a word that it leaves in the state folder for its gate.

Each half reads the configuration for itself. The gate takes none that its keeper has not in force, and is not ready
where the word is another one or none (invariant 8). So the word is never one that is not so, whatever fails:

| step | the word | what a failure or a crash there comes to |
|---|---|---|
| `begin` writes the next word beside it | old | nothing has changed, and the reload is refused everywhere |
| `begin` takes the old word away | none | refused as well; after a crash no gate is ready until a keeper has started |
| the keeper switches | none | no gate is ready until a keeper has started |
| `say` puts the next word in its place, for which no space is needed any more | new | no gate is ready; tried again |
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from tidegate.errors import ConfigError
from tidegate.runtime.two_phase import NotPrepared

__all__ = ["InForce"]

_LOOK_SECONDS: Final = 0.1
_AGREE_SECONDS: Final = 8.0
"""How long a keeper may need longer than its gate: it looks for changes every two seconds, as the gate does."""

_HINT: Final = "the keeper's user must own the state folder, and its disk must have space"


class InForce:
    """The word in a state folder: the `keeper_hash` of the settings in force, or nothing."""

    def __init__(self, state: Path) -> None:
        self._word = state / "settings.hash"
        self._next = state / "settings.new"

    # ---- the keeper's side -----------------------------------------------------------------------

    def begin(self, digest: str) -> None:
        """Make ready to say `digest`, and take the old word back. Raises `NotPrepared`; the old word stays then."""
        try:
            self._write_next(digest)
            self._word.unlink(missing_ok=True)
        except OSError as fault:
            raise NotPrepared(
                f"the gate could not be told: {fault.strerror}", where=str(fault.filename or self._next), hint=_HINT
            ) from fault

    def withdraw(self) -> None:
        """Take back what an earlier keeper has said. Raises `ConfigError`."""
        try:
            self._word.unlink(missing_ok=True)
        except OSError as fault:
            raise ConfigError(f"cannot be removed: {fault.strerror}", where=str(self._word), hint=_HINT) from fault

    def say(self, digest: str) -> None:
        """Say which settings are in force. Raises `ConfigError`."""
        try:
            if _read(self._next) != digest:
                self._write_next(digest)
            self._next.replace(self._word)
        except OSError as fault:
            raise ConfigError(f"cannot be written: {fault.strerror}", where=str(self._word), hint=_HINT) from fault

    def _write_next(self, digest: str) -> None:
        # As root in a folder of the keeper's user, maybe: only into a file that is made here, never by a link.
        self._next.unlink(missing_ok=True)
        descriptor = os.open(self._next, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{digest}\n")

    # ---- the gate's side -------------------------------------------------------------------------

    def read(self) -> str:
        """Return the hash of the settings that the keeper has in force; empty when it has said none."""
        return _read(self._word)

    def against(self, digest: str) -> str:
        """Say what keeps a gate with these settings from serving; empty when nothing does."""
        word = self.read()
        if word == digest:
            return ""
        if not word:
            return "the keeper does not say which configuration it has in force"
        return "the keeper has not taken this configuration"

    async def agrees(self, digest: str) -> None:
        """Wait until the keeper has these settings in force. Raises `NotPrepared` when it does not."""
        end = time.monotonic() + _AGREE_SECONDS
        while what := self.against(digest):
            if time.monotonic() > end:
                raise NotPrepared(what, hint="see its own log, or `tidegate health` where it runs")
            await asyncio.sleep(_LOOK_SECONDS)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
