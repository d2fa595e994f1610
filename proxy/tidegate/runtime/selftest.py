"""Start-up self-test: does the engine under us still behave as everything here relies on?

mitmproxy's layers are internal to it, so its version is pinned and its behaviour is tried before a
worker serves: in memory, without a socket, with the worker's own handler, layers, hooks and exchange.

| tried | must be |
|---|---|
| an allowed request | judged, then opened to the pinned name, then sent, in this order |
| a second one on the same connection | no second upstream |
| a denied request | answered 403, nothing opened |
| a hook that raises | the connection closed, nothing opened, nothing said |
| no hook at all | answered 500, nothing opened |
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from ipaddress import IPv4Address
from typing import Any, override

import mitmproxy.version
import msgspec
from mitmproxy.proxy import layer
from mitmproxy.proxy.context import Context

from tidegate.audit.event import Subject
from tidegate.audit.recorder import Recorder
from tidegate.clock import SYSTEM
from tidegate.config.model import GateSettings
from tidegate.errors import LaunchError
from tidegate.exchange.channel import Channel
from tidegate.exchange.door import Door
from tidegate.exchange.gate import Gate, Prepared
from tidegate.exchange.sessions import LiveSession
from tidegate.exchange.upstreams import Upstreams
from tidegate.keeper.protocol import LeaseGrant, SessionGrant
from tidegate.policy.addresses import Site
from tidegate.policy.names import Host, HostName, parse_pattern
from tidegate.policy.paths import parse_glob
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import PolicySpec, Rule
from tidegate.resolve.pin import Pin
from tidegate.runtime.entry import EntryLayer
from tidegate.runtime.handler import ConnectionHandler, Engine, Hook
from tidegate.runtime.pinned import MITMPROXY
from tidegate.runtime.tls import Contexts
from tidegate.session.identity import SessionId
from tidegate_addons.channels import Channels

__all__ = ["self_test"]

_NAME = HostName("selftest.invalid")
_GOOD = b"GET http://selftest.invalid/yes HTTP/1.1\r\nHost: selftest.invalid\r\n\r\n"
_BAD = b"GET http://selftest.invalid/no HTTP/1.1\r\nHost: selftest.invalid\r\n\r\n"
_NETWORK = ("192.0.2.0/24",)
_TURNS = 20
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def self_test(worker: Engine, settings: GateSettings, contexts: Contexts, channels: Channels) -> None:
    """Raise `LaunchError` unless the engine behaves as above; `worker` is the one that is to serve."""
    _check_versions()
    trial = _Trial(worker, settings, contexts, channels)
    runs: dict[str, Callable[[_Trial], Awaitable[str]]] = {
        "an allowed request": _allowed,
        "a denied request": _denied,
        "a hook that raises": _raising,
        "a missing hook": _missing,
    }
    for name, run in runs.items():
        problem = await run(trial)
        if problem:
            raise LaunchError(
                f"the start-up self-test failed at {name}: {problem}",
                where=f"mitmproxy {mitmproxy.version.VERSION}",
                hint=f"the gate serves only with an engine that behaves like mitmproxy {MITMPROXY}",
            )


def _check_versions() -> None:
    if mitmproxy.version.VERSION != MITMPROXY:
        raise LaunchError(
            f"mitmproxy {mitmproxy.version.VERSION} is installed, {MITMPROXY} is needed",
            where="mitmproxy",
            hint="install from requirements.lock",
        )


async def _allowed(trial: "_Trial") -> str:
    run = trial.connect()
    await run.receive(_GOOD)
    if run.log[:4] != ["requestheaders", "open 192.0.2.1:80", "send upstream", "responseheaders"]:
        return f"order was {run.log[:4]}"
    if not run.sent.startswith(b"HTTP/1.1 200"):
        return "the answer did not arrive"
    await run.receive(_GOOD)
    if run.opened != 1:
        return f"{run.opened} upstreams for two requests"
    return "" if run.sent.startswith(b"HTTP/1.1 200") else "the second answer did not arrive"


async def _denied(trial: "_Trial") -> str:
    run = trial.connect()
    await run.receive(_BAD)
    if run.opened:
        return "an upstream was opened"
    return "" if run.sent.startswith(b"HTTP/1.1 403") else "the denial did not arrive"


async def _raising(trial: "_Trial") -> str:
    def fail(_: object) -> None:
        raise RuntimeError("self-test")

    run = trial.connect(requestheaders=(fail,))
    with quiet():
        await run.receive(_GOOD)
    if run.opened or run.sent:
        return "the request went on"
    return "" if run.transport.closed else "the connection stayed open"


async def _missing(trial: "_Trial") -> str:
    run = trial.connect(requestheaders=())
    await run.receive(_GOOD)
    if run.opened:
        return "an upstream was opened"
    return "" if run.sent.startswith(b"HTTP/1.1 500") else "the fault was not told"


class _Keeper:
    """A keeper with one session, for the length of the test."""

    def down_seconds(self) -> float:
        return 0.0

    async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason:
        del token, source, listener
        return SessionGrant(SessionId("selftest"), "selftest", "selftest", None, None, False, (), (), 0)

    async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason:
        del session, credential
        return Reason.CREDENTIAL_UNAVAILABLE

    async def number(self, session: SessionId, name: HostName) -> int | Reason:
        del session, name
        return Reason.KEEPER_UNAVAILABLE

    async def numbered(self, session: SessionId, number: int) -> str | Reason:
        del session, number
        return Reason.KEEPER_UNAVAILABLE

    async def draw(self, session: SessionId, kind: str, key: str, amount: int, limit: int) -> int | Reason:
        del session, kind, key, amount, limit
        return Reason.KEEPER_UNAVAILABLE

    def forget(self, session: SessionId) -> None:
        del session


class _Silent(Recorder):
    """Takes every record and writes none: the test is nobody's traffic."""

    def __init__(self) -> None:
        pass

    @override
    def promise(self, subject: Subject) -> Reason | None:
        return None

    def _record(self, *_: object, **__: object) -> Reason | None:
        return None


