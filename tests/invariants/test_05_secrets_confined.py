"""Invariant 5, on the keeper: its memory and its files are read by no other user, and not by its own either.

Two real users where the tests run as root. Where one uid is forced (`unsafe_shared_uid`), the
process is still not dumpable, which stops ptrace and /proc; it is the weaker form and `up` says so.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tests.unit.keeper import made
from tidegate.config.model import encode_keeper
from tidegate.keeper.admin import AdminLink
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

KEEPER, GATE = 64731, 64732
ROOT = os.geteuid() == 0

# Runs as the gate: looks for the secret by every way into another process's memory.
ATTACK = """
import ctypes, os, sys
pid, uid, needle = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
def mem():
    with open(f"/proc/{pid}/maps") as maps:
        areas = [line.split()[0].split("-") for line in maps if line.split()[1].startswith("rw")]
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for low, high in areas:
            memory.seek(int(low, 16))
            if needle in memory.read(int(high, 16) - int(low, 16)):
                return True
    return bool(areas)
def environ():
    return bool(open(f"/proc/{pid}/environ", "rb").read())
def ptrace():
    if libc.ptrace(16, pid, 0, 0) == 0:
        return True
    raise OSError(ctypes.get_errno(), "ptrace")
def vm_readv():
    buffer = ctypes.create_string_buffer(8)
    pair = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_size_t * 2)(int(sys.argv[4], 16), 8)
    done = libc.process_vm_readv(pid, pair, 1, remote, 1, 0)
    return done > 0 or ctypes.get_errno() == 14  # EFAULT: nothing at that address, but it may look
def descriptors():
    return bool(os.listdir(f"/proc/{pid}/fd"))
for way in (mem, environ, ptrace, vm_readv, descriptors):
    try:
        print(way.__name__, "open" if way() else "shut")
    except OSError as fault:
        print(way.__name__, "shut")
"""


@asynccontextmanager
async def keeper_process(state: Path, uid: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A keeper with a secret in its memory and its environment, running as `uid`."""
    ours, theirs = socket.socketpair()
    idle, minter = socket.socketpair()  # a minter's link with no minter: these tests run no command
    code = (
        "import os, sys, tidegate.keeper.process as process\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        "sys.exit(process.main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "--admin-fd", str(theirs.fileno()), "--state", str(state),
        "--gate-uid", str(GATE if ROOT else uid), "--minter-fd", str(minter.fileno()),
        pass_fds=[theirs.fileno(), minter.fileno()],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **made.ENVIRON},
    )  # fmt: skip
    theirs.close()
    minter.close()
    admin = AdminLink(ours)
    await admin.start()
    try:
        await admin.configure(1, encode_keeper(made.settings(state)))
        await admin.commit(1)
        yield process
    finally:
        await admin.close()
        idle.close()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 5)


async def attack(pid: int, uid: int) -> dict[str, str]:
    """Try every way as `uid`; return what was open and what was shut."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ATTACK, str(pid), str(uid), made.SECRET, "7ffe00000000", stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 20)
    return dict(line.split() for line in printed.decode().splitlines())


ALL_SHUT = {"mem": "shut", "environ": "shut", "ptrace": "shut", "vm_readv": "shut", "descriptors": "shut"}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that other users can reach."""
    with open_folder(mode=0o711) as folder:
        yield folder


def _ground(state: Path, uid: int) -> Path:
    if ROOT:
        os.chown(state, uid, uid)
    return state


@pytest.mark.usefixtures("as_root")
async def test_the_gate_cannot_read_the_keepers_memory(tmp_path: Path) -> None:
    async with keeper_process(_ground(tmp_path, KEEPER), KEEPER) as process:
        assert await attack(process.pid, GATE) == ALL_SHUT


async def test_one_forced_uid_is_still_not_dumpable(tmp_path: Path) -> None:
    uid = KEEPER if ROOT else os.geteuid()
    async with keeper_process(_ground(tmp_path, uid), uid) as process:
        assert await attack(process.pid, uid) == ALL_SHUT


@pytest.mark.usefixtures("as_root")
async def test_the_attack_itself_works_where_nothing_is_hidden() -> None:
    """The other tests mean something: on a process that hides nothing the same code finds the secret."""
    code = "import ctypes, os, sys; os.setgid(64732); os.setuid(64732); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0);"
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code + "print(flush=True); sys.stdin.read()",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={"TOKEN": made.SECRET},
    )  # fmt: skip
    assert victim.stdout is not None
    await asyncio.wait_for(victim.stdout.readline(), 10)
    found = await attack(victim.pid, GATE)
    assert found == dict.fromkeys(ALL_SHUT, "open")
    victim.kill()
    await victim.wait()


@pytest.mark.usefixtures("as_root")
async def test_the_gate_cannot_open_the_keepers_files(tmp_path: Path) -> None:
    async with keeper_process(_ground(tmp_path, KEEPER), KEEPER):
        code = (
            "import os, sys\n"
            f"os.setgroups([]); os.setgid({GATE}); os.setuid({GATE})\n"
            "for name in ('keeper', 'keeper/store.db', 'keeper/seal.key'):\n"
            "    try: os.open(os.path.join(sys.argv[1], name), os.O_RDONLY); print(name)\n"
            "    except PermissionError: pass\n"
            "open(os.path.join(sys.argv[1], 'ca.pem')).read()\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert (await process.communicate())[0] == b""
        assert process.returncode == 0


def test_no_key_and_no_secret_lies_open_on_the_disk(tmp_path: Path) -> None:
    keeper = made.keeper(tmp_path, made.TurnedClock())
    keeper.write_public()
    seeds = [
        keeper.keys.authority.key_der().reveal(),
        keeper.keys.audit.private_bytes_raw(),
        keeper.keys.token.private_bytes_raw(),
    ]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert not [seed for seed in seeds if seed in path.read_bytes()], path


@pytest.mark.parametrize("show", [repr, str, "{}".format, lambda value: f"{value!r}"])
def test_a_secret_shows_itself_nowhere_in_the_protocol(show: object) -> None:
    from tidegate.keeper import protocol

    secret = Secret(made.SECRET)
    structs = [
        protocol.LiveSecret("l", "c", secret, "p"),
        protocol.LeaseGrant("l", "c", secret, 1.0),
        protocol.SessionOpened(SessionId("s"), secret, None, {}),
        protocol.HarnessOpened("h", secret, 1.0),
        protocol.Reply(push=protocol.LeaseAdded(SessionId("s"), protocol.LiveSecret("l", "c", secret, "p"))),
    ]
    for struct in structs:
        assert made.SECRET not in show(struct)  # type: ignore[operator]
