"""`tidegate up`: starts the keeper and the workers, keeps them running, reloads them, ends them.

| event | what happens |
|---|---|
| start | folders, keeper and zygote side by side, workers, admin sockets; `ready` on stderr |
| SIGHUP, a changed file, `POST /v1/reload` | two-phase reload (`reload.py`) |
| a child ends | it is started again with back-off; a line here, a fault in the audit log |
| SIGTERM, SIGINT | workers drain to a deadline, then everything ends |
| the second SIGTERM or SIGINT | everything ends at once |

It holds no secret of its own making and reads no byte of a sandbox's.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from tidegate import __version__
from tidegate.config.load import Loaded, load_all
from tidegate.config.model import Settings, encode_gate, encode_keeper
from tidegate.errors import ConfigError, KeeperError, TidegateError
from tidegate.keeper.protocol import AdminAsk, ConfigRefused, FaultReport, KeeperStatus, SessionOpened, Status
from tidegate.runtime.admin import AdminServer, Readiness, admin_routes, harness_routes
from tidegate.runtime.children import clean_environment
from tidegate.runtime.confine import limit
from tidegate.runtime.dangers import dangers
from tidegate.runtime.fleet import Fleet
from tidegate.runtime.ground import claim, prepare_ground
from tidegate.runtime.herald import tell_ready, tell_stopping
from tidegate.runtime.identity import identities
from tidegate.runtime.keeper_child import KeeperChild
from tidegate.runtime.opened import OpenedSession, opened_session, proxy_url
from tidegate.runtime.reload import (
    FileWatch,
    Participant,
    check_variables,
    needs_restart,
    source_variables,
    two_phase,
)
from tidegate.runtime.reports import Report, Reports

__all__ = ["Half", "Options", "Supervisor", "serve"]

_log = logging.getLogger(__name__)

type Half = Literal["gate", "keeper"]

_POLL_SECONDS: Final = 2.0
_START_SECONDS: Final = 60.0
_FAULTS: Final = 50


class Options(msgspec.Struct, frozen=True):
    """How the gate was started."""

    config: Path | None = None
    only: Half | None = None
    proxy_host: str | None = None
    drain_seconds: float = 10.0
    flags: dict[str, object] = {}


class Supervisor:
    """One running gate, or one half of it."""

    def __init__(self, options: Options, loaded: Loaded, environ: Mapping[str, str]) -> None:
        settings = loaded.settings
        self._options = options
        self._environ = environ
        self._settings = settings
        self._lint = _lint(loaded)
        # As it is now, also for a keeper that is started again: what a reload takes in must not hang on that.
        self._variables = frozenset(source_variables(settings).values())
        self._who = identities()
        self._epoch = int(time.time())  # above every epoch of an earlier start, whatever became of that
        self._begun = time.monotonic()
        self._reloading = asyncio.Lock()
        self._reload_problem = ""
        self._ready = False
        self._faults: deque[Mapping[str, object]] = deque(maxlen=_FAULTS)
        self._stops = 0
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._hup = asyncio.Event()
        self._watch = FileWatch(loaded.files)
        self._reports = Reports(self._tell)
        self._delivering: asyncio.Task[None] | None = None
        self._keeper = self._make_keeper() if options.only != "gate" else None
        self._fleet = self._make_fleet() if options.only != "keeper" else None
        state = Path(settings.state_dir)
        name = "admin-gate.sock" if options.only == "gate" else "admin.sock"
        self._servers = [AdminServer(state / name, admin_routes(self), public=False)]
        if self._keeper is not None:
            self._servers.append(AdminServer(state / "session.sock", harness_routes(self), public=True))

    def _make_keeper(self) -> KeeperChild:
        return KeeperChild(
            identity=self._who.keeper,
            minter=self._who.minter,
            gate=self._who.gate,
            state=Path(self._settings.state_dir),
            proxy_url=proxy_url(self._settings, None, self._options.proxy_host),
            environment=self._keeper_environment,
            settings=lambda: (self._epoch, encode_keeper(self._settings.for_keeper())),
            on_fault=self._fault,
        )

    def _make_fleet(self) -> Fleet:
        return Fleet(
            count=self._settings.workers or len(os.sched_getaffinity(0)),
            identity=self._who.gate,
            keeper_socket=Path(self._settings.state_dir) / "keeper.sock",
            environment=clean_environment(self._environ),
            settings=lambda: (self._epoch, encode_gate(self._settings.for_gate())),
            on_fault=self._fault,
        )

    def _keeper_environment(self) -> dict[str, str]:
        """The keeper alone gets the variables that sources name (invariant 5)."""
        names = {"TIDEGATE_SEAL_KEY_FILE"}
        for variable in self._variables:
            names |= {variable, f"{variable}_FILE"}
        return clean_environment(self._environ, sorted(names))

    # ---- life ------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop; return the exit code. Raises `TidegateError` when it cannot start."""
        prepare_ground(self._settings, self._who)
        halves = (self._options.only,) if self._options.only else ("keeper", "gate")
        self._claim = claim(Path(self._settings.state_dir), halves)  # released by the end of the process
        limit()
        self._handle_signals()
        for warning in (*self.dangers(), *sorted(self._lint)):
            _log.warning("%s", warning)
        async with asyncio.TaskGroup() as group:
            try:
                await self._live(group)
            finally:
                await self._end_now()
        return 0

    async def _live(self, group: asyncio.TaskGroup) -> None:
        for child in (self._keeper, self._fleet):
            if child is not None:
                group.create_task(child.run(), name=child.name)
        if self._keeper is not None:
            self._delivering = group.create_task(self._reports.deliver_forever(), name="reports")
        starting = group.create_task(self._start())
        stopping = group.create_task(self._stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        else:
            starting.result()
            poll = group.create_task(self._poll())
            hup = group.create_task(self._take_hups())
            await stopping
            poll.cancel()
            hup.cancel()
        stopping.cancel()
        await self._drain(group)

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                if self._keeper is not None:
                    await self._keeper.wait_ready()
                if self._fleet is not None:
                    await self._fleet.wait_ready()
                for server in self._servers:
                    await server.start()
        except TimeoutError:
            raise TidegateError(
                f"the gate was not ready within {_START_SECONDS:g} s", hint="see the lines above; is the machine busy?"
            ) from None
        self._ready = True
        _log.info("%s", self._banner())
        tell_ready()

    def _banner(self) -> str:
        what = self._options.only or "gate and keeper"
        http = self._settings.listen.http
        where = f", HTTP proxy on {http[0]}:{http[1]}" if http and self._fleet is not None else ""
        return f"ready ({what}{where}, {time.monotonic() - self._begun:.1f} s)"

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        seconds = self._options.drain_seconds
        tell_stopping()
        if self._fleet is None:
            return
        if self._ready:
            _log.info("stopping: connections have %g s to finish", seconds)
        draining = group.create_task(self._fleet.drain(seconds if self._ready else 0.0))
        killing = group.create_task(self._kill.wait())
        await asyncio.wait([draining, killing], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        killing.cancel()

    async def _end_now(self) -> None:
        # Workers first: the keeper signs the last checkpoints of chains that have ended.
        if self._fleet is not None:
            await self._fleet.end()
        for server in self._servers:
            await server.close()
        if self._delivering is not None:
            self._delivering.cancel()
        if self._keeper is not None:
            with contextlib.suppress(KeeperError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._reports.deliver()
            await self._keeper.end(grace=0.2 if self._kill.is_set() else 3.0)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hup.set)

    def stop(self) -> None:
        """Begin to end; the second time, end at once."""
        self._stops += 1
        self._stop.set()
        if self._stops > 1:
            self._kill.set()

    # ---- reload ----------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._watch.changed():
                await self._reload_quietly("a changed file")

    async def _take_hups(self) -> None:
        while True:
            await self._hup.wait()
            self._hup.clear()
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
            try:
                changed = await self._reload()
            except TidegateError as fault:
                self._reload_problem = f"the configuration is invalid and was not taken: {fault}"
                for line in _lines(fault):
                    _log.error("reload (%s): %s", cause, line)
                _log.error("reload (%s): the old configuration stays in force", cause)
                self._note(self._reload_problem)
                self._report(ConfigRefused(str(self._options.config or ""), tuple(_lines(fault))))
                raise
            self._reload_problem = ""
            spent = time.monotonic() - begun
            if changed:
                _log.info(
                    "reloaded (%s): epoch %d, policy %s, %.2f s", cause, self._epoch, self._settings.hash[:12], spent
                )
            return {"changed": changed, "epoch": self._epoch, "hash": self._settings.hash, "seconds": round(spent, 3)}

    async def _reload(self) -> bool:
        options = self._options
        loaded = await asyncio.to_thread(load_all, options.config, environ=self._environ, flags=options.flags)
        new = loaded.settings
        if new.hash == self._settings.hash:
            self._watch.follow(loaded.files)
            self._take_lint(loaded)
            return False
        if keys := needs_restart(self._settings, new):
            raise ConfigError(
                f"{', '.join(keys)} cannot change while the gate runs", hint="restart it, or change it back"
            )
        if self._keeper is not None:
            check_variables(self._variables, loaded)
        offers: list[tuple[Participant, bytes]] = []
        if self._keeper is not None:
            offers.append((self._keeper, encode_keeper(new.for_keeper())))
        if self._fleet is not None:
            offers.append((self._fleet, encode_gate(new.for_gate())))
        epoch = self._epoch + 1
        old = self._settings
        await two_phase(epoch, offers, decided=lambda: self._switch(epoch, new))
        for danger in sorted(set(self.dangers()) - set(dangers(old, self._who))):
            _log.warning("%s", danger)
        self._watch.follow(loaded.files)
        self._take_lint(loaded)
        return True

    def _take_lint(self, loaded: Loaded) -> None:
        """Say what lint has found that it had not found before."""
        found = _lint(loaded)
        for warning in sorted(found - self._lint):
            _log.warning("%s", warning)
        self._lint = found

    def _switch(self, epoch: int, new: Settings) -> None:
        # From here on a child that starts gets the new settings, whatever happens to the commits.
        self._epoch, self._settings = epoch, new

    # ---- what the admin API asks -----------------------------------------------------------------

    def dangers(self) -> list[str]:
        """Return the dangerous settings in force."""
        return dangers(self._settings, self._who, split=self._options.only is None)

    async def readiness(self) -> Readiness:
        """Return whether the gate serves, and what keeps it from it."""
        problems = [] if self._ready else ["the gate is starting"]
        if self._keeper is not None:
            problems += [f"keeper: {text}" for text in await self._keeper_problems()]
        if self._fleet is not None:
            problems += self._fleet.problems()
        warnings = [*([self._reload_problem] if self._reload_problem else []), *self.dangers()]
        return Readiness(ready=not problems, problems=tuple(problems), warnings=tuple(warnings))

    async def _keeper_problems(self) -> tuple[str, ...]:
        try:
            return (await self._keeper_status()).problems
        except KeeperError as fault:
            return (str(fault),)

    async def _keeper_status(self) -> KeeperStatus:
        return await self.ask(Status(), KeeperStatus)

    async def status(self) -> Mapping[str, object]:
        """Return everything an operator may know about the running gate."""
        keeper: object = None
        if self._keeper is not None:
            try:
                keeper = await self._keeper_status()
            except KeeperError as fault:
                keeper = {"problems": [str(fault)]}
        readiness = await self.readiness()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_seconds": round(time.monotonic() - self._begun, 1),
            "config": str(self._options.config) if self._options.config else None,
            "state_dir": self._settings.state_dir,
            "listen": self._settings.listen,
            "policies": sorted(self._settings.policies),
            "epoch": self._epoch,
            "hash": self._settings.hash,
            "ready": readiness.ready,
            "problems": readiness.problems,
            "warnings": readiness.warnings,
            "uids": {role: getattr(self._who, role).uid for role in ("keeper", "gate", "minter")},
            "workers": [
                {
                    **worker.status,
                    "index": worker.index,
                    "pid": worker.pid,
                    "ready": worker.ready,
                    "epoch": worker.epoch,  # ours last: the worker's own is as old as its last status
                }
                for worker in (self._fleet.workers if self._fleet else ())
            ],
            "keeper": keeper,
            "faults": list(self._faults),
        }

    async def ask[T](self, ask: AdminAsk, kind: type[T]) -> T:
        """Ask the keeper. Raises `KeeperError`."""
        if self._keeper is None:
            raise KeeperError("this half of the gate has no keeper", hint="ask the half that runs with --only keeper")
        return await self._keeper.ask(ask, kind)

    def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
        """Return what the opener of a session gets."""
        return opened_session(self._settings, session, host=host or self._options.proxy_host)

    def _fault(self, report: FaultReport) -> None:
        """Keep a fault for the status, and have it put on record."""
        self._note(report.detail)
        self._report(report)

    def _note(self, text: str) -> None:
        self._faults.append({"ts": time.time(), "what": text})

    def _report(self, report: Report) -> None:
        if self._keeper is not None:  # a gate on its own has no one to tell: the other half sees its links end
            self._reports.put(report)

    async def _tell(self, report: Report) -> None:
        await self.ask(report, type(None))


def _lint(loaded: Loaded) -> frozenset[str]:
    """Return what lint has to say beside what `dangers` says of the same."""
    return frozenset(text for text in map(str, loaded.warnings) if not text.endswith("[unsafe_wildcard]"))


def _lines(fault: TidegateError) -> list[str]:
    problems = getattr(fault, "problems", None)
    return [str(problem) for problem in problems] if problems else [str(fault)]


def serve(options: Options) -> int:
    """Load the configuration and run the gate; return the exit code. Raises `TidegateError`."""
    loaded = load_all(options.config, environ=os.environ, flags=options.flags)

    async def run() -> int:
        return await Supervisor(options, loaded, dict(os.environ)).run()

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as group:
        raise _telling(group) from group
    finally:
        sys.stderr.flush()


def _telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one fault in a group that an operator must hear: ours before a defect."""
    ours = group.subgroup(TidegateError)
    fault = (ours or group).exceptions[0]
    return _telling(fault) if isinstance(fault, BaseExceptionGroup) else fault