class _Pinned(Upstreams):
    """Resolves to a documentation address (RFC 5737) that is never dialled."""

    @override
    async def resolve(
        self, host: Host, port: int, allowed: tuple[str, ...], session: LiveSession | None
    ) -> Reason | None:
        self.keep(Pin(host, port, (IPv4Address("192.0.2.1"),), SYSTEM.boot(), 60.0), allowed)
        return None


class _Trial:
    """What the runs share."""

    def __init__(self, worker: Engine, settings: GateSettings, contexts: Contexts, channels: Channels) -> None:
        rule = Rule(
            id="selftest", host=parse_pattern(_NAME), protocol="http", paths=(parse_glob("/yes"),), addresses=_NETWORK
        )
        spec = PolicySpec("selftest", allow=(rule,))
        own = msgspec.structs.replace(settings, policies={"selftest": spec}, credentials={}, sessions={})
        self.prepared = Prepared(own, Site())
        self.worker = worker
        self.contexts = contexts
        self.channels = channels

    def connect(self, **hooks: tuple[Hook, ...]) -> "_Run":
        """Return a fresh connection, some of its hooks replaced."""
        return _Run(self, hooks)


class _Memory(asyncio.Transport):
    """A socket that is none: what is written to it goes to `on_write`."""

    def __init__(self, peer: tuple[str, int], on_write: Callable[[bytes], None]) -> None:
        super().__init__({"peername": peer, "sockname": ("192.0.2.3", 3)})
        self._on_write = on_write
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._on_write(bytes(data))

    def write_eof(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class _Run(ConnectionHandler):
    """The worker's own connection handler with sockets in memory; it writes down the order of things."""

    def __init__(self, trial: _Trial, hooks: dict[str, tuple[Hook, ...]]) -> None:
        self.trial = trial
        self.log: list[str] = []
        self.sent = b""
        self.opened = 0
        super().__init__(_Watched(self, trial.worker, hooks))
        self.transport = _Memory(("192.0.2.2", 2), self._to_client)
        self._end = self.accept()
        self._end.connection_made(self.transport)

    async def receive(self, data: bytes) -> None:
        """Let the client send, and everything follow from it."""
        self.sent = b""
        self._end.data_received(data)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _to_client(self, data: bytes) -> None:
        self.sent += data

    @override
    async def dial(self, pin: Pin, protocol: asyncio.Protocol) -> asyncio.Transport:
        self.opened += 1
        self.log.append(f"open {pin.addresses[0]}:{pin.port}")
        peer = (str(pin.addresses[0]), pin.port)
        transport = _Memory(peer, lambda _: self._from_upstream(protocol))
        protocol.connection_made(transport)
        return transport

    def _from_upstream(self, protocol: asyncio.Protocol) -> None:
        self.log.append("send upstream")
        asyncio.get_running_loop().call_soon(protocol.data_received, _REPLY)


class _Watched:
    """The worker as an engine, but for its gate, and with every hook written down."""

    def __init__(self, run: _Run, worker: Engine, hooks: dict[str, tuple[Hook, ...]]) -> None:
        self._run = run
        self._worker = worker
        self.options, self.mode = worker.options, worker.mode
        given = {**worker.hooks, **hooks}
        self.hooks = {name: tuple(self._told(name, call) for call in calls) for name, calls in given.items()}

    def _told(self, name: str, call: Hook) -> Hook:
        def told(data: Any) -> Awaitable[None] | None:
            self._run.log.append(name)
            return call(data)

        return told

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._worker.spawn(coroutine)

    def make_channel(self, peer: tuple[str, int], local: tuple[str, int], door: Door | None) -> Channel:
        gate = Gate(self._run.trial.prepared, keeper=_Keeper(), recorder=_Silent(), key=b"selftest")
        channel = Channel(gate, peer, local, door)
        channel.upstreams = _Pinned(gate)
        return channel

    def may_dial(self, channel: Channel) -> bool:
        return True  # there is no session to count for; what is dialled here stays in memory

    def top_layer(self, context: Context, handler: ConnectionHandler) -> layer.Layer:
        self._run.trial.channels.add(context.client, handler.channel)
        return EntryLayer(context, handler.channel, self._run.trial.contexts)

    def next_layer(self, pending: layer.NextLayer) -> None:
        self._worker.next_layer(pending)

    def forget(self, handler: ConnectionHandler) -> None:
        self._run.trial.channels.drop(handler.client)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the fault that is made on purpose out of the operational log."""
    logger = logging.getLogger("tidegate.runtime.handler")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
