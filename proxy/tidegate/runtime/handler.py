"""One client connection: its sockets, its stack of layers, and a dispatch that fails closed.

mitmproxy's own handler swallows an exception in a hook and forwards the request. This one closes
every socket of the connection instead, whichever layer or hook raised (invariant 2), and it opens
a socket for one purpose only: an address that the connection's channel has pinned (invariants 1, 3).

Dispatch is hybrid: a hook returns nothing, and its completion follows at once in the same turn, or
an awaitable, and the completion follows when that is done. Events are queued, never nested, so that
a layer never sees a second event while it still answers the first.

Longer than a module should be, since all that may stop, hold or end a connection's sockets is to be read in one place.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.mode_specs import ProxyMode

from tidegate.exchange.channel import Channel
from tidegate.exchange.door import Door
from tidegate.exchange.ending import End
from tidegate.exchange.exchange import Exchange
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin
from tidegate.runtime.breathe import WINDOWS
from tidegate.runtime.destination import original_destination
from tidegate.runtime.dialer import DialFault, dial
from tidegate.runtime.http1_message import denial_bytes
from tidegate.runtime.listener import Way
from tidegate.runtime.overdue import Overdue
from tidegate.runtime.place import fault_place

__all__ = ["ConnectionHandler", "Engine", "Hook"]

_log = logging.getLogger(__name__)

Hook = Callable[..., Awaitable[None] | None]

# Bytes that wait for one socket; above, nothing more is read that could add to them.
_HIGH_WATER = 256 * 1024
_MAX_UPSTREAMS = 64


class Engine(Protocol):
    """What a handler needs of the worker around it."""

    options: Options
    hooks: dict[str, tuple[Hook, ...]]
    mode: ProxyMode

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in a task that the worker owns."""
        ...

    def make_channel(self, peer: tuple[str, int], local: tuple[str, int], door: Door | None) -> Channel:
        """Make the lane-free half of a client connection."""
        ...

    def may_dial(self, channel: Channel) -> bool:
        """Tell whether the channel may have one more upstream."""
        ...

    def top_layer(self, context: Context, handler: "ConnectionHandler") -> layer.Layer:
        """Make the first layer."""
        ...

    def next_layer(self, pending: layer.NextLayer) -> None:
        """Choose the layer that follows, or leave it open for more bytes."""
        ...

    def forget(self, handler: "ConnectionHandler") -> None:
        """Drop a handler that is done."""
        ...


class _End(asyncio.Protocol):
    """One socket of a handler. Bytes that arrive before the layers know of it wait in `early`."""

    def __init__(self, handler: "ConnectionHandler", conn: Connection) -> None:
        self.handler = handler
        self.conn = conn
        self.transport: asyncio.Transport | None = None
        self.opened = False
        self.closed_told = False
        self.counted = False
        self.early: list[bytes] = []
        self.out: list[bytes] = []
        self.blocked_since: float | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._pauses: set[str] = set()

    def pause(self, why: str, *, paused: bool) -> None:
        """Stop reading, or go on when no reason to stop is left."""
        before = bool(self._pauses)
        (self._pauses.add if paused else self._pauses.discard)(why)
        transport = self.transport
        if transport is None or transport.is_closing() or before == bool(self._pauses):
            return
        if self._pauses:
            transport.pause_reading()
        else:
            self.handler.reads_again(self)
            transport.resume_reading()

    @property
    def paused(self) -> bool:
        """Whether we have stopped reading it."""
        return bool(self._pauses)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
            transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self.opened:
            self.handler.feed(events.DataReceived(self.conn, data))
        else:
            self.early.append(data)

    def eof_received(self) -> bool:
        self.conn.state &= ~ConnectionState.CAN_READ
        self._tell_closed()
        return self.conn.state is not ConnectionState.CLOSED

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self.conn.state = ConnectionState.CLOSED
        self._tell_closed()
        self.handler.lost(self)

    def _tell_closed(self) -> None:
        if self.opened and not self.closed_told:
            self.closed_told = True
            self.handler.feed(events.ConnectionClosed(self.conn))

    def pause_writing(self) -> None:
        self.blocked_since = time.monotonic()
        self.writable.clear()
        self.handler.throttle(self, paused=True)

    def resume_writing(self) -> None:
        self.blocked_since = None
        self.writable.set()
        self.handler.throttle(self, paused=False)


