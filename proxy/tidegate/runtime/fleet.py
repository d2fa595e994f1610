"""The gate's workers: one zygote, N forks of it, each brought back when it ends.

A worker goes `forked → ready → gone`. The zygote gone, its workers are gone too (the kernel kills them), and
everything starts again. Before the first time that all are ready a death is final: a gate that cannot start says so
and does not try for ever.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate.keeper.protocol import FaultReport
from tidegate.runtime.children import Backoff, FirstStart, ending, first_of, socket_pair, start, stop
from tidegate.runtime.control import ControlLink, Fields, LinkError
from tidegate.runtime.door_post import DoorPost
from tidegate.runtime.identity import Identity
from tidegate.session.identity import SessionId

__all__ = ["Fleet", "Worker"]

_log = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 3.0
_HANG_SECONDS: Final = 30.0
_PREPARE_SECONDS: Final = 20.0
_LAST_SECONDS: Final = 4.0  # after the drain: the last records, and the keeper's signature under them


@dataclass(slots=True, eq=False)
class Worker:
    """One forked worker as the supervisor sees it."""

    index: int
    link: ControlLink
    epoch: int
    pid: int = 0
    pidfd: int = -1
    ready: bool = False
    fault: str = ""
    status: Fields = field(default_factory=dict)
    heard_at: float = field(default_factory=time.monotonic)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def problems(self) -> list[str]:
        """Return what keeps the worker from serving, in plain words."""
        if not self.ready:
            return [f"worker {self.index} is not ready"]
        silent = time.monotonic() - self.heard_at
        if silent > _SILENT_SECONDS:
            return [f"worker {self.index} has not answered for {silent:.0f} s"]
        told = self.status.get("problems")
        return [f"worker {self.index}: {text}" for text in told] if isinstance(told, list | tuple) else []

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, by descriptor: a pid may by now be another's."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


class Fleet:
    """Runs the workers. `settings()` gives (epoch, bytes) for a worker that starts now."""

    name = "gate"

    def __init__(
        self,
        *,
        count: int,
        identity: Identity,
        keeper_socket: Path,
        environment: Mapping[str, str],
        settings: Callable[[], tuple[int, bytes]],
        on_fault: Callable[[FaultReport], None],
        on_over: Callable[[SessionId], None] = lambda _: None,
        module: str = "tidegate.runtime.worker",
    ) -> None:
        self._count = count
        self._module = module
        self._identity = identity
        self._keeper_socket = keeper_socket
        self._environment = environment
        self._settings = settings
        self._on_fault = on_fault
        self._on_over = on_over
        self.doors = DoorPost()
        self._slots: list[Worker | None] = [None] * count
        self._zygote: _Zygote | None = None
        self._orphans: tuple[int, ...] = ()
        self._prepared: set[Worker] = set()
        self._first = FirstStart()
        self._ending = asyncio.Event()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers that run now."""
        return tuple(worker for worker in self._slots if worker is not None)

    def problems(self) -> list[str]:
        """Return what keeps the gate from serving, in plain words."""
        found: list[str] = []
        for index, worker in enumerate(self._slots):
            found += [f"worker {index} is not running"] if worker is None else worker.problems()
        return found

    def unenforced(self) -> list[str]:
        """Return what the workers are not held back from on this machine, though they are on others."""
        told = [worker.status.get("unenforced") for worker in self.workers]
        found = [str(text) for texts in told if isinstance(texts, list | tuple) for text in texts]
        return [f"not held back on this machine: a worker from {text}" for text in dict.fromkeys(found)]

    async def wait_ready(self) -> None:
        """Wait until every worker is ready for the first time. Raises `LaunchError` when one cannot be."""
        await self._first.wait()

    async def run(self) -> None:
        """Keep the zygote and the workers running until `end`."""
        backoff = Backoff()
        while not self._ending.is_set():
            begun = time.monotonic()
            try:
                await self._life()
            except LaunchError as fault:
                self._first.fail(str(fault))
            if not self._ending.is_set():
                if not self._first.made:
                    self._first.fail("the gate's zygote ended before a worker was ready")
                    return
                self._fault("zygote_ended", "the gate's zygote ended; starting it again", *self._orphans)
                await asyncio.sleep(backoff.delay(ran=time.monotonic() - begun))

    async def _life(self) -> None:
        """One life of the zygote."""
        async with AsyncExitStack() as stack:
            zygote = self._zygote = await _Zygote.start(
                stack, self._module, self._environment, self._forked, self._exited
            )
            if not await zygote.wait_ready():
                return
            async with asyncio.TaskGroup() as group:
                slots = [group.create_task(self._slot(index, zygote)) for index in range(self._count)]
                await zygote.link.closed.wait()
                self._orphans = tuple(worker.pid for worker in self.workers)
                for worker in self.workers:
                    worker.gone.set()  # the kernel killed it together with its zygote
                if self._ending.is_set():
                    return
                for slot in slots:
                    slot.cancel()

    async def _slot(self, index: int, zygote: "_Zygote") -> None:
        """Keep one worker running while the zygote lives."""
        backoff = Backoff()
        while not self._ending.is_set():
            begun = time.monotonic()
            worker = await self._one(index, zygote)
            if self._ending.is_set():
                return
            why = f": {worker.fault}" if worker.fault else ""
            if not self._first.made:
                self._first.fail(f"worker {index} could not start{why}")
                return
            self._fault("worker_ended", f"worker {index} (pid {worker.pid}) ended{why}; starting it again", worker.pid)
            await asyncio.sleep(backoff.delay(ran=time.monotonic() - begun))

    async def _one(self, index: int, zygote: "_Zygote") -> Worker:
        """One life of a worker."""
        ours, theirs = socket_pair()
        epoch, settings = self._settings()
        worker: Worker | None = None

        def on_push(fields: Fields) -> None:
            if worker is not None:
                self._told(worker, fields)

        async with ControlLink(ours, peer=f"worker {index}", on_push=on_push) as link:
            worker = self._slots[index] = Worker(index, link, epoch)
            wire, doors = self.doors.join()
            try:
                zygote.fork(index, theirs, doors)
                link.push(
                    "start",
                    settings=settings,
                    keeper=str(self._keeper_socket),
                    uid=self._identity.uid,
                    gid=self._identity.gid,
                )
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(self._watch(worker))
                    await worker.gone.wait()
                    watch.cancel()
            finally:
                self._slots[index] = None
                self.doors.leave(wire)
                if worker.pidfd >= 0:
                    os.close(worker.pidfd)
                    worker.pidfd = -1
        return worker

    async def _watch(self, worker: Worker) -> None:
        """Ask a worker how it is; one whose loop hangs is killed, which brings it back."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                worker.status = await worker.link.call("status", timeout=_HANG_SECONDS)
                worker.heard_at = time.monotonic()
            except LinkError as fault:
                if worker.link.closed.is_set():
                    return
                worker.fault = str(fault)
                worker.signal(signal.SIGKILL)
                return

    def _told(self, worker: Worker, fields: Fields) -> None:
        if fields["push"] == "ready":
            worker.ready, worker.heard_at = True, time.monotonic()
            worker.status = {"unenforced": fields.get("unenforced", [])}
            self._succeed_if_all_serve()
        elif fields["push"] == "session_over":
            self._on_over(SessionId(str(fields.get("session"))))
        elif fields["push"] == "fault":
            worker.fault = str(fields.get("what", ""))
            self._fault("worker_fault", f"worker {worker.index}: {worker.fault}")

    def _forked(self, index: int, pid: int) -> None:
        worker = self._slots[index]
        if worker is not None and not worker.pid:
            worker.pid = pid
            try:
                worker.pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                pass  # it ended at once; its end is announced next
            self._succeed_if_all_serve()

    def _succeed_if_all_serve(self) -> None:
        """Say that the first start is made; the zygote's word of a pid may come after the worker's own."""
        if all(worker is not None and worker.ready and worker.pid for worker in self._slots):
            self._first.succeed()

    def _exited(self, index: int, pid: int, status: int) -> None:
        worker = self._slots[index] if 0 <= index < self._count else None
        if worker is not None and worker.pid == pid:
            if not worker.fault:
                worker.fault = f"it {ending(status)}"
            worker.gone.set()

    def _fault(self, name: str, text: str, *gone: int) -> None:
        _log.error("%s", text)
        self._on_fault(FaultReport(name, text, tuple(pid for pid in gone if pid)))

    # ---- reload: one of the participants of `two_phase` ------------------------------------------

    async def prepare(self, epoch: int, settings: bytes) -> None:
        """Have every worker check and compile the settings. Raises `LinkError` when one cannot."""
        self._prepared = set()
        workers = [worker for worker in self.workers if worker.ready]
        asks = [
            worker.link.call("prepare", timeout=_PREPARE_SECONDS, epoch=epoch, settings=settings) for worker in workers
        ]
        answers = await asyncio.gather(*asks, return_exceptions=True)  # all have answered when one's fault is told
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self._prepared = set(workers)

    async def commit(self, epoch: int) -> None:
        """Switch every worker; one that missed it is ended and comes back with the new settings."""
        for worker in self.workers:
            try:
                if worker not in self._prepared:
                    raise LinkError(f"worker {worker.index} started during the reload")
                await worker.link.call("commit", epoch=epoch)
                worker.epoch = epoch
            except LinkError as fault:
                worker.fault = f"{fault}; it must not serve the old policy"
                worker.signal(signal.SIGKILL)
        self._prepared = set()

    # ---- the end ---------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Let the workers finish what they serve, for at most this long, then end them and the zygote."""
        self._ending.set()
        workers = self.workers

        async def one(worker: Worker) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds + _LAST_SECONDS):
                    with suppress(LinkError):  # one that is quick ends before its answer is read
                        await worker.link.call("drain", timeout=seconds + _LAST_SECONDS, seconds=seconds)
                    await worker.gone.wait()
            worker.signal(signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(one(worker))
        await self.end()

    async def end(self) -> None:
        """End everything at once."""
        self._ending.set()
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        if self._zygote is not None:
            await stop(self._zygote.process, grace=0.5)


class _Zygote:
    """The process that forks workers, and our end of its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, sock: socket.socket, link: ControlLink, ready: asyncio.Event
    ) -> None:
        self.process = process
        self.link = link
        self._sock = sock
        self._ready = ready

    @classmethod
    async def start(
        cls,
        stack: AsyncExitStack,
        module: str,
        environment: Mapping[str, str],
        forked: Callable[[int, int], None],
        exited: Callable[[int, int, int], None],
    ) -> "_Zygote":
        """Start it; the stack ends it."""
        ours, theirs = socket_pair()
        ready = asyncio.Event()

        def on_push(fields: Fields) -> None:
            numbers = {key: value for key, value in fields.items() if isinstance(value, int)}
            match fields["push"]:
                case "ready":
                    ready.set()
                case "forked":
                    forked(numbers["index"], numbers["pid"])
                case "exited":
                    exited(numbers["index"], numbers["pid"], numbers["status"])

        arguments = [str(os.getpid()), str(theirs.fileno()), module]
        process = await start("tidegate.runtime.zygote", arguments, environment=environment, descriptors=[theirs])
        stack.push_async_callback(stop, process, grace=0.5)
        link = await stack.enter_async_context(ControlLink(ours, peer="the gate's zygote", on_push=on_push))
        return cls(process, ours, link, ready)

    async def wait_ready(self) -> bool:
        """Wait until it has imported the engine; False when it ended instead."""
        await first_of(self._ready, self.link.closed)
        return self._ready.is_set()

    def fork(self, index: int, control: socket.socket, doors: socket.socket) -> None:
        """Ask for a worker that gets these sockets; our copies are closed."""
        with control, doors:
            try:
                socket.send_fds(self._sock, [b"\0"], [control.fileno(), doors.fileno()])
            except OSError as fault:
                raise LaunchError("the gate's zygote is gone") from fault
        self.link.push("fork", fork=index)
