"""Sockets of one client connection that stand still together."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.connection import Client, Server
from mitmproxy.proxy import commands

from tests.unit.exchange.stage import stage, tunnel
from tidegate.config.model import Settings
from tidegate.policy.reasons import Reason
from tidegate.runtime.dialer import DialFault
from tidegate.runtime.handler import ConnectionHandler, _End
from tidegate.runtime.worker import Worker

NONE: Any = None  # no engine: nothing here reaches one


async def made(folder: Path) -> ConnectionHandler:
    handler = ConnectionHandler(NONE)
    handler.channel = await tunnel(stage(folder))
    handler.client = Client(peername=("10.0.0.2", 1), sockname=("10.9.9.1", 2))
    handler.ends[handler.client] = _End(handler, handler.client)
    return handler


def opened(handler: ConnectionHandler) -> _End:
    end = _End(handler, Server(address=("api.test", 443)))
    handler.ends[end.conn] = end
    handler._join(end)
    return end


@pytest.mark.parametrize("why", ["frozen", "brake", "throttle"])
async def test_a_new_upstream_stands_still_with_its_connection(tmp_path: Path, why: str) -> None:
    handler = await made(tmp_path)
    assert not opened(handler).paused
    if why == "frozen":
        assert handler.channel.session is not None
        handler.channel.session.frozen = True
        handler.hold(frozen=True)
    elif why == "brake":
        handler.brake("b", client=False, on=True)
    else:
        handler.ends[handler.client].pause_writing()
    end = opened(handler)
    assert end.paused
    if why == "frozen":
        handler.hold(frozen=False)
    elif why == "brake":
        handler.brake("b", client=False, on=False)
    else:
        handler.ends[handler.client].resume_writing()
    assert not end.paused


async def test_V_03_a_session_has_a_bounded_number_of_upstreams(tmp_path: Path) -> None:
    worker = Worker(Settings(state_dir="/nowhere").for_gate(), Path("/nowhere/keeper.sock"), 0, [])
    handler = await made(tmp_path)
    session = handler.channel.session
    assert session is not None
    most = 4 * worker.settings.limits.connections_per_session
    handler.channel.count_upstream(most - 1)
    assert worker.may_dial(handler.channel)
    handler.channel.count_upstream(1)
    assert not worker.may_dial(handler.channel)
    handler.channel.count_upstream(-1)
    assert worker.may_dial(handler.channel)
    worker.descriptors.short = lambda: True  # type: ignore[method-assign]
    assert not worker.may_dial(handler.channel)


async def test_V_03_a_refused_dial_opens_nothing_and_says_budget(tmp_path: Path) -> None:
    handler = await made(tmp_path)
    told: list[Any] = []
    handler.feed = told.append  # type: ignore[method-assign]
    handler.engine = SimpleNamespace(may_dial=lambda _: False)  # type: ignore[assignment]
    server = Server(address=("api.test", 443))
    handler.channel.upstreams.pin = lambda *_: SimpleNamespace()  # type: ignore[assignment, method-assign]
    await handler._open(commands.OpenConnection(server))
    assert [event.reply for event in told] == ["budget"]
    assert server not in handler.ends


@pytest.mark.parametrize("turns", range(5))
async def test_V_03_an_upstream_counts_from_its_dial_to_its_end_and_once(tmp_path: Path, turns: int) -> None:
    handler = await made(tmp_path)
    session = handler.channel.session
    assert session is not None
    handler.engine = SimpleNamespace(may_dial=lambda _: True)  # type: ignore[assignment]
    handler.channel.upstreams.pin = lambda *_: SimpleNamespace()  # type: ignore[assignment, method-assign]

    async def dial(pin: object, end: _End) -> Any:
        assert session.upstreams == 1
        for _ in range(4):
            await asyncio.sleep(0)
        end.connection_lost(None)
        raise DialFault(Reason.UPSTREAM_TIMEOUT)

    handler.dial = dial  # type: ignore[assignment, method-assign]
    opening = asyncio.create_task(handler._open(commands.OpenConnection(Server(address=("api.test", 443)))))
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert session.upstreams == 0


async def test_no_head_is_late_while_we_do_not_read(tmp_path: Path) -> None:
    handler = await made(tmp_path)
    handler.channel.head_began()
    since = handler.channel.head_since
    assert since is not None
    assert not handler.head_overdue(since + 9, seconds=10)
    assert handler.head_overdue(since + 11, seconds=10)
    handler.wait(waiting=True)
    assert not handler.head_overdue(since + 11, seconds=10)
