"""Sockets of one client connection that stand still together."""

from pathlib import Path
from typing import Any

import pytest
from mitmproxy.connection import Client, Server

from tests.unit.exchange.stage import stage, tunnel
from tidegate.runtime.handler import ConnectionHandler, _End

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


async def test_no_head_is_late_while_we_do_not_read(tmp_path: Path) -> None:
    handler = await made(tmp_path)
    handler.channel.head_began()
    since = handler.channel.head_since
    assert since is not None
    assert not handler.head_overdue(since + 9, seconds=10)
    assert handler.head_overdue(since + 11, seconds=10)
    handler.wait(waiting=True)
    assert not handler.head_overdue(since + 11, seconds=10)
