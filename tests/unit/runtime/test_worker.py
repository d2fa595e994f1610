"""How a worker ends: at once when it serves nobody, else with its last connection."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from mitmproxy.connection import Client

from tidegate.audit.recorder import Recorder
from tidegate.config.model import Settings
from tidegate.exchange.channel import Channel
from tidegate.exchange.dns_desk import DnsDesk
from tidegate.exchange.gate import Gate
from tidegate.exchange.tunnel import Opaque
from tidegate.runtime import worker as module
from tidegate.runtime.handler import ConnectionHandler
from tidegate.runtime.watch import Watch
from tidegate.runtime.worker import Worker


def made() -> Worker:
    """Return a worker that has not begun: no sockets, no engine."""
    worker = Worker(Settings(state_dir="/nowhere").for_gate(), Path("/nowhere/keeper.sock"), 0, [])
    worker.watch = Watch(cast(Gate, None), worker.handlers)  # the drain asks nothing of a gate
    return worker


def handler(worker: Worker) -> ConnectionHandler:
    """Return the handler of a connection that serves a tunnel."""
    one = ConnectionHandler(worker)
    one.client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0.0)
    one.channel = Channel(cast(Gate, None), ("127.0.0.1", 1), ("127.0.0.1", 2))
    one.channel.outcome = Opaque("api.allowed.test", 443, False)
    return one


async def test_V_03_a_fault_in_a_seconds_work_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, told, turns = made(), list[str](), asyncio.Event()
    worker.recorder = cast(Recorder, SimpleNamespace(fault=lambda name, **_: told.append(name)))

    def broken(now: float) -> None:
        if told:
            turns.set()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(worker, "_tick", broken)
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.001)
    async with asyncio.timeout(10):
        ticking = asyncio.create_task(worker._tick_forever())
        await turns.wait()
        ticking.cancel()
    assert told[0] == "tick"


async def test_a_fault_at_a_question_is_no_answer_and_is_recorded() -> None:
    worker, told = made(), list[str]()
    worker.recorder = cast(Recorder, SimpleNamespace(fault=lambda name, **_: told.append(name)))

    async def broken(wire: bytes, source: str) -> bytes:
        raise RuntimeError(wire.decode())

    desk = cast(DnsDesk, SimpleNamespace(answer=broken))
    assert await worker.answer(desk, b"secret", "10.0.0.2") is None
    assert told == ["dns"]


async def test_a_drain_ends_at_once_when_nobody_is_served() -> None:
    worker = made()
    await worker._drain({"seconds": 600.0})
    assert worker._stopping.is_set()


async def test_a_drain_ends_with_the_last_connection() -> None:
    worker = made()
    handlers = [handler(worker), handler(worker)]
    worker.handlers.update(handlers)
    for one in handlers:
        worker.forget(one)
    assert not worker._stopping.is_set(), "nobody has told it to end"
    worker.handlers.update(handlers)
    await worker._drain({"seconds": 600.0})
    worker.forget(handlers[0])
    assert not worker._stopping.is_set()
    worker.forget(handlers[1])
    assert worker._stopping.is_set()
