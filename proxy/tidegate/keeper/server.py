"""The keeper's two doors: keeper.sock for the workers, the inherited socketpair for the supervisor.

A peer is judged by its uid (`peer.py`) before a byte is read, and cut at the first frame
that is too long, cannot be read or comes on top of too many others. It gets no word why.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, final

import msgspec

from tidegate.errors import TidegateError
from tidegate.frame import read_body
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.core import Keeper
from tidegate.keeper.muster import Server
from tidegate.keeper.protocol import ADMIN_FRAME_BYTES, FRAME_BYTES, EpochPush, Push, Reply, SessionEnded, SourceBound
from tidegate.keeper.rate import Rate
from tidegate.keeper.tasks import OwnedTasks
from tidegate.keeper.wire import decode_admin_call, decode_worker_call, frame, raw
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.peer import peer_of
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

__all__ = ["AdminDoor", "WorkerDoor"]

_AT_ONCE: Final = 512
_UNREAD_BYTES: Final = 8 << 20
_MOST_LINKS: Final = 256
_MOST_LINKS_PER_PROCESS: Final = 4  # a worker has one, and for a moment the one before it


async def _reply(call_id: int, answer: Awaitable[object]) -> Reply:
    """Return the reply to a call; whatever happens the caller gets one, and no secret in it."""
    try:
        result = await answer
    except TidegateError as fault:
        return Reply(call_id, fault=str(fault))
    except Exception as fault:  # a fault of ours: the caller is denied (invariant 2) and the keeper lives
        return Reply(call_id, fault=f"internal fault: {type(fault).__name__}")
    if isinstance(result, Reason):
        return Reply(call_id, reason=result.code)
    return Reply(call_id, ok=raw(result))


@final
class _Link:
    """One worker's link."""

    def __init__(self, desk: WorkerDesk, writer: asyncio.StreamWriter, pid: int) -> None:
        self.desk = desk
        self.pid = pid
        self._writer = writer

    def send(self, reply: Reply) -> None:
        """Send a frame; a peer that does not read is cut."""
        self._writer.write(frame(reply))
        if self._writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self._writer.transport.abort()


@final
class WorkerDoor:
    """keeper.sock."""

    def __init__(self, keeper: Keeper, path: Path, *, gate_uid: int) -> None:
        self._keeper = keeper
        self._path = path
        self._gate_uid = gate_uid
        self._allowances = Allowances(keeper.clock.boot())
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._tasks = OwnedTasks()
        keeper.muster.on_cut = self._cut_off

    def workers(self) -> int:
        """Return how many links are up."""
        return len(self._links)

    async def open(self) -> None:
        """Listen. The mode lets any uid connect; which one may speak is decided by its credentials."""
        if self._server is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=FRAME_BYTES)
        self._path.chmod(0o666)
        self._keeper.muster.opened(restarted=self._keeper.restarted)

    async def close(self) -> None:
        """Stop listening and cut the links."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        await self._tasks.close()

    def push(self, push: Push, but: object) -> None:
        """Tell every link that serves the push's session, except that of desk `but`; every link what is of none."""
        for link in list(self._links):
            if isinstance(push, EpochPush | SourceBound):
                link.send(Reply(push=push))
            elif push.sid in link.desk.opened and link.desk is not but:
                link.send(Reply(push=push))
                if isinstance(push, SessionEnded):
                    link.desk.opened.discard(push.sid)

    def _cut_off(self, server: Server, session: SessionId) -> None:
        """Tell a worker that did not take a secret that the session is over for it; it may open it anew."""
        for link in list(self._links):
            if link.desk is server:
                link.send(Reply(push=SessionEnded(session, "unsettled")))
        with contextlib.suppress(TidegateError):
            detail = f"worker process {server.pid} did not take a secret to search for: cut off from session {session}"
            self._keeper.journal.fault("worker_cut_off", detail)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_of(writer.get_extra_info("socket"))
        if peer is None or peer.uid != self._gate_uid or self._is_full(peer.pid):
            writer.close()
            return
        link = _Link(WorkerDesk(self._keeper, self._allowances, pid=peer.pid), writer, peer.pid)
        self._links.add(link)
        try:
            await self._serve(link, reader)
        except (OSError, EOFError, msgspec.MsgspecError, RecursionError):
            pass  # gone, or cut for what it sent
        finally:
            self._links.discard(link)
            link.desk.lost()
            writer.close()

    def _is_full(self, pid: int) -> bool:
        # 0 is every process of another pid namespace: those are bounded together alone.
        same = sum(link.pid == pid for link in self._links) if pid > 0 else 0
        return len(self._links) >= _MOST_LINKS or same >= _MOST_LINKS_PER_PROCESS

    async def _serve(self, link: _Link, reader: asyncio.StreamReader) -> None:
        rate = Rate(per_second=20_000, burst=40_000, now=self._keeper.clock.boot())
        slots = asyncio.Semaphore(_AT_ONCE)
        while True:
            call = decode_worker_call(await read_body(reader, FRAME_BYTES))
            if slots.locked() or not rate.take(self._keeper.clock.boot()):
                raise ConnectionError("too many asks")
            await slots.acquire()
            self._tasks.spawn(self._answer(link, call.id, link.desk.answer(call.ask), slots), name="answer")

    async def _answer(self, link: _Link, call_id: int, answer: Awaitable[object], slots: asyncio.Semaphore) -> None:
        try:
            link.send(await _reply(call_id, answer))
        finally:
            slots.release()


@final
class AdminDoor:
    """The supervisor's socketpair. Its end is the keeper's end."""

    def __init__(self, desk: AdminDesk, sock: socket.socket, after: Callable[[], Awaitable[None]]) -> None:
        self._desk = desk
        self._sock = sock
        self._after = after

    async def serve(self) -> None:
        """Answer asks one after the other until the supervisor is gone."""
        reader, writer = await asyncio.open_unix_connection(sock=self._sock, limit=1 << 20)
        try:
            while True:
                call = decode_admin_call(await read_body(reader, ADMIN_FRAME_BYTES))
                reply = await _reply(call.id, self._desk.answer(call.ask))
                await self._after()
                writer.write(frame(reply))
                await writer.drain()
        except (OSError, EOFError, msgspec.MsgspecError):
            return
        finally:
            writer.close()
