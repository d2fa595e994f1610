"""`tidegate up`: starts the keeper and the workers, keeps them running, reloads them, ends them.

| event | what happens |
|---|---|
| start | folders, keeper and zygote side by side, workers, sockets of the API; `ready` on stderr |
| SIGHUP, a changed file, `POST /v1/reload` | two-phase reload (`configuration.py`) |
| a child ends | it is started again with back-off; a line here, a fault in the audit log |
| SIGTERM, SIGINT | workers drain to a deadline, then everything ends |
| the second SIGTERM or SIGINT | everything ends at once |

It holds no secret of its own making and reads no byte of a sandbox's.
Longer than a module should be, since the order of start and end is to be read on one page.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidegate import __version__
from tidegate.config.load import Loaded, load_all
from tidegate.config.model import Settings, address_text, encode_gate, encode_keeper
from tidegate.errors import KeeperError, LaunchError, TidegateError
from tidegate.keeper.protocol import (
    USERS,
    AdminAsk,
    ConfigRefused,
    FaultReport,
    HarnessRevoke,
    KeeperStatus,
    SessionOpened,
    SessionRevoke,
    Status,
)
from tidegate.runtime.address_claim import claim_addresses
from tidegate.runtime.admin import Readiness, admin_routes, harness_routes, wall_routes
from tidegate.runtime.children import clean_environment
from tidegate.runtime.configuration import Configuration
from tidegate.runtime.confine import limit
from tidegate.runtime.dangers import dangers
from tidegate.runtime.fleet import Fleet
from tidegate.runtime.ground import check_ground, claim, clear_pids, gate_folder, prepare_ground
from tidegate.runtime.herald import tell_ready, tell_stopping
from tidegate.runtime.identity import Half, identities
from tidegate.runtime.in_force import InForce
from tidegate.runtime.keeper_child import KeeperChild
from tidegate.runtime.keeper_there import keeper_socket, keeper_there
from tidegate.runtime.launch_server import LaunchServer
from tidegate.runtime.launches import LaunchDesk
from tidegate.runtime.opened import OpenedSession, check_proxy_host, opened_session, proxy_urls
from tidegate.runtime.own import own_devices
from tidegate.runtime.reports import Report, Reports
from tidegate.runtime.unix_server import Callers, UnixServer
from tidegate.runtime.wall_fit import misfits
from tidegate.runtime.walls import Walls, WatchReport
from tidegate.session.identity import SessionId

__all__ = ["Options", "Supervisor", "serve"]

_log = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_FAULTS: Final = 50
_LOOK_SECONDS: Final = 0.1

_WAYS: Final = {
    "listen.http": "HTTP proxy",
    "listen.socks": "SOCKS5",
    "listen.transparent": "transparent",
    "listen.tls": "by name",
    "listen.dns": "DNS",
}


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
        self._who = identities(options.only)
        self._in_force = InForce(Path(settings.state_dir))  # which cannot change while it runs
        self._configuration = Configuration(
            loaded,
            with_keeper=options.only != "gate",
            load=self._load,
            dangers=self._dangers_of,
            refused=self._take_refusal,
            agreed=self._keeper_agrees if options.only == "gate" else None,
            in_force=self._in_force if options.only == "keeper" else None,
            untold=self._take_untold,
        )
        self._begun = time.monotonic()
        self._ready = False
        self._faults: deque[Mapping[str, object]] = deque(maxlen=_FAULTS)
        self._stops = 0
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._reports = Reports(self._tell)
        self._walls = Walls(self._report)
        self._hashed = ("", "")
        """The last settings that `_keeper_hash` was asked for, by their hash, and what it came to."""
        self._delivering: asyncio.Task[None] | None = None
        self._keeper = self._make_keeper() if options.only != "gate" else None
        self._fleet = self._make_fleet() if options.only != "keeper" else None
        if self._keeper is not None:
            self._configuration.offer_to(self._keeper, lambda new: encode_keeper(new.for_keeper()))
        if self._fleet is not None:
            self._configuration.offer_to(self._fleet, lambda new: encode_gate(new.for_gate()))
        state = Path(settings.state_dir)
        place = gate_folder(state) if options.only == "gate" else state
        self._servers: list[UnixServer | LaunchServer] = [
            UnixServer(place / "admin.sock", admin_routes(self), Callers.OWNER),
            UnixServer(place / "wall.sock", wall_routes(self), Callers.ROOT),
        ]
        if self._keeper is not None:
            self._servers.append(UnixServer(state / "session.sock", harness_routes(self), Callers.ANYBODY))
        # A launcher's session needs both halves: the keeper opens it, the workers serve its doors.
        self._launches: LaunchDesk | None = None
        if self._keeper is not None and self._fleet is not None:
            self._launches = LaunchDesk(self.ask, lambda: self._settings, self._fleet.doors)
            self._servers.append(LaunchServer(state / "launch.sock", self._launches))

    @property
    def _settings(self) -> Settings:
        return self._configuration.settings

    def _load(self) -> Loaded:
        return load_all(self._options.config, environ=self._environ, flags=self._options.flags)

    def _keeper_hash(self) -> str:
        """Return the settings' `keeper_hash`, made once for each: health asks for it every two seconds."""
        if self._hashed[0] != self._settings.hash:
            self._hashed = self._settings.hash, self._settings.keeper_hash()
        return self._hashed[1]

    async def _keeper_agrees(self, new: Settings) -> None:
        await self._in_force.agrees(new.keeper_hash())

    def _make_keeper(self) -> KeeperChild:
        return KeeperChild(
            identity=self._who.keeper,
            minter=self._who.minter,
            gate=self._who.gate,
            state=Path(self._settings.state_dir),
            proxy_urls=proxy_urls(self._settings, None, self._options.proxy_host),
            environment=self._keeper_environment,
            settings=lambda: (self._configuration.epoch, encode_keeper(self._settings.for_keeper())),
            on_fault=self._fault,
        )

    def _make_fleet(self) -> Fleet:
        return Fleet(
            count=self._settings.workers or len(os.sched_getaffinity(0)),
            identity=self._who.gate,
            keeper_socket=keeper_socket(Path(self._settings.state_dir)),
            environment=clean_environment(self._environ),
            settings=lambda: (self._configuration.epoch, encode_gate(self._settings.for_gate())),
            on_fault=self._fault,
            on_over=self._session_over,
        )

    def _session_over(self, session: SessionId) -> None:
        if self._launches is not None:
            self._launches.closed(session)

    def _keeper_environment(self) -> dict[str, str]:
        """The keeper alone gets the variables that sources name (invariant 5)."""
        names = {"TIDEGATE_SEAL_KEY_FILE"}
        for variable in self._configuration.variables:
            names |= {variable, f"{variable}_FILE"}
        return clean_environment(self._environ, sorted(names))

    # ---- life ------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop; return the exit code. Raises `TidegateError` when it cannot start."""
        prepare_ground(self._settings, self._who, self._options.only)
        halves: tuple[Half, ...] = (self._options.only,) if self._options.only else ("keeper", "gate")
        self._claim = claim(Path(self._settings.state_dir), halves)  # released by the end of the process
        self._addresses = claim_addresses(self._listens(), tell=self._options.only is None)  # so is this
        if self._options.only == "keeper":
            self._in_force.withdraw()  # before a keeper serves by other settings than the last one did
        limit()
        self._handle_signals()
        for warning in (*self.dangers(), *sorted(self._configuration.lint)):
            _log.warning("%s", warning)
        async with asyncio.TaskGroup() as group:
            try:
                await self._live(group)
            finally:
                await self._end_now()
                clear_pids(self._claim)
        return 0

    def _listens(self) -> list[tuple[str, tuple[str, int]]]:
        return [] if self._fleet is None else list(self._settings.listen.named())

    async def _live(self, group: asyncio.TaskGroup) -> None:
        if self._keeper is not None:
            group.create_task(self._keeper.run(), name=self._keeper.name)
            self._delivering = group.create_task(self._reports.deliver_forever(), name="reports")
        starting = group.create_task(self._start(group))
        stopping = group.create_task(self._stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        else:
            starting.result()
            poll = group.create_task(self._configuration.poll())
            hup = group.create_task(self._configuration.take_hups())
            walls = group.create_task(self._look_at_walls())
            await stopping
            for task in (poll, hup, walls):
                task.cancel()
        stopping.cancel()
        await self._drain(group)

    async def _look_at_walls(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._walls.look()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        if self._keeper is None:
            await self._open_servers()  # first: how the gate is may be asked while it waits
            await keeper_there(keeper_socket(Path(self._settings.state_dir)))
            await self._one_configuration(group)
            check_ground(self._settings, self._who)
            self._begun = time.monotonic()
        if self._fleet is not None:
            group.create_task(self._fleet.run(), name=self._fleet.name)
        try:
            async with asyncio.timeout(_START_SECONDS):
                if self._keeper is not None:
                    await self._keeper.wait_ready()
                    if self._fleet is None:
                        self._in_force.say(self._keeper_hash())
                if self._fleet is not None:
                    await self._fleet.wait_ready()
                if self._keeper is not None:
                    await self._open_servers()
        except TimeoutError:
            raise TidegateError(
                f"the gate was not ready within {_START_SECONDS:g} s", hint="see the lines above; is the machine busy?"
            ) from None
        self._ready = True
        for line in (*self._unenforced(), *(problems := self._wall_problems())):
            _log.info("%s", line)
        _log.info("%s", self._banner("serving, and ready when that is done" if problems else "ready"))
        tell_ready()

    async def _one_configuration(self, group: asyncio.TaskGroup) -> None:
        """Wait until the keeper has this configuration in force, or the file has the keeper's (invariant 8)."""
        if not (against := self._in_force.against(self._keeper_hash())):
            return
        _log.info("waiting: %s", against)
        polling = group.create_task(self._configuration.poll())
        try:
            while self._in_force.against(self._keeper_hash()):
                if self._configuration.restart is not None:
                    raise self._configuration.restart  # nothing is served yet: whoever restarts it, reads the new file
                await asyncio.sleep(_LOOK_SECONDS)
                await self._configuration.settle()  # what is agreed while a reload is under way may be so no more
        finally:
            polling.cancel()

    async def _open_servers(self) -> None:
        if self._launches is not None:
            await self._launches.begin()
        for server in self._servers:
            await server.start()

    def _banner(self, how: str) -> str:
        what = self._options.only or "gate and keeper"
        where = "".join(f", {_WAYS[key]} on {address_text(one)}" for key, one in self._listens())
        return f"{how} ({what}{where}, {time.monotonic() - self._begun:.1f} s)"

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        seconds = self._options.drain_seconds
        tell_stopping()
        if self._launches is not None:
            self._launches.stop()
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
        if self._launches is not None:
            await self._launches.close()
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
        loop.add_signal_handler(signal.SIGHUP, self._configuration.hup.set)

    def stop(self) -> None:
        """Begin to end; the second time, end at once."""
        self._stops += 1
        self._stop.set()
        if self._stops > 1:
            self._kill.set()

    # ---- what the admin API asks -----------------------------------------------------------------

    def dangers(self) -> list[str]:
        """Return the dangerous settings in force."""
        return self._dangers_of(self._settings)

    def _dangers_of(self, settings: Settings) -> list[str]:
        return dangers(settings, self._who)

    async def reload(self, cause: str) -> Mapping[str, object]:
        """Load the file again and switch to it, everywhere or nowhere. Raises `ConfigError`."""
        return await self._configuration.reload(cause)

    def _unenforced(self) -> list[str]:
        return self._fleet.unenforced() if self._fleet is not None else []

    def _wall_problems(self) -> list[str]:
        if self._settings.wall.watch != "required":
            return self._walls.problems(None)
        # Each device by which a sandbox may come: where this half listens for one.
        ways = {address[0] for _, address in self._listens()}
        try:
            here = own_devices()
        except LaunchError as fault:
            return [str(fault)]
        lost = [one for one in ways - {address for address, _ in here} if not _of_no_device(one)]
        found = [
            f"no device has {address} any more: bring it back, or restart the gate where its network was made anew"
            for address in sorted(lost)
        ]
        devices = {device for address, device in here if address in ways and device != "lo"}
        # On loopback alone it serves who shares its namespace, whom no link's wall holds.
        return found + self._walls.problems(devices or ({USERS} if ways and not lost else devices))

    def _wall_misfits(self) -> list[str]:
        """Return which walls are watched that are not this gate's, or were made for another configuration of it."""
        if self._fleet is None:
            return []  # a keeper on its own is in a network of its own
        space = os.stat("/proc/self/ns/net").st_ino
        found = [
            f"wall: {name}: its watch looks at another network namespace than the gate's: restart the watch"
            for name in self._walls.elsewhere(space)
        ]
        try:
            return found or misfits(self._settings, self._walls.made_for(), own_devices())
        except LaunchError as fault:
            return [str(fault)]

    async def readiness(self) -> Readiness:
        """Return whether the gate serves, and what keeps it from it."""
        problems = [] if self._ready else ["the gate is starting"]
        remarks: tuple[str, ...] = ()
        if self._keeper is not None:
            found, remarks = await self._keeper_words()
            problems += [f"keeper: {text}" for text in found]
        if self._fleet is not None:
            problems += self._fleet.problems()
        problems += [*self._wall_problems(), *self._wall_misfits()]
        if self._options.only == "gate" and (against := self._in_force.against(self._keeper_hash())):
            problems.append(f"{against}: see its log")
        warnings = [*([self._configuration.problem] if self._configuration.problem else []), *self.dangers()]
        warnings += [*self._unenforced(), *remarks]
        return Readiness(ready=not problems, problems=tuple(problems), warnings=tuple(warnings))

    async def _keeper_words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the keeper's problems and warnings."""
        try:
            status = await self._keeper_status()
        except KeeperError as fault:
            return (str(fault),), ()
        return status.problems, status.warnings

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
            "listen": self._settings.listen.texts(),
            "policies": sorted(self._settings.policies),
            "epoch": self._configuration.epoch,
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
        answer = await self._keeper.ask(ask, kind)
        if isinstance(ask, SessionRevoke | HarnessRevoke):
            self._configuration.try_again()  # it may have had what a session of the file wants
        return answer

    def wall(self, report: WatchReport) -> None:
        """Take a report of the wall's watch."""
        self._walls.take(report)

    def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
        """Return what the opener of a session gets."""
        return opened_session(self._settings, session, host=host or self._options.proxy_host)

    def _fault(self, report: FaultReport) -> None:
        """Keep a fault for the status, and have it put on record."""
        self._note(report.detail)
        self._report(report)

    def _take_refusal(self, told: str, problems: list[str]) -> None:
        """Keep a configuration that was not taken for the status, and have it put on record."""
        self._note(told)
        self._report(ConfigRefused(str(self._options.config or ""), tuple(problems)))

    def _take_untold(self, told: str) -> None:
        """Keep for the status, and have put on record, that the gate does not know what is in force."""
        self._fault(FaultReport("config_untold", told))

    def _note(self, text: str) -> None:
        self._faults.append({"ts": time.time(), "what": text})

    def _report(self, report: Report) -> None:
        if self._keeper is not None:  # a gate on its own has no one to tell: the other half sees its links end
            self._reports.put(report)

    async def _tell(self, report: Report) -> None:
        await self.ask(report, type(None))


def _of_no_device(address: str) -> bool:
    """Tell whether an address is of no one device that may go: it stands for all addresses, or is loopback's."""
    host = ipaddress.ip_address(address)
    return host.is_unspecified or host.is_loopback


def serve(options: Options) -> int:
    """Load the configuration and run the gate; return the exit code. Raises `TidegateError`."""
    check_proxy_host(options.proxy_host)
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
