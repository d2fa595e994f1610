"""What a server of the lab says: requests as they were seen, replies before they are framed."""

import base64
import dataclasses
import gzip
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, urlsplit

import brotli
import zstandard

__all__ = ["MIB", "Reply", "Request", "encode", "payload", "standard_reply"]

MIB = 1024 * 1024


@dataclasses.dataclass
class Request:
    """A request as the server saw it. `raw_head` is byte-exact for HTTP/1, empty for HTTP/2."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    version: str = "HTTP/1.1"
    raw_head: bytes = b""
    connection: int = 0
    sni: str | None = None
    trailers: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)

    @property
    def path(self) -> str:
        """The target without its query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The last value of each query parameter."""
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    def header_all(self, name: str) -> list[str]:
        """Return every value of a header."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]


@dataclasses.dataclass
class Reply:
    """A reply: `framing` matters to HTTP/1 only. `chunks` may be bytes, or an iterator that takes its time."""

    status: int = 200
    headers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    chunks: bytes | AsyncIterator[bytes] = b""
    framing: str = "length"
    """length, chunked or close"""
    trailers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    early: list[tuple[int, list[tuple[str, str]]]] = dataclasses.field(default_factory=list)
    """1xx replies sent before."""


def payload(size: int) -> bytes:
    """Return `size` bytes that a test can make again; not compressible to nothing, not slow to make."""
    block = hashlib.shake_256(b"tidegate").digest(64 * 1024)
    return (block * (size // len(block) + 1))[:size]


def encode(coding: str, data: bytes) -> bytes:
    """Return `data` in a content coding; a list is applied from the left."""
    for one in coding.replace(" ", "").split(","):
        match one:
            case "gzip":
                data = gzip.compress(data)
            case "deflate":
                data = zlib.compress(data)
            case "br":
                data = brotli.compress(data)
            case "zstd":
                data = zstandard.compress(data)
            case "identity" | "":
                pass
            case _:
                raise ValueError(coding)
    return data


def _echo(request: Request) -> Reply:
    seen = {
        "method": request.method,
        "target": request.target,
        "version": request.version,
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers],
        "body": request.body.decode("latin-1") if len(request.body) <= 64 * 1024 else None,
        "length": len(request.body),
        "sha256": hashlib.sha256(request.body).hexdigest(),
        "connection": request.connection,
        "sni": request.sni,
    }
    return Reply(headers=[("content-type", "application/json")], chunks=json.dumps(seen).encode())


def _ranged(request: Request, body: bytes) -> Reply:
    headers = [("accept-ranges", "bytes"), ("etag", '"v1"'), ("content-type", "application/octet-stream")]
    asked = request.header("range")
    if asked and asked.startswith("bytes="):
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(body) - int(last)
        end = min(int(last) if last and first else len(body) - 1, len(body) - 1)
        if start > end:
            return Reply(416, [*headers, ("content-range", f"bytes */{len(body)}")])
        return Reply(206, [*headers, ("content-range", f"bytes {start}-{end}/{len(body)}")], body[start : end + 1])
    return Reply(200, headers, body)


def _events(count: int, pause: Callable[[], AsyncIterator[None]]) -> AsyncIterator[bytes]:
    async def stream() -> AsyncIterator[bytes]:
        number = 0
        async for _ in pause():
            yield f"id: {number}\ndata: event {number}\n\n".encode()
            number += 1
            if number == count:
                return

    return stream()


def _reflected(request: Request) -> Reply:
    """Give back what the request carried, in the form that the query asks for.

    `from`: a header's name (default authorization); `as`: raw, url, base64, hex, json; `in`: body, header, trailer;
    `coding`: a content coding; `declare`: another coding to claim; `pad`: bytes before; `chunk`: bytes a chunk.
    """
    query = request.query
    value = (request.header(query.get("from", "authorization")) or "").encode("latin-1")
    if query.get("from") == "query":
        value = urlsplit(request.target).query.encode()
    match query.get("as", "raw"):
        case "url":
            value = "".join(f"%{byte:02x}" for byte in value).encode()
        case "base64":
            value = base64.b64encode(b"x" * int(query.get("shift", "0")) + value)
        case "hex":
            value = value.hex().encode()
        case "json":
            value = "".join(f"\\u{byte:04x}" for byte in value).encode()
        case _:
            pass
    place = query.get("in", "body")
    if place == "header":
        return Reply(headers=[("x-reflected", value.decode("latin-1"))], chunks=b"see the header\n")
    if place == "trailer":
        return Reply(
            chunks=b"see the trailer\n", framing="chunked", trailers=[("x-reflected", value.decode("latin-1"))]
        )
    coding = query.get("coding", "identity")
    body = encode(coding, payload(int(query.get("pad", "0"))) + b"you sent: " + value + b"\n")
    headers = [("content-type", query.get("type", "text/plain"))]
    declared = query.get("declare", coding)
    if declared != "identity":
        headers.append(("content-encoding", declared))
    size = int(query.get("chunk", "0"))
    if not size:
        return Reply(headers=headers, chunks=body)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return Reply(headers=headers, chunks=pieces(), framing="chunked")


def standard_reply(request: Request, pause: Callable[[], AsyncIterator[None]]) -> Reply:
    """Return what every server of the lab says on the paths below; anything else is 404.

    /echo, /status/N, /bytes/N (ranges), /download (20 MiB), /chunked/N, /close/N (no length), /coded/CODING,
    /sse/N, /redirect?to=&status=, /header?name=&value=&status=, /cookies, /trailers, /early (103), /reflect.
    """
    first, _, rest = request.path.removeprefix("/").partition("/")
    match first:
        case "echo":
            return _echo(request)
        case "status":
            return Reply(int(rest), chunks=b"" if rest in ("204", "304") else f"status {rest}\n".encode())
        case "bytes":
            return _ranged(request, payload(int(rest)))
        case "download":
            return _ranged(request, payload(20 * MIB))
        case "chunked":
            return Reply(chunks=payload(int(rest)), framing="chunked")
        case "close":
            return Reply(chunks=payload(int(rest)), framing="close")
        case "coded":
            body = encode(rest, payload(10_000))
            return Reply(headers=[("content-encoding", rest), ("content-type", "text/plain")], chunks=body)
        case "sse":
            headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
            return Reply(headers=headers, chunks=_events(int(rest), pause), framing="chunked")
        case "redirect":
            status = int(request.query.get("status", "302"))
            return Reply(status, [("location", request.query["to"])], b"moved\n")
        case "header":
            query = request.query
            return Reply(int(query.get("status", "200")), [(query["name"], query["value"])], b"see the header\n")
        case "cookies":
            cookies = [("set-cookie", "a=1; Path=/"), ("set-cookie", "b=2; Path=/; HttpOnly")]
            return Reply(headers=cookies, chunks=b"cookies\n")
        case "trailers":
            return Reply(chunks=b"body\n", framing="chunked", trailers=[("x-checksum", "1234")])
        case "early":
            return Reply(early=[(103, [("link", "</style.css>; rel=preload")])], chunks=b"after a hint\n")
        case "reflect":
            return _reflected(request)
        case _:
            return Reply(404, chunks=b"no such path in the lab\n")