class ConnectionHandler:
    """Drives the layers of one client connection and owns every socket of it."""

    def __init__(self, engine: Engine, way: Way = Way.PROXY, door: Door | None = None, port: int = 0) -> None:
        self.engine = engine
        self.way = way
        self.door = door
        self._port = port
        self.dialled: tuple[str, int] | None = None
        """What a client dialled that knows of no proxy; None: it speaks to one."""
        self.ends: dict[Connection, _End] = {}
        self._queue: deque[events.Event] = deque()
        self._running = False
        self._done = False
        self._dead = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._dirty: list[_End] = []
        self._upstream_slots = asyncio.Semaphore(_MAX_UPSTREAMS)
        self._braked_since: float | None = None
        self._brakes: set[str] = set()
        self._windows = asyncio.Event()
        self._windows.set()
        self.opened_at = time.monotonic()
        self.active_at = self.opened_at

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of the client's socket; the connection begins when it is made."""
        return _ClientEnd(self)

    def begin(self, end: "_End", transport: asyncio.Transport) -> None:
        """Build channel and layers for an accepted socket and start them."""
        peer, local = self._ends_of(transport)
        self.dialled = self._dialled(transport, (local[0], local[1]))
        self.client = Client(peername=peer, sockname=local, timestamp_start=time.time(), state=ConnectionState.OPEN)
        self.client.proxy_mode = self.engine.mode
        end.conn = self.client
        end.opened = True
        self.ends[self.client] = end
        self.channel = self.engine.make_channel((peer[0], peer[1]), (local[0], local[1]), self.door)
        self.channel.cut = self.cut
        self.channel.end = self.time_out
        self.channel.hold = self.hold
        self.channel.wait = self.wait
        self.channel.brake = self.brake
        self.channel.writable = self.writable
        context = Context(self.client, self.engine.options)
        self.layer = self.engine.top_layer(context, self)
        self.feed(events.Start())
        if self.door is not None and not self.door.open:
            self.cut(Reason.SESSION_INVALID, End.REVOKED)  # it was closed between the kernel's accept and this

    def _ends_of(self, transport: asyncio.Transport) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return who came, and to where. A unix socket has neither: what its clients dial is a shim's loopback."""
        local = transport.get_extra_info("sockname")
        if not isinstance(local, tuple):
            return ("unix", 0), ("127.0.0.1", self._port)
        return transport.get_extra_info("peername") or ("unix", 0), local

    def _dialled(self, transport: asyncio.Transport, local: tuple[str, int]) -> tuple[str, int] | None:
        match self.way:
            case Way.PROXY:
                return None
            case Way.TRANSPARENT:
                # Who dialled the listener itself dialled the gate, which is judged as an address of its own.
                return original_destination(transport.get_extra_info("socket")) or local
            case _:
                return local

    # -- events -----------------------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        """Give one event to the layers and carry out what they answer. Never raises."""
        if self._dead:
            return
        self._queue.append(event)
        if self._running:
            return
        self._running = True
        self.active_at = time.monotonic()
        try:
            while self._queue and not self._dead:
                for command in self.layer.handle_event(self._queue.popleft()):
                    if self._is_dead():
                        break  # cut in the middle of a turn: what was still to be done is not
                    self._execute(command)
        except BaseException as fault:  # a hook's CancelledError too: nothing that it ends may go on
            self._crash(fault)
            if isinstance(fault, KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._running = False
        self._flush()

    def _is_dead(self) -> bool:
        return self._dead

    def _execute(self, command: commands.Command) -> None:
        if isinstance(command, commands.SendData):
            end = self.ends.get(command.connection)
            if end is not None:
                if not end.out:
                    self._dirty.append(end)
                end.out.append(command.data)
        elif isinstance(command, commands.StartHook):
            self._hook(command)
        elif isinstance(command, commands.Log):
            pass  # The layers' own talk holds the sandbox's bytes.
        elif isinstance(command, commands.OpenConnection):
            self._own(self._open(command))
        elif isinstance(command, commands.CloseConnection):
            self._close(command.connection, half=getattr(command, "half_close", False))
        elif isinstance(command, commands.RequestWakeup):
            self._wake_later(command)
        else:
            raise TypeError(f"unexpected command {type(command).__name__}")

    def _flush(self) -> None:
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, []
        for end in dirty:
            out, end.out = end.out, []
            if out and end.transport is not None and not end.transport.is_closing():
                end.transport.write(out[0] if len(out) == 1 else b"".join(out))

    # -- hooks ------------------------------------------------------------------------------------

    def _hook(self, hook: commands.StartHook) -> None:
        if isinstance(hook, layer.NextLayerHook):
            self.engine.next_layer(hook.data)
        else:
            for call in self.engine.hooks.get(hook.name, ()):
                argument = _argument(type(hook))  # type: ignore[arg-type]  # hashable as a class
                waiting = call(getattr(hook, argument))
                if waiting is not None:
                    self._own(self._finish_hook(hook, waiting))
                    return
        if hook.blocking:
            self._queue.append(events.HookCompleted(hook))

    async def _finish_hook(self, hook: commands.StartHook, waiting: Awaitable[None]) -> None:
        await waiting
        if hook.blocking:
            self.feed(events.HookCompleted(hook))

    def _own(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.engine.spawn(self._guard(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception as fault:
            self._crash(fault)
        except BaseException as fault:
            if not self._dead:  # not cancelled by the end of the connection
                self._crash(fault)
            raise

    def _crash(self, fault: BaseException) -> None:
        """A fault of ours: nothing more passes, and the log says so (invariants 2 and 6)."""
        self._report(fault)
        self.abort()

    def _report(self, fault: BaseException) -> None:
        place = fault_place(fault)
        _log.error("a connection was closed by a fault in the gate: %s", place)
        with contextlib.suppress(Exception):
            self.channel.fault(place)

    # -- sockets ----------------------------------------------------------------------------------

    async def _open(self, command: commands.OpenConnection) -> None:
        conn = command.connection
        if conn.address is None:
            self.feed(events.OpenConnectionCompleted(command, Reason.INTERNAL_FAULT.code))
            return
        pin = self.channel.upstreams.pin(conn.address[0], conn.address[1])
        if pin is None:
            self.feed(events.OpenConnectionCompleted(command, Reason.INTERNAL_FAULT.code))
            return
        if not self.engine.may_dial(self.channel):
            self.feed(events.OpenConnectionCompleted(command, Reason.BUDGET.code))
            return
        end = _End(self, conn)
        end.counted = True
        self.channel.count_upstream(1)  # before the dial: all those under way count too
        try:
            async with self._upstream_slots:
                conn.timestamp_start = time.time()
                transport = await self.dial(pin, end)
        except BaseException as fault:
            self._release(end)
            if not isinstance(fault, DialFault):
                raise
            conn.error = fault.reason.code
            self.feed(events.OpenConnectionCompleted(command, fault.reason.code))
            return
        if self._dead:
            transport.abort()
            return
        conn.timestamp_tcp_setup = time.time()
        conn.state = ConnectionState.OPEN
        conn.peername = transport.get_extra_info("peername")
        conn.sockname = transport.get_extra_info("sockname")
        self.ends[conn] = end
        # It comes into a connection that may be standing still for another socket's sake.
        self._join(end)
        self.channel.upstreams.opened(conn.address[0], conn.address[1], conn.peername[0])
        self.feed(events.OpenConnectionCompleted(command, None))
        end.opened = True
        for data in end.early:
            self.feed(events.DataReceived(conn, data))
        end.early.clear()

    def _join(self, end: _End) -> None:
        """Let a new upstream stand still for whatever its connection stands still for."""
        end.pause("throttle", paused=any(other.blocked_since for other in self.ends.values()))
        end.pause("frozen", paused=self.channel.session is not None and self.channel.session.frozen)
        for why in self._brakes:
            end.pause(why, paused=True)

    async def dial(self, pin: Pin, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Open a socket to one of the pin's addresses; the self-test's seam. Raises `DialFault`."""
        return await dial(pin, protocol, timeout_seconds=self.channel.gate.connect_timeout)

    def _close(self, conn: Connection, *, half: bool) -> None:
        end = self.ends.get(conn)
        if end is None or end.transport is None:
            conn.state = ConnectionState.CLOSED
            return
        if end.out:
            self._flush()
        if half:
            if conn.state & ConnectionState.CAN_WRITE:
                conn.state &= ~ConnectionState.CAN_WRITE
                with contextlib.suppress(OSError):
                    end.transport.write_eof()
            if conn.state is not ConnectionState.CLOSED:
                return
        conn.state = ConnectionState.CLOSED
        end.transport.close()

    def lost(self, end: _End) -> None:
        """Take notice that a socket is gone; the client's takes the whole connection along."""
        self.ends.pop(end.conn, None)
        self._release(end)
        if isinstance(end.conn, Server) and end.conn.address is not None:
            self.channel.upstreams.closed(end.conn.address[0], end.conn.address[1])
        if isinstance(end.conn, Client):
            self._finish()

    def _release(self, end: _End) -> None:
        """Count an upstream no more; once."""
        if end.counted:
            end.counted = False
            self.channel.count_upstream(-1)

    def throttle(self, blocked: _End, *, paused: bool) -> None:
        """Stop reading from every other socket while one cannot take more."""
        for end in self.ends.values():
            others = any(other.blocked_since for other in self.ends.values() if other is not end)
            if end is not blocked:
                end.pause("throttle", paused=paused or others)

    def _wake_later(self, command: commands.RequestWakeup) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            self._timers.discard(handle)
            self.feed(events.Wakeup(command))

        handle = loop.call_later(command.delay, wake)
        self._timers.add(handle)

    # -- the end ----------------------------------------------------------------------------------

    def cut(self, reason: Reason | None, end: End | None = None) -> None:
        """End the connection at once; `end` is the log's word for it where that is not the reason's code."""
        self.channel.break_off(reason, end)
        self.abort()

    def time_out(self, reason: Reason) -> None:
        """End the connection for a deadline, with a word where one can still be said."""
        if not self.channel.exchanges and self.channel.host is None:
            reply = self.channel.refuse(reason)
            end = self.ends.get(self.client)
            if end is not None and end.transport is not None:
                if self.dialled is None or self.channel.plain:  # else it has not shown that it speaks HTTP
                    end.transport.write(denial_bytes(reply))
                end.transport.close()
                return
        for exchange in list(self.channel.exchanges):
            exchange.stop(reason)
        self.cut(reason)

    def expire(self, exchange: Exchange, reason: Reason) -> None:
        """End one exchange for a deadline; one that does not end by that takes the connection along."""
        if exchange.over:
            self.cut(reason)
        else:
            self.feed(Overdue(exchange, reason))

    def hold(self, *, frozen: bool) -> None:
        """Stop, or go on with, reading every socket (a frozen session)."""
        for end in self.ends.values():
            end.pause("frozen", paused=frozen)
        if not frozen:
            self._restart_clocks(time.monotonic())

    def _restart_clocks(self, now: float) -> None:
        """Begin every deadline anew: nothing could move while nothing was read."""
        self.active_at = now
        if self.channel.head_since is not None:
            self.channel.head_since = now
        for end in self.ends.values():
            if end.blocked_since is not None:
                end.blocked_since = now
        if self._braked_since is not None:
            self._braked_since = now
        for exchange in self.channel.exchanges:
            exchange.progress = now

    def wait(self, *, waiting: bool) -> None:
        """Stop reading the client while the way for its body is not open: what it sends must not pile up here."""
        end = self.ends.get(self.client)
        if end is not None:
            end.pause("wait", paused=waiting)

    async def writable(self) -> None:
        """Wait until the client takes more: its socket, and its HTTP/2 windows."""
        while not self._dead:
            end = self.ends.get(self.client)
            if end is None or (end.writable.is_set() and self._windows.is_set()):
                return
            await end.writable.wait()
            await self._windows.wait()

    def brake(self, why: str, *, client: bool, on: bool) -> None:
        """Stop, or go on with, reading the client or the upstreams: the other side's HTTP/2 windows are shut.

        Said again, it means that the windows have moved: a client that reads slowly is not one that does not read.
        """
        for conn, end in self.ends.items():
            if (conn is self.client) is client:
                end.pause(why, paused=on)
        if not client:
            (self._brakes.add if on else self._brakes.discard)(why)
            (self._windows.clear if WINDOWS in self._brakes else self._windows.set)()
            self._braked_since = time.monotonic() if self._brakes else None

    def reads_again(self, end: _End) -> None:
        """Begin a client's header clock anew: what was not read could not come."""
        if end.conn is self.client and self.channel.head_since is not None:
            self.channel.head_since = time.monotonic()

    def head_overdue(self, now: float, *, seconds: float) -> bool:
        """Tell whether the client has not finished a head in `seconds` in which it was read."""
        since, end = self.channel.head_since, self.ends.get(self.client)
        return since is not None and now - since > seconds and not (end is not None and end.paused)

    def blocked_for(self, now: float) -> float:
        """Return for how long the client has not taken what is written to it, in seconds."""
        end = self.ends.get(self.client)
        blocked = None if end is None else end.blocked_since
        since = [at for at in (blocked, self._braked_since) if at is not None]
        return now - min(since) if since else 0.0

    def abort(self) -> None:
        """Drop every socket without another byte."""
        self._dead = True
        ends: Iterable[_End] = list(self.ends.values())
        for end in ends:
            if end.transport is not None:
                if self.channel.opaque:
                    _reset(end.transport)
                end.transport.abort()
        if not self.ends:
            self._finish()

    def _finish(self) -> None:
        if self._done:
            return
        self._done = self._dead = True
        self._windows.set()
        for end in list(self.ends.values()):
            if end.transport is not None:
                end.transport.abort()
        for timer in self._timers:
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        try:
            self.channel.close()
        except Exception as fault:
            self._report(fault)
        finally:
            self.engine.forget(self)


def _reset(transport: asyncio.Transport) -> None:
    """Have a socket end by a reset: half of what nobody reads here must not look like the whole of it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@functools.cache
def _argument(kind: type[commands.StartHook]) -> str:
    """Return the name of a hook's one argument; mitmproxy looks it up anew for each hook."""
    (field,) = dataclasses.fields(kind)  # type: ignore[arg-type]
    return field.name


class _ClientEnd(_End):
    """The client's socket: the connection begins with it."""

    def __init__(self, handler: ConnectionHandler) -> None:
        super().__init__(handler, Client(peername=("", 0), sockname=("", 0)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            try:
                self.handler.begin(self, transport)
            except Exception as fault:
                _log.error("a connection was refused by a fault in the gate: %s", fault_place(fault))
                transport.abort()
