"""One gate worker: the process that reads the sandbox's bytes.

Start: settings from the supervisor, a chain of its own in the audit log, a link to the keeper, the
listening sockets, then confinement; only after the self-test has passed does it say `ready`. It holds
no CA key, no source of a secret and no lease but those of the sessions it serves (invariant 5).
Longer than a module should be, since what a worker is made of, in which order, is to be read on one page.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import secrets
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy import layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.mode_specs import ProxyMode
from OpenSSL import SSL

from tidegate.audit.event import Head
from tidegate.audit.recorder import Recorder
from tidegate.audit.redact import loggable
from tidegate.audit.writer import ChainWriter
from tidegate.ca.trust import trust_files
from tidegate.clock import SYSTEM
from tidegate.config.model import GateSettings, decode_gate
from tidegate.errors import KeeperError, LaunchError
from tidegate.exchange.channel import Channel
from tidegate.exchange.dns_desk import DnsDesk
from tidegate.exchange.door import Door
from tidegate.exchange.ending import End
from tidegate.exchange.gate import Gate, Prepared, prepare
from tidegate.exchange.log_budget import settle
from tidegate.keeper.client import KeeperClient
from tidegate.keeper.protocol import Push
from tidegate.policy.reasons import Reason
from tidegate.runtime import oplog
from tidegate.runtime.breathe import breathe
from tidegate.runtime.captured import CapturedLayer, name_virtual
from tidegate.runtime.control import ControlLink, Fields
from tidegate.runtime.descriptors import Descriptors
from tidegate.runtime.dns_server import open_responder
from tidegate.runtime.doors import Doors
from tidegate.runtime.entry import EntryLayer, choose_inside
from tidegate.runtime.handler import ConnectionHandler, Hook
from tidegate.runtime.leg import names_lead_to
from tidegate.runtime.listener import Bound, Way, bind_all
from tidegate.runtime.lockdown import confine, interpreter_paths
from tidegate.runtime.own import own_addresses, own_devices
from tidegate.runtime.pay import pay
from tidegate.runtime.place import fault_place
from tidegate.runtime.selftest import self_test
from tidegate.runtime.strangers import Strangers
from tidegate.runtime.tls import Contexts, certify_hook
from tidegate.runtime.watch import Watch
from tidegate.session.identity import SessionId
from tidegate_addons.admission import Admission
from tidegate_addons.channels import Channels
from tidegate_addons.record import Record
from tidegate_addons.scrub import Scrub
from tidegate_addons.verdict import Verdict as VerdictAddon

__all__ = ["Worker", "main"]

_log = logging.getLogger(__name__)

_HOOKS = ("http_connect", "tls_clienthello", "requestheaders", "responseheaders", "response", "error")
_KEEPER_SECONDS = 20.0
_STEP_SECONDS = 5.0
# Several sandboxes may come from one address, and each connection is a stranger for a moment.
_STRANGERS = 4
# A client's HTTP/2 connection may want a hundred upstreams; all of them together want fewer.
_UPSTREAMS = 4
_TICK_SECONDS = 1.0
_COLLECT_SECONDS = 60.0


def bind(settings: bytes) -> list[Bound]:
    """Bind what `main` serves, before the uid is dropped."""
    decoded = decode_gate(settings)
    return bind_all(decoded.listen, alone=(decoded.workers or len(os.sched_getaffinity(0))) == 1)


def main(
    control: socket.socket, settings: bytes, keeper: Path, index: int, bound: list[Bound], doors: socket.socket
) -> None:
    """Serve until the supervisor says drain, or goes away; `doors` brings listening sockets of single sessions."""
    worker = Worker(decode_gate(settings), keeper, index, bound)
    asyncio.run(worker.run(control, doors))


class Worker:
    """One worker; what a connection handler needs of it is `handler.Engine`."""

    def __init__(self, settings: GateSettings, keeper: Path, index: int, bound: list[Bound]) -> None:
        self.index = index
        self._bound = bound
        self.settings = settings
        self.handlers: set[ConnectionHandler] = set()
        self.channels = Channels()
        self.strangers = Strangers()
        self.descriptors = Descriptors()
        self._keeper_path = keeper
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._responders: list[asyncio.DatagramTransport | asyncio.Server] = []
        self._pending: dict[int, tuple[Prepared, SSL.Context]] = {}
        self._doors: Doors | None = None
        self._stopping = asyncio.Event()
        self._unenforced: tuple[str, ...] = ()
        self._draining = False

    # -- life -------------------------------------------------------------------------------------

    async def run(self, control: socket.socket, doors: socket.socket) -> None:
        """Start, say `ready`, serve."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._make_engine()
        self._make_gate()
        self._confine()
        await self_test(self, self.settings, self.contexts, self.channels)
        await self.keeper.start()
        if not await self.keeper.wait_up(_KEEPER_SECONDS):
            raise LaunchError("the keeper does not answer", where=str(self._keeper_path))
        refused = await self.keeper.announce(self.chain)
        if refused is not None:
            raise LaunchError("the keeper does not take this worker's log", hint=refused.text)
        handlers = {"prepare": self._prepare, "commit": self._commit, "drain": self._drain, "status": self._status}
        async with ControlLink(control, peer="supervisor", handlers=handlers) as link:
            await self._checkpoint(self.recorder.head())
            await self._open()
            self._doors = Doors(self, doors, lambda session: link.push("session_over", session=session))
            self._doors.start()
            link.push("ready", unenforced=list(self._unenforced))
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick_forever())
                gone = group.create_task(link.closed.wait())
                stopping = group.create_task(self._stopping.wait())
                await asyncio.wait([gone, stopping], return_when=asyncio.FIRST_COMPLETED)
                for task in (ticking, gone, stopping):
                    task.cancel()
        await self._end()

    def _make_engine(self) -> None:
        self.options = Options()
        self.mode = ProxyMode.parse("regular")
        master = Master(self.options)
        oplog.set_up(style=oplog.inherited_format())  # after the master, which takes the root logger for itself
        logging.getLogger("mitmproxy").setLevel(logging.CRITICAL)  # its words hold the sandbox's bytes
        addons = [Admission(self.channels), VerdictAddon(), Scrub(), Record()]
        # Proxyserver for its options only: it never listens, our own sockets do.
        master.addons.add(Proxyserver(), *addons)
        self.options.update(server=False, connection_strategy="lazy", http2_ping_keepalive=0)
        if not self.options.validate_inbound_headers:
            raise LaunchError("mitmproxy does not check inbound headers", where="validate_inbound_headers")
        self.hooks: dict[str, tuple[Hook, ...]] = {
            name: tuple(getattr(addon, name) for addon in addons if hasattr(addon, name)) for name in _HOOKS
        }
        self.hooks["tls_start_client"] = (self._certify_leaf,)
        self.hooks["pay"] = (pay,)
        self.hooks["breathe"] = (breathe,)
        self.hooks["name"] = (name_virtual,)

    def _make_gate(self) -> None:
        audit = Path(self.settings.audit.dir)
        self.chain = f"gate-{self.index}-{secrets.token_hex(6)}"
        writer = ChainWriter(
            audit,
            self.chain,
            fsync=self.settings.audit.fsync,
            checkpoint_events=self.settings.audit.checkpoint_events,
            checkpoint_seconds=self.settings.audit.checkpoint_seconds,
        )
        self.recorder = Recorder(writer)
        self.keeper = KeeperClient(self._keeper_path, f"gate-{self.index}", self._pushed)
        prepared = prepare(self.settings, own_addresses(), self.settings.listen.ports())
        self.gate = Gate(prepared, keeper=self.keeper, recorder=self.recorder, key=secrets.token_bytes(32))
        self.gate.certify = self._certify
        self.gate.sessions.on_end = self._session_ended
        self.contexts = Contexts(self.keeper, self.settings.upstream)
        self.watch = Watch(self.gate, self.handlers)

    def _confine(self) -> None:
        """Give up what is not needed from here on; listeners and log are open by now."""
        roots = {Path(file).resolve().parent for file in trust_files(self.settings.upstream, os.environ)}
        read = [*interpreter_paths(), *roots, Path("/etc/resolv.conf"), Path("/proc"), Path("/etc/ssl")]
        done = confine(read=read, append=[Path(self.settings.audit.dir) / self.chain])
        self._unenforced = done.unenforced

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        for bound in self._bound:
            if bound.way is Way.DNS:
                await self._open_dns(bound.sock)
                continue
            accept = functools.partial(self.admit, bound.way)
            self._servers.append(await loop.create_server(accept, sock=bound.sock, backlog=1024))

    async def _open_dns(self, sock: socket.socket) -> None:
        listener = sock.getsockname()[:2]
        listen = self.settings.listen
        takers = listen.transparent if self.settings.dns.answer == "virtual" else listen.tls
        desk = DnsDesk(self.gate, listener, names_lead_to(listener, takers, own_devices()))
        answer = functools.partial(self.answer, desk)
        self._responders.append(await open_responder(sock, answer, self.spawn))

    async def answer(self, desk: DnsDesk, wire: bytes, source: str) -> bytes | None:
        """Answer a question; a fault of ours is no answer, and stands in the log (invariants 2 and 6)."""
        try:
            return await desk.answer(wire, source)
        except Exception as fault:
            _log.error("a question was dropped by a fault in the gate: %s", fault_place(fault))
            self.recorder.fault("dns", where=fault_place(fault))
            return None

    async def _end(self) -> None:
        if self._doors is not None:
            self._doors.stop()
        for responder in self._responders:
            responder.close()
        for server in self._servers:
            server.close()
        for handler in list(self.handlers):
            handler.cut(None, End.STOPPED)
        await asyncio.sleep(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)  # what they still record stands before the last line
        self.recorder.close()
        with contextlib.suppress(KeeperError):  # the keeper's book takes the last line, which no line here can sign
            last = self.recorder.head()
            await self.keeper.checkpoint(last.chain, last.seq, last.head, last=True)
        await self.keeper.close()

    # -- handler.Engine ---------------------------------------------------------------------------

    def admit(self, way: Way, door: Door | None = None, port: int = 0) -> asyncio.Protocol:
        """Return the protocol of a connection that is accepted next; `door` is the one it comes by."""
        handler = ConnectionHandler(self, way, door, port)
        self.handlers.add(handler)
        return handler.accept()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `coroutine` in a task that this worker owns."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def make_channel(self, peer: tuple[str, int], local: tuple[str, int], door: Door | None) -> Channel:
        """Make the lane-free half of a client connection."""
        channel = Channel(self.gate, peer, local, door)
        most = _STRANGERS * self.settings.limits.connections_per_session
        self.strangers.come(channel, most=most, in_all=self.descriptors.limit // 2)
        if self.descriptors.short() and len(self.strangers) > 1:
            self.strangers.evict_oldest()
        return channel

    def may_dial(self, channel: Channel) -> bool:
        """Tell whether one more upstream may be opened: for its session, and for this process."""
        session = channel.session
        most = _UPSTREAMS * self.settings.limits.connections_per_session
        return session is not None and session.upstreams < most and not self.descriptors.short()

    def top_layer(self, context: Context, handler: ConnectionHandler) -> layer.Layer:
        """Make the first layer."""
        self.channels.add(context.client, handler.channel)
        if handler.dialled is not None:
            return CapturedLayer(context, handler.channel, self.contexts, handler.dialled)
        return EntryLayer(context, handler.channel, self.contexts)

    def next_layer(self, pending: layer.NextLayer) -> None:
        """Choose what is inside a tunnel."""
        choose_inside(pending, self.channels.of(pending.context.client), self.contexts)

    def forget(self, handler: ConnectionHandler) -> None:
        """Drop a handler that is done."""
        self.handlers.discard(handler)
        self.strangers.leave(handler.channel)
        self.channels.drop(handler.client)
        self._stop_if_idle()

    # -- certificates -----------------------------------------------------------------------------

    def _certify_leaf(self, data: Any) -> Any:
        return certify_hook(self.contexts, self.channels.of(data.context.client))

    async def _certify(self, session: SessionId, name: str, denied: bool) -> Reason | None:
        if self.contexts.leaf(session, name) is not None:
            return None
        made = await self.contexts.certify(session, name, denied=denied)
        return made if isinstance(made, Reason) else None

    # -- the keeper -------------------------------------------------------------------------------

    def _pushed(self, push: Push) -> None:
        self.gate.sessions.pushed(push)

    def _session_ended(self, session: SessionId) -> None:
        self.contexts.forget(session)
        self.gate.ledger.forget(session)
        if self._doors is not None:
            self._doors.over(session)

    async def _checkpoint(self, head: Head | None) -> None:
        """Have `head` signed: at birth, and when one is due."""
        if head is None:
            return
        with contextlib.suppress(KeeperError):
            note = await self.keeper.checkpoint(head.chain, head.seq, head.head)
            if not isinstance(note, Reason):
                self.recorder.checkpoint(head, note.decode())

    # -- the supervisor ---------------------------------------------------------------------------

    async def _prepare(self, fields: Fields) -> Fields:
        settings, epoch = fields["settings"], int(str(fields["epoch"]))
        if not isinstance(settings, bytes):
            raise LaunchError("a reload came without settings")
        decoded = decode_gate(settings)
        prepared = prepare(decoded, own_addresses(), self.settings.listen.ports())
        self._pending = {epoch: (prepared, self.contexts.prepare(decoded.upstream))}
        return {}

    async def _commit(self, fields: Fields) -> Fields:
        epoch = int(str(fields["epoch"]))
        found = self._pending.pop(epoch, None)
        if found is None:
            raise LaunchError(f"epoch {epoch} was not prepared")
        prepared, trust = found
        self.settings = prepared.settings
        self.contexts.adopt(prepared.settings.upstream, trust)
        self.gate.adopt(prepared, epoch)
        self.watch.rejudge()
        return {}

    async def _drain(self, fields: Fields) -> Fields:
        seconds = float(str(fields["seconds"]))
        for server in self._servers:
            server.close()
        if self._doors is not None:
            self._doors.stop()
        self._draining = True
        self.watch.drain()
        self._stop_if_idle()
        asyncio.get_running_loop().call_later(seconds, self._stopping.set)
        return {}

    def _stop_if_idle(self) -> None:
        if self._draining and not self.handlers:
            self._stopping.set()

    async def _status(self, _: Fields) -> Fields:
        told = (self.recorder.problem(), self.keeper.problem, self.descriptors.problem())
        problems = [text for text in told if text]
        if self.keeper.down_seconds() > 0:
            problems.append("the keeper does not answer")
        return {
            "ready": not problems,
            "sessions": len(self.gate.sessions),
            "connections": len(self.handlers),
            "problems": problems,
            "unenforced": list(self._unenforced),
            "epoch": self.gate.epoch,
        }

    # -- each second ------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        offset = SYSTEM.wall() - SYSTEM.boot()
        collected = SYSTEM.boot()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = SYSTEM.boot()
            try:
                offset = self._notice_step(offset)
                self._tick(now)
            except Exception as fault:  # nothing of a second's housekeeping is worth everybody's connections
                _log.error("a second's work failed: %s", fault_place(fault))
                self.recorder.fault("tick", where=fault_place(fault))
            if now - collected > _COLLECT_SECONDS:
                collected = now
                _collect()

    def _tick(self, now: float) -> None:
        self.recorder.tick(now)
        self.gate.sessions.sweep(now)
        self.watch.tick()
        if self.descriptors.short():
            self.recorder.fault("descriptors", where="worker", detail=loggable(self.descriptors.problem() or ""))
            self.watch.make_room(self.descriptors.reserve)
        self.spawn(self._checkpoint(self.recorder.checkpoint_due()))
        self.spawn(settle(self.recorder, self.keeper, now))

    def _notice_step(self, offset: float) -> float:
        """A step of the wall clock drops every lease: their lifetimes may have been told by it."""
        fresh = SYSTEM.wall() - SYSTEM.boot()
        if abs(fresh - offset) > _STEP_SECONDS:
            self.recorder.fault("clock_step", where="worker", detail=loggable(f"{fresh - offset:+.1f} s"))
            self.gate.sessions.drop_leases()
        return fresh


def _collect() -> None:
    """Give back what closed connections left: they are cycles, and glibc keeps their pages."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
