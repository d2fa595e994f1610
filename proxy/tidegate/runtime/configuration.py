"""The configuration in force, and how the next one is taken in its place: everywhere, or nowhere (`two_phase.py`)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tidegate.config.load import Loaded
from tidegate.config.model import Settings
from tidegate.errors import ConfigError, TidegateError
from tidegate.runtime.file_watch import FileWatch
from tidegate.runtime.in_force import InForce
from tidegate.runtime.two_phase import (
    NotPrepared,
    Participant,
    check_variables,
    needs_restart,
    source_variables,
    two_phase,
)

__all__ = ["Configuration"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 30.0
_AGAIN: Final = "another try"

type Encode = Callable[[Settings], bytes]


class Configuration:
    """Settings, epoch, and what lint says of them; reloads on a changed file, on SIGHUP, and when asked.

    `with_keeper`: the keeper runs here, whose environment is fixed. `load` reads the file again, `dangers` says
    what in settings is dangerous, and `refused` is told of each configuration not taken, with its problems. Where the
    halves run apart, a gate's `agreed` waits for its keeper; a keeper says by `in_force` which settings it has, and
    `untold` hears when it cannot.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        with_keeper: bool,
        load: Callable[[], Loaded],
        dangers: Callable[[Settings], list[str]],
        refused: Callable[[str, list[str]], None],
        agreed: Callable[[Settings], Awaitable[None]] | None = None,
        in_force: InForce | None = None,
        untold: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = loaded.settings
        self.epoch = int(time.time())  # above every epoch of an earlier start, whatever became of that
        # As it is now, also for a keeper that is started again: what a reload takes in must not hang on that.
        self.variables = frozenset(source_variables(loaded.settings).values())
        self.lint = _lint(loaded)
        self.restart: ConfigError | None = None
        """What only a restart could take, of the file as it was last read."""
        self.hup = asyncio.Event()
        self._load = load
        self._dangers = dangers
        self._refused = refused
        self._agreed = agreed
        self._in_force = in_force
        self._tell_untold = untold
        self._refusal = ""
        self._untold = ""
        self._reloading = asyncio.Lock()
        self._watch = FileWatch(loaded.files)
        self._participants: list[tuple[Participant, Encode]] = []
        self._with_keeper = with_keeper
        self._again: float | None = None
        """When to try once more what was refused as things stood; None: there is no such thing."""

    @property
    def problem(self) -> str:
        """What is wrong now with a configuration that was not taken, or that the gate was not told of; else empty."""
        return "; ".join(filter(None, (self._refusal, self._untold)))

    def offer_to(self, participant: Participant, encode: Encode) -> None:
        """Have it take part in reloads, after those before; `encode` makes what it may know of the settings."""
        self._participants.append((participant, encode))

    async def poll(self) -> None:
        """Reload whenever a file has changed; try again what could not be done as things stood."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._watch.changed():
                await self._reload_quietly("a changed file")
            elif self._again is not None and time.monotonic() >= self._again:
                await self._reload_quietly(_AGAIN)
            if self._untold:
                async with self._reloading:  # between the phases of a reload there is nothing to tell
                    self._tell()

    async def settle(self) -> None:
        """Wait until no reload is under way."""
        async with self._reloading:
            pass

    def try_again(self) -> None:
        """Try soon what was refused as things stood: they have changed."""
        if self._again is not None:
            self._again = 0.0

    async def take_hups(self) -> None:
        """Reload whenever `hup` is set."""
        while True:
            await self.hup.wait()
            self.hup.clear()
            await self._reload_quietly("SIGHUP")

    async def _reload_quietly(self, cause: str) -> None:
        try:
            await self.reload(cause)
        except TidegateError:
            pass  # `reload` has said it where it is read: stderr, audit log, readyz

    async def reload(self, cause: str) -> Mapping[str, object]:
        """Load the file again and switch to it, everywhere or nowhere. Raises `ConfigError`."""
        async with self._reloading:
            begun = time.monotonic()
            self._again = None
            try:
                changed = await self._reload()
            except TidegateError as fault:
                if isinstance(fault, NotPrepared):
                    self._again = time.monotonic() + _AGAIN_SECONDS
                self._refuse(cause, fault)
                raise
            self._refusal = ""
            spent = time.monotonic() - begun
            if changed:
                _log.info(
                    "reloaded (%s): epoch %d, policy %s, %.2f s", cause, self.epoch, self.settings.hash[:12], spent
                )
            return {"changed": changed, "epoch": self.epoch, "hash": self.settings.hash, "seconds": round(spent, 3)}

    def _refuse(self, cause: str, fault: TidegateError) -> None:
        before, self._refusal = self._refusal, f"the configuration is invalid and was not taken: {fault}"
        if cause == _AGAIN and self._refusal == before:
            return  # it has been said; each try would say it again for as long as it lasts
        problems = getattr(fault, "problems", None)
        lines = [str(problem) for problem in problems] if problems else [str(fault)]
        for line in lines:
            _log.error("reload (%s): %s", cause, line)
        _log.error("reload (%s): the old configuration stays in force", cause)
        self._refused(self._refusal, lines)

    async def _reload(self) -> bool:
        self.restart = None
        loaded = await asyncio.to_thread(self._load)
        old, new = self.settings, loaded.settings
        if changed := new.hash != old.hash:
            await self._switch_to(loaded)
            for danger in sorted(set(self._dangers(new)) - set(self._dangers(old))):
                _log.warning("%s", danger)
        self._watch.follow(loaded.files)
        self._take_lint(loaded)
        return changed

    async def _switch_to(self, loaded: Loaded) -> None:
        new = loaded.settings
        if keys := needs_restart(self.settings, new):
            self.restart = ConfigError(
                f"{', '.join(keys)} cannot change while the gate runs", hint="restart it, or change it back"
            )
            raise self.restart
        if self._with_keeper:
            check_variables(self.variables, loaded)
        if self._agreed is not None:
            await self._agreed(new)
        epoch = self.epoch + 1

        def decided() -> None:
            if self._in_force is not None:
                self._in_force.begin(new.keeper_hash())  # raises, as long as nothing has changed
            # From here on a child that starts gets the new settings, whatever happens to the commits.
            self.epoch, self.settings = epoch, new

        offers = [(participant, encode(new)) for participant, encode in self._participants]
        try:
            await two_phase(epoch, offers, decided=decided)
        finally:
            if self.settings is new:
                self._tell()

    def _tell(self) -> None:
        """Tell the gate on its own which settings are in force; what cannot be told is said once, and told later."""
        if self._in_force is None:
            return
        before, self._untold = self._untold, ""
        try:
            self._in_force.say(self.settings.keeper_hash())
        except ConfigError as fault:
            self._untold = f"the gate cannot be told which configuration is in force: {fault}"
            if self._untold != before:
                _log.error("%s", self._untold)
                self._tell_untold(self._untold)
            return
        if before:
            _log.info("the gate has been told of epoch %d", self.epoch)

    def _take_lint(self, loaded: Loaded) -> None:
        """Say what lint has found that it had not found before."""
        found = _lint(loaded)
        for warning in sorted(found - self.lint):
            _log.warning("%s", warning)
        self.lint = found


def _lint(loaded: Loaded) -> frozenset[str]:
    """Return what lint has to say beside what `dangers` says of the same."""
    return frozenset(text for text in map(str, loaded.warnings) if not text.endswith("[unsafe_wildcard]"))
