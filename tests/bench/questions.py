"""The responder under questions: CPU an answer, answers a second, and how long one waits."""

import contextlib
import dataclasses
import os
import selectors
import socket
import statistics
import time
from pathlib import Path

import dns.message

from tests.bench.contender import Contender
from tests.bench.cores import on
from tests.bench.upstream import NAME
from tests.lab.sockets import udp_in_namespace
from tests.lab.world import GATE

__all__ = ["Answers", "questions"]

_WINDOW = 32
_TICK = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Answers:
    """`cpu_us` is per answer, of all processes of the gate; `p99_ms` of one question at a time."""

    per_second: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    lost: int


def questions(contender: Contender, *, core: int, seconds: float) -> Answers:
    """Ask for an allowed name: first as many at a time as a busy sandbox has, then one at a time."""
    if contender.behind is None:
        raise TypeError("its client is behind no wall")
    query = bytearray(dns.message.make_query(NAME, "A").to_wire())
    with on(core), udp_in_namespace(contender.behind.client) as sock:
        sock.connect((GATE, 53))
        _one_by_one(sock, query, 0.3)  # the session is opened, the name is paid for
        before, began = _cpu(contender.pids()), time.perf_counter()
        good, lost = _flood(sock, query, seconds)
        took, spent = time.perf_counter() - began, _cpu(contender.pids()) - before
        waits = _one_by_one(sock, query, seconds)
    ranked = sorted(waits)
    return Answers(
        good / took, spent / good * 1e6, statistics.median(ranked) * 1e3, ranked[int(len(ranked) * 0.99)] * 1e3, lost
    )


def _flood(sock: socket.socket, query: bytearray, seconds: float) -> tuple[int, int]:
    """Keep a window of questions open; return good answers, and questions that got none."""
    good = lost = ident = 0
    waiting: set[int] = set()
    end = time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while time.perf_counter() < end:
            while len(waiting) < _WINDOW:
                ident = (ident + 1) & 0xFFFF
                query[:2] = ident.to_bytes(2)
                sock.send(query)
                waiting.add(ident)
            if not selector.select(0.5):
                lost += len(waiting)
                waiting.clear()
                continue
            with contextlib.suppress(BlockingIOError):
                while True:
                    reply = sock.recv(512, socket.MSG_DONTWAIT)
                    waiting.discard(int.from_bytes(reply[:2]))
                    good += reply[3] & 15 == 0 and reply[7] == 1
    return good, lost


def _one_by_one(sock: socket.socket, query: bytearray, seconds: float) -> list[float]:
    waits: list[float] = []
    sock.settimeout(2)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        sock.send(query)
        reply = sock.recv(512)
        waits.append(time.perf_counter() - began)
        if reply[3] & 15 or reply[7] != 1:
            raise RuntimeError(f"the responder did not answer: code {reply[3] & 15}")
    sock.settimeout(None)
    return waits


def _cpu(pids: list[int]) -> float:
    """Return the CPU seconds of processes, user and system."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK
