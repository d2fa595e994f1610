"""The admin API: HTTP over unix sockets.

| socket | mode | who | what |
|---|---|---|---|
| `admin.sock` | 0600 | the operator | everything |
| `session.sock` | 0666 | a harness, by its bearer token | open, list, show and revoke its own sessions |
| `wall.sock` | 0666 | root, or the user it is served by | report what the wall's watch sees |

A body is a JSON object; so is an answer. A refusal is `{"error": {what, where, hint}}`. How the sockets are served:
`unix_server`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from aiohttp import web

from tidegate.errors import ConfigError, KeeperError, TidegateError
from tidegate.keeper.link import LinkLost
from tidegate.keeper.protocol import (
    AdminAsk,
    AuditKey,
    CaPem,
    HarnessCall,
    HarnessList,
    HarnessNew,
    HarnessOpened,
    HarnessRevoke,
    HarnessView,
    SessionEnv,
    SessionFreeze,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionShow,
    SessionThaw,
    SessionView,
)
from tidegate.runtime.opened import OpenedSession, check_proxy_host
from tidegate.runtime.walls import WatchReport
from tidegate.secret import Secret
from tidegate.session.call import ToolCall
from tidegate.session.identity import SessionId

__all__ = ["Operations", "Readiness", "admin_routes", "harness_routes", "wall_routes"]
_log = logging.getLogger(__name__)

type _Handler = Callable[[web.Request], Awaitable[web.Response]]


class Readiness(msgspec.Struct, frozen=True):
    """The answer of `/readyz`.

    `warnings` are dangerous settings, an invalid file that was not taken, and what this machine's kernel cannot hold.
    """

    ready: bool
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class Operations(Protocol):
    """What the API can ask of the gate."""

    async def readiness(self) -> Readiness:
        """Return whether the gate serves, and what keeps it from it."""
        ...

    async def reload(self, cause: str) -> Mapping[str, object]:
        """Load the configuration again. Raises `ConfigError`; the old one is in force then."""
        ...

    async def status(self) -> Mapping[str, object]:
        """Return everything an operator may know about the running gate."""
        ...

    async def ask[T](self, ask: AdminAsk, kind: type[T]) -> T:
        """Ask the keeper. Raises `KeeperError`."""
        ...

    def wall(self, report: WatchReport) -> None:
        """Take a report of the wall's watch."""
        ...

    def opened(self, session: SessionOpened, *, host: str | None) -> OpenedSession:
        """Return what the opener of a session gets."""
        ...


class _NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    policy: str | None = None
    """None: that of the session that the call is made in."""
    credentials: tuple[str, ...] = ()
    ttl_seconds: float | None = None
    owner: str = "default"
    source: str | None = None
    from_: str | None = None
    """`from` and `source` are one: the word of the file and the word of the code."""
    proxy_host: str | None = None
    call: ToolCall | None = None


class _NewHarness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policies: tuple[str, ...]
    max_sessions: int
    ttl_seconds: float
    owner: str = "default"


class _Unauthorized(TidegateError):
    """The request shows no token."""


def _answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _refusal(fault: TidegateError, status: int) -> web.Response:
    error: dict[str, object] = {"what": fault.what, "where": fault.where, "hint": fault.hint}
    problems = getattr(fault, "problems", None)
    if problems:
        error["problems"] = [str(problem) for problem in problems]
    return _answer({"error": error}, status)


