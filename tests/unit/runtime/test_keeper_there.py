"""A gate on its own waits for its keeper."""

import asyncio
import socket
from pathlib import Path

import pytest

from tidegate.runtime.keeper_there import keeper_socket, keeper_there


async def test_it_waits_for_a_listener_and_not_for_a_file(tmp_path: Path) -> None:
    path = keeper_socket(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # what a keeper that was killed leaves behind
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await keeper_there(path)
    path.unlink()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(keeper_there(path))
        with socket.socket(socket.AF_UNIX) as keeper:
            keeper.bind(str(path))
            keeper.listen()
            await waiting
