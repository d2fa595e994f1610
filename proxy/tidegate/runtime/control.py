"""The framed links between the supervisor and its children.

The body of a frame (`tidegate.frame`) is one msgpack map:

| map | meaning |
|---|---|
| `{id, method, …}` | a request; the other parameters stand beside the method |
| `{id, ok}` | its answer, a map |
| `{id, error}` | its refusal: one line of text |
| `{push, …}` | a notice that wants no answer |

Both ends may ask. A peer that breaks the framing is cut off: the link then behaves as closed.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

import msgspec

from tidegate.errors import TidegateError
from tidegate.frame import HEADER_BYTES, FrameTooLong, body_bytes, framed, read_body

__all__ = [
    "FRAME_LIMIT",
    "ControlLink",
    "Fields",
    "Handler",
    "LinkError",
    "decode",
    "encode",
    "read_frame",
    "receive",
    "send",
]

type Fields = Mapping[str, object]
type Handler = Callable[[Fields], Awaitable[Fields]]

FRAME_LIMIT: Final = 64 * 1024 * 1024
"""Settings of 10,000 rules and more travel in one frame; a child is trusted not to fill memory for fun."""

_CALL_SECONDS: Final = 10.0


class LinkError(TidegateError):
    """The peer refused a request, did not answer in time, or is gone."""


def encode(fields: Fields) -> bytes:
    """Return one frame. Raises `LinkError` when it would be too long."""
    body = msgspec.msgpack.encode(fields)
    if len(body) > FRAME_LIMIT:
        raise LinkError(f"a control message of {len(body)} bytes is over the limit of {FRAME_LIMIT}")
    return framed(body)


def decode(body: bytes) -> dict[str, object]:
    """Return the map in a frame's body. Raises `LinkError` when it is no map."""
    try:
        return msgspec.msgpack.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as fault:
        raise LinkError(f"a control message cannot be read: {fault}") from fault


async def read_frame(reader: asyncio.StreamReader) -> dict[str, object] | None:
    """Read one frame; None at the end of the stream. Raises `LinkError` on anything else."""
    try:
        body = await read_body(reader, FRAME_LIMIT)
    except FrameTooLong as fault:
        raise LinkError(str(fault)) from fault
    except (asyncio.IncompleteReadError, OSError):
        return None
    return decode(body)


def send(sock: socket.socket, fields: Fields) -> None:
    """Write one frame to a blocking socket."""
    sock.sendall(encode(fields))


def receive(sock: socket.socket) -> dict[str, object] | None:
    """Read one frame from a blocking socket; None at its end."""
    header = _exactly(sock, HEADER_BYTES)
    if header is None:
        return None
    try:
        body = _exactly(sock, body_bytes(header, FRAME_LIMIT))
    except FrameTooLong as fault:
        raise LinkError(str(fault)) from fault
    return None if body is None else decode(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


class ControlLink:
    """One end of a link, on the event loop; an asynchronous context manager that owns its reader task.

    `handlers` answer the peer's requests by method; `on_push` is told its notices. `closed` is set
    when the peer is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        peer: str,
        handlers: Mapping[str, Handler] | None = None,
        on_push: Callable[[Fields], None] | None = None,
    ) -> None:
        self._sock = sock
        self._peer = peer
        self._handlers = handlers or {}
        self._on_push = on_push
        self._pending: dict[int, asyncio.Future[Fields]] = {}
        self._serial = 0
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._task = asyncio.get_running_loop().create_task(self._read(reader), name=f"link {self._peer}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._close()

    async def call(self, method: str, *, timeout: float = _CALL_SECONDS, **params: object) -> Fields:  # noqa: ASYNC109
        """Ask the peer and return its answer. Raises `LinkError`."""
        if self.closed.is_set() or self._writer is None:
            raise LinkError(f"{self._peer} is not there")
        self._serial += 1
        serial = self._serial
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._pending[serial] = answer
        try:
            async with asyncio.timeout(timeout):
                await self._write({**params, "id": serial, "method": method})
                return await answer
        except TimeoutError:
            raise LinkError(f"{self._peer} did not answer «{method}» within {timeout:g} s") from None
        finally:
            self._pending.pop(serial, None)

    def push(self, kind: str, **params: object) -> None:
        """Send a notice; a peer that is gone does not hear it."""
        if self._writer is not None and not self.closed.is_set():
            self._writer.write(encode({**params, "push": kind}))

    async def _write(self, fields: Fields) -> None:
        if self._writer is None:
            raise LinkError(f"{self._peer} is not there")
        try:
            self._writer.write(encode(fields))
            await self._writer.drain()
        except OSError as fault:
            raise LinkError(f"{self._peer} is gone") from fault

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while (fields := await read_frame(reader)) is not None:
                    if "method" in fields:
                        tasks.create_task(self._answer(fields))
                    else:
                        self._take(fields)
                self._close()  # before the group waits for handlers: whoever waits for this peer waits in vain
        except* LinkError:
            pass  # a peer that breaks the framing is treated like one that is gone
        finally:
            self._close()

    def _take(self, fields: Fields) -> None:
        if "push" in fields:
            if self._on_push is not None:
                self._on_push(fields)
            return
        serial = fields.get("id")
        answer = self._pending.get(serial) if isinstance(serial, int) else None
        if answer is None or answer.done():
            return
        if "error" in fields:
            answer.set_exception(LinkError(str(fields["error"]), where=self._peer))
            return
        ok = fields.get("ok")
        answer.set_result(ok if isinstance(ok, dict) else {"value": ok})

    async def _answer(self, fields: Fields) -> None:
        handler = self._handlers.get(str(fields["method"]))
        reply: dict[str, object] = {"id": fields.get("id")}
        if handler is None:
            reply["error"] = f"unknown method «{fields['method']}»"
        else:
            try:
                reply["ok"] = await handler(fields)
            except TidegateError as fault:
                reply["error"] = str(fault)
            except Exception as fault:  # the asker must hear of a fault, whatever it is, and the link must live
                reply["error"] = f"internal fault: {type(fault).__name__}"
        with contextlib.suppress(LinkError):
            await self._write(reply)

    def _close(self) -> None:
        self.closed.set()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(LinkError(f"{self._peer} is gone"))
        if self._writer is not None:
            self._writer.close()
