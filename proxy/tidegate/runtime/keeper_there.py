"""The keeper as a gate on its own finds it: started by someone else, in whatever order and however late.

Each half reads the configuration for itself. So that no gate serves by one that its keeper has refused, the keeper
writes down which it has in force, and the gate takes no other (invariant 8).
"""

import asyncio
import logging
import socket
import time
from pathlib import Path
from typing import Final

from tidegate.errors import ConfigError
from tidegate.runtime.two_phase import NotPrepared

__all__ = ["in_force", "keeper_agrees", "keeper_socket", "keeper_there", "say_in_force"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
_AGREE_SECONDS: Final = 8.0
"""How long a keeper may need longer than its gate: it looks for changes every two seconds, as the gate does."""


def say_in_force(state: Path, digest: str) -> None:
    """Write down the `keeper_hash` of the settings that the keeper has in force. Raises `ConfigError`."""
    path = _in_force(state)
    new = path.with_suffix(".new")
    try:
        new.write_text(f"{digest}\n", encoding="ascii")
        new.replace(path)
    except OSError as fault:
        hint = "the keeper's user must own the state folder"
        raise ConfigError(f"cannot be written: {fault.strerror}", where=str(path), hint=hint) from fault


def in_force(state: Path) -> str:
    """Return the hash of the settings that the keeper has in force; empty when it has said none."""
    try:
        return _in_force(state).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


async def keeper_agrees(state: Path, digest: str) -> None:
    """Wait until the keeper has these settings in force. Raises `NotPrepared` when it does not take them."""
    end = time.monotonic() + _AGREE_SECONDS
    while in_force(state) != digest:
        if time.monotonic() > end:
            raise NotPrepared(
                "the keeper has not taken this configuration",
                hint="see its own log, or `tidegate health` where it runs",
            )
        await asyncio.sleep(_LOOK_SECONDS)


def _in_force(state: Path) -> Path:
    return state / "settings.hash"


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
