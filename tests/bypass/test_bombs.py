"""V-05: coded bodies that are much longer than they look, on the gate of the availability tests."""

import contextlib
import gzip
import os
import time
from pathlib import Path

import brotli
import pytest
import zstandard

from tests.bypass.test_availability import MOST, World, world
from tests.lab.http import Reply, Request
from tests.lab.upstream import Connection
from tests.lab.visitor import bearer

__all__ = ["world"]


def resident_mb(world: World) -> float:
    """Return what the gate's processes hold, in MiB."""
    return sum(map(_resident_kb, _family(world.gate.process.pid))) / 1024


def _family(leader: int) -> list[int]:
    """Return a process and all that it has started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = [leader]
    for pid in family:  # it grows while it is walked
        family += [child for child, parent in parents.items() if parent == pid]
    return family


def _resident_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)
    return 0


BOMBS = {"gzip": gzip.compress, "br": lambda data: brotli.compress(data, quality=4), "zstd": zstandard.compress}


@pytest.mark.parametrize("coding", list(BOMBS))
@pytest.mark.parametrize("chunked", [True, False], ids=["stream", "one-shot"])
def test_V_05_a_bomb_is_not_unpacked_past_its_bound(world: World, coding: str, chunked: bool) -> None:
    visitor = world.visitor()
    body = BOMBS[coding](bytes(64 << 20))

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(headers=[("content-encoding", coding)], chunks=body, framing="chunked" if chunked else "length")

    world.server.route("/bomb", give)
    headers = [bearer(visitor.session.placeholder("KEY"))]
    reply = visitor.get(world.server, "/bomb", headers=headers)
    assert reply.status == 502 or not reply.complete
    assert len(reply.body) < 8 << 20
    assert visitor.wait_log(type="http", phase="end", reason="unscannable_response")


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_V_05_answers_that_unpack_to_much_hold_up_no_one_and_fill_no_memory(world: World, reads: bool) -> None:
    """Below the bound of one body: two hundred times what is received, on many connections at once."""
    noise = os.urandom(1 << 14)
    body = gzip.compress(b"".join(noise[at : at + 64] + bytes(14_000) for at in range(0, len(noise), 64)) * 40)

    async def give(connection: Connection, request: Request) -> Reply:
        return Reply(headers=[("content-encoding", "gzip")], chunks=body, framing="chunked")

    world.server.route("/dense", give)
    visitor = world.visitor()
    visitor.get(world.server, "/bytes/1", headers=[bearer(visitor.session.placeholder("KEY"))])
    before, peak = resident_mb(world), 0.0
    with contextlib.ExitStack() as stack:
        for _ in range(MOST - 1):
            raw = stack.enter_context(visitor.tunnel(world.server))
            raw.send(f"GET /dense HTTP/1.1\r\nHost: {visitor.authority(world.server)}\r\n\r\n".encode())
            if reads:
                raw.sock.settimeout(10)
                assert raw.sock.recv(65536)
        for _ in range(5):
            world.is_well()
            peak = max(peak, resident_mb(world))
    assert peak - before < 100


@pytest.mark.parametrize("coding", list(BOMBS))
def test_V_05_a_bomb_in_a_request_is_not_unpacked_at_all(world: World, coding: str) -> None:
    visitor = world.visitor()
    body = BOMBS[coding](bytes(64 << 20))
    begun = time.monotonic()
    assert visitor.get(world.server, method="POST", headers=[("Content-Encoding", coding)], body=body).status == 200
    assert world.server.requests[-1].body == body
    assert time.monotonic() - begun < 2
