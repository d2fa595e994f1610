"""The HTTP/2 side of `upstream`: the same paths, framed by h2."""

import asyncio
import contextlib

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from tests.lab.http import Reply, Request, standard_reply
from tests.lab.upstream import Connection

__all__ = ["serve_http2"]


class _Session:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self.open: dict[int, tuple[Request, list[bytes]]] = {}
        self.window = asyncio.Condition()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.connection.send(data)

    async def send(self, stream: int, data: bytes) -> None:
        while data:
            async with self.window:
                await self.window.wait_for(lambda: self.h2.local_flow_control_window(stream) > 0)
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
            self.h2.send_data(stream, data[:size])
            data = data[size:]
            await self.flush()

    async def reply(self, stream: int, request: Request, reply: Reply) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError, ConnectionError):
            for status, headers in reply.early:
                self.h2.send_headers(stream, _fields(status, headers))
            headers = list(reply.headers)
            if isinstance(reply.chunks, bytes) and reply.framing == "length" and reply.status not in (204, 304):
                headers.append(("content-length", str(len(reply.chunks))))
            bare = request.method == "HEAD" or reply.status in (204, 304)
            self.h2.send_headers(stream, _fields(reply.status, headers), end_stream=bare)
            await self.flush()
            if bare:
                return
            if isinstance(reply.chunks, bytes):
                await self.send(stream, reply.chunks)
            else:
                async for chunk in reply.chunks:
                    await self.send(stream, chunk)
            if reply.trailers:
                trailers = [(name.encode(), value.encode("latin-1")) for name, value in reply.trailers]
                self.h2.send_headers(stream, trailers, end_stream=True)
            else:
                self.h2.end_stream(stream)
            await self.flush()


def _fields(status: int, headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(b":status", str(status).encode()), *((n.lower().encode(), v.encode("latin-1")) for n, v in headers)]


def _request(event: h2.events.RequestReceived, connection: Connection) -> Request:
    pseudo = {name: value.decode("latin-1") for name, value in event.headers if name.startswith(b":")}
    headers = [(name, value) for name, value in event.headers if not name.startswith(b":")]
    headers.insert(0, (b":authority", pseudo.get(b":authority", "").encode("latin-1")))
    return Request(
        pseudo.get(b":method", ""),
        pseudo.get(b":path", ""),
        headers,
        version="HTTP/2",
        connection=connection.number,
        sni=connection.sni,
    )


async def serve_http2(connection: Connection) -> None:
    """Serve one HTTP/2 connection until either side ends it; streams run side by side."""
    session = _Session(connection)
    session.h2.initiate_connection()
    await session.flush()
    async with asyncio.TaskGroup() as tasks:
        while data := await connection.read():
            try:
                events = session.h2.receive_data(data)
            except h2.exceptions.ProtocolError:
                await session.flush()
                break
            for event in events:
                _handle(session, event, tasks)
            async with session.window:
                session.window.notify_all()
            await session.flush()
        for task in list(getattr(tasks, "_tasks", ())):
            task.cancel()


def _handle(session: _Session, event: h2.events.Event, tasks: asyncio.TaskGroup) -> None:
    server = session.connection.server
    match event:
        case h2.events.RequestReceived():
            session.open[event.stream_id] = (_request(event, session.connection), [])
        case h2.events.DataReceived():
            session.open[event.stream_id][1].append(event.data)
            session.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        case h2.events.StreamEnded():
            request, parts = session.open.pop(event.stream_id)
            request.body = b"".join(parts)
            server.keep(request)
            tasks.create_task(_answer(session, event.stream_id, request))
        case h2.events.StreamReset():
            session.open.pop(event.stream_id, None)
        case _:
            pass


async def _answer(session: _Session, stream: int, request: Request) -> None:
    server = session.connection.server
    route = server.handler(request.path)
    if isinstance(route, bytes):
        session.h2.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        await session.flush()
        return
    reply = await route(session.connection, request) if route else standard_reply(request, server.pause)
    if reply is not None:
        await session.reply(stream, request, reply)
