"""The calling side of a link: calls out, replies and pushes in, matched by id."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.errors import KeeperError
from tidegate.frame import read_body
from tidegate.keeper.protocol import AdminAsk, AdminCall, Push, Reply, WorkerAsk, WorkerCall
from tidegate.keeper.wire import decode_reply, decode_result, frame
from tidegate.policy.reasons import Reason

__all__ = ["Link", "LinkLost"]

_REASONS: Final = {reason.code: reason for reason in Reason}


class LinkLost(KeeperError):
    """The keeper did not answer in time, or is gone."""


class Link:
    """One connected stream to the keeper.

    `call` raises `LinkLost` when no reply comes and `KeeperError` when the keeper says what went
    wrong; a denial is a `Reason` and a value.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        frame_bytes: int,
        on_push: Callable[[Push], None] | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._frame_bytes = frame_bytes
        self._on_push = on_push
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._lost = False

    async def read_forever(self) -> None:
        """Take frames until the link ends; then every waiting call raises `LinkLost`."""
        try:
            while True:
                self._take(decode_reply(await read_body(self._reader, self._frame_bytes)))
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            return
        finally:
            self.close()

    def _take(self, reply: Reply) -> None:
        if reply.push is not None:
            if self._on_push is not None:
                self._on_push(reply.push)
            return
        waiter = self._waiting.pop(reply.id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def close(self) -> None:
        """End the link; safe to call twice."""
        self._lost = True
        self._writer.close()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(LinkLost("the keeper is gone"))

    async def ask_worker[T](self, ask: WorkerAsk, kind: type[T]) -> T | Reason:
        """Ask on keeper.sock and wait for the reply, `ask.seconds` at most."""
        self._last_id += 1
        return await self._send(WorkerCall(self._last_id, ask), kind, ask.seconds)

    def tell(self, ask: WorkerAsk) -> None:
        """Say something on keeper.sock that needs no reply; nothing comes of it when the link is gone."""
        if not self._lost:
            self._last_id += 1
            self._writer.write(frame(WorkerCall(self._last_id, ask)))

    async def ask_admin[T](self, ask: AdminAsk, kind: type[T]) -> T | Reason:
        """Ask on the admin link and wait for the reply, `ask.seconds` at most."""
        self._last_id += 1
        return await self._send(AdminCall(self._last_id, ask), kind, ask.seconds)

    async def _send[T](self, call: WorkerCall | AdminCall, kind: type[T], seconds: float) -> T | Reason:
        if self._lost:
            raise LinkLost("the keeper is gone")
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = waiter
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(frame(call))
                await self._writer.drain()
                reply = await waiter
        except (TimeoutError, OSError) as fault:
            raise LinkLost("the keeper does not answer") from fault
        finally:
            self._waiting.pop(call.id, None)
        return _read(reply, kind)


def _read[T](reply: Reply, kind: type[T]) -> T | Reason:
    if reply.reason is not None:
        return _REASONS[reply.reason]
    if reply.fault is not None or not bytes(reply.ok):
        raise KeeperError(reply.fault or "the keeper sent an empty reply")
    return decode_result(reply.ok, kind)