async def _body[T](request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as fault:
        raise ConfigError(f"the request body cannot be used: {fault}", where=request.path) from fault


def _safely(handler: _Handler) -> _Handler:
    """Turn faults into answers, and bound every request in time."""

    async def run(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(120):
                return await handler(request)
        except _Unauthorized as fault:
            answer = _refusal(fault, 401)
            answer.headers["WWW-Authenticate"] = 'Bearer realm="tidegate"'
            return answer
        except LinkLost as fault:
            return _refusal(fault, 503)
        except ConfigError as fault:
            return _refusal(fault, 409)
        except KeeperError as fault:
            return _refusal(fault, 422)
        except TidegateError as fault:
            return _refusal(fault, 500)
        except TimeoutError:
            return _refusal(TidegateError("the gate did not answer in time"), 504)
        except web.HTTPException:
            raise
        except Exception as fault:  # a defect: the asker gets an answer, the operator a line, nobody a traceback
            _log.error("%s failed: %s: %s", request.path, type(fault).__name__, fault)
            return _refusal(TidegateError("internal fault"), 500)

    return run


class _Sessions:
    """The session routes; `call` decides in whose name they ask."""

    def __init__(self, operations: Operations, call: Callable[[web.Request, "_SessionAsk"], AdminAsk]) -> None:
        self._operations = operations
        self._call = call

    async def new(self, request: web.Request) -> web.Response:
        self._call(request, SessionList())  # who may not ask at all is told so before what is asked is read
        body = await _body(request, _NewSession)
        if body.policy is None and (body.call is None or body.call.parent is None):
            raise ConfigError("a session has a policy", where="policy")
        ask = SessionNew(
            body.policy, body.credentials, body.ttl_seconds, body.owner, body.source or body.from_, call=body.call
        )
        check_proxy_host(body.proxy_host)
        opened = await self._operations.ask(self._call(request, ask), SessionOpened)
        try:
            return _answer(self._operations.opened(opened, host=body.proxy_host), 201)
        except BaseException:  # its opener will never hear of it: it must not stay open
            with contextlib.suppress(KeeperError):  # a keeper that is gone must not hide what went wrong
                await self._operations.ask(self._call(request, SessionRevoke(opened.id)), str)
            raise

    async def every(self, request: web.Request) -> web.Response:
        ask = self._call(request, SessionList(request.query.get("owner"), request.query.get("call")))
        return _answer({"sessions": await self._operations.ask(ask, tuple[SessionView, ...])})

    async def show(self, request: web.Request) -> web.Response:
        return _answer(await self._operations.ask(self._call(request, SessionShow(_id(request))), SessionView))

    async def env(self, request: web.Request) -> web.Response:
        check_proxy_host(request.query.get("proxy_host"))
        opened = await self._operations.ask(self._call(request, SessionEnv(_id(request))), SessionOpened)
        return _answer(self._operations.opened(opened, host=request.query.get("proxy_host")))

    async def revoke(self, request: web.Request) -> web.Response:
        note = await self._operations.ask(self._call(request, SessionRevoke(_id(request))), str)
        return _answer({"revoked": _id(request), **({"note": note} if note else {})})

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/sessions", _safely(self.new)),
            web.get("/v1/sessions", _safely(self.every)),
            web.get("/v1/sessions/{id}", _safely(self.show)),
            web.delete("/v1/sessions/{id}", _safely(self.revoke)),
            web.get("/v1/sessions/{id}/env", _safely(self.env)),
        ]


type _SessionAsk = SessionNew | SessionList | SessionShow | SessionEnv | SessionRevoke


def _id(request: web.Request) -> SessionId:
    return SessionId(request.match_info["id"])


class _Harnesses:
    """The routes of harness tokens."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def new(self, request: web.Request) -> web.Response:
        body = await _body(request, _NewHarness)
        ask = HarnessNew(body.policies, body.max_sessions, body.ttl_seconds, body.owner)
        opened = await self._operations.ask(ask, HarnessOpened)
        token = opened.token.reveal().decode("ascii")
        return _answer({"id": opened.id, "token": token, "expires": opened.expires}, 201)

    async def every(self, _: web.Request) -> web.Response:
        return _answer({"harnesses": await self._operations.ask(HarnessList(), tuple[HarnessView, ...])})

    async def revoke(self, request: web.Request) -> web.Response:
        await self._operations.ask(HarnessRevoke(request.match_info["id"]), type(None))
        return _answer({"revoked": request.match_info["id"]})

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/harness", _safely(self.new)),
            web.get("/v1/harness", _safely(self.every)),
            web.delete("/v1/harness/{id}", _safely(self.revoke)),
        ]


class _Operator:
    """What the operator alone may ask: how the gate is, and to hold a session."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def livez(self, _: web.Request) -> web.Response:
        return _answer({"live": True})

    async def readyz(self, _: web.Request) -> web.Response:
        readiness = await self._operations.readiness()
        return _answer(readiness, 200 if readiness.ready else 503)

    async def reload(self, _: web.Request) -> web.Response:
        return _answer(await self._operations.reload("the admin API"))

    async def status(self, _: web.Request) -> web.Response:
        return _answer(await self._operations.status())

    async def freeze(self, request: web.Request) -> web.Response:
        await self._operations.ask(SessionFreeze(_id(request)), type(None))
        return _answer({"frozen": _id(request)})

    async def thaw(self, request: web.Request) -> web.Response:
        await self._operations.ask(SessionThaw(_id(request)), type(None))
        return _answer({"thawed": _id(request)})

    async def ca(self, _: web.Request) -> web.Response:
        return web.Response(text=await self._operations.ask(CaPem(), str), content_type="application/x-pem-file")

    async def audit_key(self, _: web.Request) -> web.Response:
        return web.Response(text=await self._operations.ask(AuditKey(), str))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/livez", _safely(self.livez)),
            web.get("/readyz", _safely(self.readyz)),
            web.post("/v1/reload", _safely(self.reload)),
            web.get("/v1/status", _safely(self.status)),
            web.post("/v1/sessions/{id}/freeze", _safely(self.freeze)),
            web.post("/v1/sessions/{id}/thaw", _safely(self.thaw)),
            web.get("/v1/ca", _safely(self.ca)),
            web.get("/v1/audit-key", _safely(self.audit_key)),
        ]


def admin_routes(operations: Operations) -> list[web.RouteDef]:
    """Return the operator's routes."""
    sessions = _Sessions(operations, lambda _request, ask: ask)
    return [*_Operator(operations).routes(), *_Harnesses(operations).routes(), *sessions.routes()]


def harness_routes(operations: Operations) -> list[web.RouteDef]:
    """Return what a harness may do, each in the name of its token."""

    def call(request: web.Request, ask: _SessionAsk) -> AdminAsk:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _Unauthorized(
                "a harness token is needed", hint="Authorization: Bearer TOKEN; see `tidegate harness new`"
            )
        return HarnessCall(Secret(token.strip()), ask)

    return _Sessions(operations, call).routes()


def wall_routes(operations: Operations) -> list[web.RouteDef]:
    """Return what the wall's watch may do."""

    async def report(request: web.Request) -> web.Response:
        operations.wall(await _body(request, WatchReport))
        return _answer({})

    return [web.post("/v1/wall", _safely(report))]
