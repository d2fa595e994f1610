"""The sessions of launchers: opened at the keeper, their doors brought to the workers, revoked when the lease ends."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tidegate.config.model import Settings
from tidegate.errors import ConfigError, KeeperError, LaunchError, TidegateError
from tidegate.keeper.protocol import (
    AdminAsk,
    LaunchReport,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionView,
)
from tidegate.keeper.tasks import OwnedTasks
from tidegate.runtime.door import DoorOpen
from tidegate.runtime.door_check import check_doors
from tidegate.runtime.door_post import DoorPost
from tidegate.runtime.opened import sandbox_environment
from tidegate.session.door import MESSAGE_BYTES, DoorSpec, LaunchNote, Opened, Opening
from tidegate.session.identity import SessionId, new_session_id

__all__ = ["LaunchDesk"]

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.2
_LAST_SECONDS: Final = 2.0
_MOST_NAMES: Final = 2048


class _Ask(Protocol):
    async def __call__[T](self, ask: AdminAsk, kind: type[T], /) -> T: ...


class LaunchDesk:
    """Opens and ends them; what `launch_server` calls. `settings` gives the configuration of now."""

    def __init__(self, ask: _Ask, settings: Callable[[], Settings], doors: DoorPost) -> None:
        self._ask = ask
        self._settings = settings
        self._doors = doors
        self._live: set[SessionId] = set()
        self._opened: dict[SessionId, SessionOpened] = {}
        self._stopping = False
        self._tasks = OwnedTasks()

    async def begin(self) -> None:
        """Revoke what launchers had of a gate that was killed: nobody holds it any more. Raises `KeeperError`."""
        for view in await self._ask(SessionList(), tuple[SessionView, ...]):
            if view.origin == "launch":
                await self._revoke(view.id)

    async def open(self, asked: Opening, sockets: Sequence[socket.socket]) -> Opened:
        """Open a session with its doors; the sockets are ours then. Raises `TidegateError`, and leaves nothing."""
        if self._stopping:
            raise LaunchError("the gate is stopping")
        settings, session = self._settings(), new_session_id()
        check_doors(asked.doors, sockets, Path(settings.state_dir))
        new = SessionNew(
            asked.policy,
            asked.credentials,
            asked.ttl_seconds,
            asked.owner,
            launch=True,
            doors=bool(asked.doors),
            id=session,
            call=asked.call,
        )
        self._live.add(session)
        try:
            opened = self._opened[session] = await self._ask(new, SessionOpened)
            answer = _answer(settings, asked, opened, sockets)
        except BaseException:
            self.end(session)  # the keeper may have opened it, though no answer came
            raise
        if asked.doors:  # without, a worker would greet it at a door that it has not, which is an incident
            self._doors.open(DoorOpen(session, answer.token, _ways(asked.doors)), sockets)
        return answer

    async def note(self, session: SessionId, note: LaunchNote) -> None:
        """Put a launch on record, of a session whose lease is not given back yet. Raises `TidegateError`."""
        opened = self._opened[session]
        await self._ask(LaunchReport(session, opened.owner, note, opened.call), type(None))

    def closed(self, session: SessionId) -> None:
        """Take a worker's word that the session is over: its doors are closed everywhere."""
        self._doors.close(session)

    def end(self, session: SessionId) -> None:
        """Close the doors now, and have the session revoked, however often the keeper must be asked."""
        self._doors.close(session)
        self._opened.pop(session, None)
        if session in self._live:
            self._tasks.spawn(self._revoke_for_sure(session), name=f"revoke {session}")

    def stop(self) -> None:
        """Open no session any more."""
        self._stopping = True

    async def close(self) -> None:
        """End every session that is left, for a bounded time: what is not revoked by then is at the next start."""
        for session in list(self._live):
            self._doors.close(session)
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                for session in list(self._live):
                    await self._revoke(session)
        except (TimeoutError, TidegateError):
            _log.warning("%d sessions of launchers could not be revoked: the next start does it", len(self._live))
        await self._tasks.close()

    async def _revoke_for_sure(self, session: SessionId) -> None:
        while session in self._live:
            try:
                await self._revoke(session)
            except TidegateError:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _revoke(self, session: SessionId) -> None:
        """Revoke a session; one that the keeper no longer has is revoked."""
        try:
            await self._ask(SessionRevoke(session), str)
        except KeeperError:
            views = await self._ask(SessionList(), tuple[SessionView, ...])
            if any(view.id == session for view in views):
                raise
        self._live.discard(session)


def _ways(doors: Sequence[DoorSpec]) -> tuple[DoorSpec, ...]:
    """Return one way a socket."""
    return tuple(door for door in doors for _ in range(door.sockets))


def _answer(settings: Settings, asked: Opening, opened: SessionOpened, sockets: Sequence[socket.socket]) -> Opened:
    answer = Opened(
        id=opened.id,
        token=opened.token.reveal().decode("ascii"),
        env=sandbox_environment(settings, opened, _proxy_url(asked.doors, sockets)),
        names=_names(settings, asked.policy) if asked.names else (),
    )
    if len(msgspec.msgpack.encode(answer)) > MESSAGE_BYTES - 64:
        raise LaunchError("the session's environment and names are too long for one answer", where=asked.policy)
    return answer


def _proxy_url(doors: Sequence[DoorSpec], sockets: Sequence[socket.socket]) -> str | None:
    """Return where a client of the sandbox finds the first http door; behind a unix socket a shim listens inside."""
    for door, sock in zip(_ways(doors), sockets, strict=True):
        if door.way == "http":
            if sock.family == socket.AF_UNIX:
                return f"http://127.0.0.1:{door.port}" if door.port else None
            host, port = sock.getsockname()[:2]
            return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return None


def _names(settings: Settings, policy: str) -> tuple[str, ...]:
    """Return the exact names that a policy allows. Raises `ConfigError` for more than a hosts file should hold."""
    spec = settings.policies.get(policy)
    if spec is None:
        raise ConfigError(f"policy {policy!r} is being removed", where="policy")
    names = dict.fromkeys(rule.host.text for rule in spec.allow if rule.host.kind == "name")
    if len(names) > _MOST_NAMES:
        raise ConfigError(
            f"policy {policy!r} has {len(names)} exact names, more than {_MOST_NAMES}",
            where="names",
            hint="use the network mode veth, where names are asked for",
        )
    return tuple(names)
