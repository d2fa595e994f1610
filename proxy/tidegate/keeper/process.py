"""The keeper as a process: `python -m tidegate.keeper --admin-fd N [--minter-fd M] --state DIR [--gate-uid U]`.

Everything is imported at load and the memory is hidden before a secret is read. It listens only
once it has settings, so that a worker never meets a keeper that knows nothing.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate.clock import SYSTEM
from tidegate.errors import KeeperError, TidegateError
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.core import Keeper
from tidegate.keeper.harden import hide_memory
from tidegate.keeper.minting import MinterLink
from tidegate.keeper.reload import Reload
from tidegate.keeper.seal import load_seal
from tidegate.keeper.server import AdminDoor, WorkerDoor
from tidegate.keeper.sourcing import Sourcing
from tidegate.keeper.store import SqliteStore
from tidegate.keeper.tasks import OwnedTasks

__all__ = ["main"]

_TICK_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the keeper; returns the exit code."""
    options = _options(argv)
    logging.basicConfig(format="tidegate: %(levelname)s: keeper: %(message)s")
    hide_memory()
    # Ctrl-C at a terminal goes to the whole group; only the supervisor ends the keeper.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_run(options))
    except TidegateError as fault:
        print(f"tidegate: error: keeper: {fault}", file=sys.stderr)
        return 1
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidegate.keeper", description="Hold the secrets of a gate.")
    parser.add_argument("--admin-fd", type=int, required=True, help="the supervisor's socketpair")
    parser.add_argument("--minter-fd", type=int, help="the minter's socketpair; without it one is started here")
    parser.add_argument("--state", type=Path, required=True, help="the state folder")
    parser.add_argument("--gate-uid", type=int, default=os.geteuid(), help="the only uid that keeper.sock serves")
    return parser.parse_args(argv)


async def _run(options: argparse.Namespace) -> None:
    given = os.environ.get("TIDEGATE_SEAL_KEY_FILE")
    private = options.state / "keeper"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        seal = load_seal(private / "seal.key", Path(given) if given else None)
    except OSError as fault:
        raise KeeperError(f"the state folder cannot be used: {fault.strerror}", where=str(private)) from fault
    store = SqliteStore(private / "store.db", seal)
    minter = MinterLink(_minter_socket(options.minter_fd))
    await minter.start()
    keeper = Keeper(options.state, store, SYSTEM, Sourcing(os.environ, minter), os.environ)
    try:
        await _serve(keeper, options)
    finally:
        await minter.close()
        await keeper.close()


async def _serve(keeper: Keeper, options: argparse.Namespace) -> None:
    tasks = OwnedTasks()
    door = WorkerDoor(keeper, options.state / "keeper.sock", gate_uid=options.gate_uid)
    keeper.push, keeper.workers = door.push, door.workers

    async def open_when_configured() -> None:
        if keeper.rules is not None:
            await door.open()

    try:
        keeper.write_public()
    except OSError as fault:
        raise KeeperError(f"public files cannot be written: {fault.strerror}", where=str(options.state)) from fault
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    admin_socket = socket.socket(fileno=options.admin_fd)
    admin_socket.set_inheritable(False)
    admin = AdminDoor(AdminDesk(keeper, Reload(keeper)), admin_socket, open_when_configured)
    serving = tasks.spawn(admin.serve(), name="admin")
    serving.add_done_callback(lambda _: ended.set())
    tasks.spawn(_tick_forever(keeper), name="tick")
    try:
        await ended.wait()
    finally:
        await door.close()
        await tasks.close()


async def _tick_forever(keeper: Keeper) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        keeper.tick()


def _minter_socket(descriptor: int | None) -> socket.socket:
    """Return the minter's link; where the supervisor gave none, start one as our own uid."""
    if descriptor is not None:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        return sock
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-O", "-P", "-m", "tidegate.keeper.minter", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ},
        )
    return ours
