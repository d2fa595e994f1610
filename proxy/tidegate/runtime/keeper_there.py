"""The keeper as a gate on its own finds it: started by someone else, in whatever order and however late."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

__all__ = ["keeper_socket", "keeper_there"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1


def keeper_socket(state: Path) -> Path:
    """Return where the keeper of this state folder serves workers."""
    return state / "keeper.sock"


async def keeper_there(path: Path) -> None:
    """Wait until a keeper listens; it does so once it has its settings."""
    if _listens(path):
        return
    _log.info("waiting for the keeper at %s", path)
    while not _listens(path):  # noqa: ASYNC110 - a file of another container: no event tells of it
        await asyncio.sleep(_LOOK_SECONDS)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        return sock.connect_ex(str(path)) == 0
