"""The keeper as a real process, with its real sockets: start, serve, revoke, die, come back."""

import asyncio
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from tests.lab.folder import open_folder
from tests.unit.keeper import made
from tidegate.audit.checkpoint import decode_key
from tidegate.audit.verify import verify
from tidegate.audit.writer import ChainWriter
from tidegate.config.model import CommandSource, FileSource, KeeperSettings, SessionSpec, encode_keeper
from tidegate.errors import KeeperError
from tidegate.keeper.admin import AdminLink
from tidegate.keeper.client import KeeperClient
from tidegate.keeper.protocol import (
    CaPem,
    LeaseGrant,
    Push,
    SessionEnded,
    SessionFreeze,
    SessionGrant,
    SessionNew,
    SessionOpened,
    SessionRevoke,
)
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

SOURCE = "10.9.9.9"


class Running:
    """A keeper and its admin link."""

    def __init__(self, process: asyncio.subprocess.Process, admin: AdminLink, state: Path) -> None:
        self.process = process
        self.admin = admin
        self.socket = state / "keeper.sock"

    async def new(self, policy: str = "triage", **more: object) -> SessionOpened:
        ask = SessionNew(policy, **{"credentials": ("github",), **more})  # type: ignore[arg-type]
        return await self.admin.ask(ask, SessionOpened)


@asynccontextmanager
async def running(
    state: Path, settings: KeeperSettings | None, *, epoch: int = 1, environ: Mapping[str, str] = made.ENVIRON
) -> AsyncIterator[Running]:
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-O", "-m", "tidegate.keeper", "--admin-fd", str(theirs.fileno()), "--state", str(state),
        pass_fds=[theirs.fileno()],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ},
    )  # fmt: skip
    theirs.close()
    admin = AdminLink(ours)
    await admin.start()
    try:
        if settings is not None:
            await admin.configure(epoch, encode_keeper(settings))
            await admin.commit(epoch)
        yield Running(process, admin, state)
    finally:
        await admin.close()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 5)


class Heard:
    """Pushes, and a way to wait for one."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self._news = asyncio.Event()

    def __call__(self, push: Push) -> None:
        self.pushes.append(push)
        self._news.set()

    async def wait_for(self, push: Push) -> None:
        async with asyncio.timeout(3):
            while push not in self.pushes:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def client(path: Path, heard: Heard | None = None, worker: str = "gate-0") -> AsyncIterator[KeeperClient]:
    one = KeeperClient(path, worker, heard or Heard())
    await one.start()
    assert await one.wait_up(5)
    try:
        yield one
    finally:
        await one.close()


async def opened(one: KeeperClient, session: SessionOpened) -> SessionGrant:
    grant = await one.open_session(token=session.token.reveal().decode(), source=SOURCE, listener="http")
    assert isinstance(grant, SessionGrant)
    return grant


async def test_starts_well_below_a_second_and_writes_its_public_files(tmp_path: Path) -> None:
    begun = time.monotonic()
    async with running(tmp_path, made.settings(tmp_path)) as keeper:
        assert time.monotonic() - begun < 3.0  # a loaded machine; `make bench` has the number
        pem = await keeper.admin.ask(CaPem(), str)
        assert (tmp_path / "ca.pem").read_text() == pem
        assert (tmp_path / "bundle.pem").read_text().startswith(pem.rstrip())
        assert (tmp_path / "audit.pub").read_text().startswith("tidegate.audit+")
        assert stat.S_IMODE((tmp_path / "keeper" / "seal.key").stat().st_mode) == 0o600
    assert keeper.process.returncode == 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "seal.key":
            content = path.read_bytes()
            assert b"PRIVATE KEY" not in content
            assert made.SECRET.encode() not in content


async def test_it_imports_no_web_server_and_no_proxy(tmp_path: Path) -> None:
    code = (
        "import sys, tidegate.keeper.process, tidegate.keeper.minter;"
        "print([m for m in ('aiohttp', 'mitmproxy', 'tidegate.runtime', 'tidegate.exchange') if m in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (await process.communicate())[0].strip() == b"[]"


async def test_a_session_gets_its_lease_its_leaf_and_its_budget(tmp_path: Path) -> None:
    async with running(tmp_path, made.settings(tmp_path)) as keeper, client(keeper.socket) as gate:
        session = await keeper.new(ttl_seconds=60.0)
        assert len(session.token) == 182
        grant = await opened(gate, session)
        assert session.placeholders == {"GITHUB_TOKEN": grant.holdings[0].placeholder}
        lease = await gate.lease(grant.id, "github")
        assert isinstance(lease, LeaseGrant)
        assert lease.secret.reveal().decode() == made.SECRET
        key = made.public_key()
        chain = await gate.sign_leaf(grant.id, HostName("api.example.com"), key, denied=False)
        assert not isinstance(chain, Reason)
        leaf = x509.load_der_x509_certificate(chain[0])
        ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
        leaf.verify_directly_issued_by(ca)
        assert [await gate.draw(grant.id, "requests", "session", 10, 12) for _ in range(14)] == [1] * 12 + [0, 0]


async def test_another_link_gets_nothing_of_a_session_that_has_not_come_to_it(tmp_path: Path) -> None:
    """Arbitrary Python in one worker: no lease, no placeholder, no leaf, no budget of another worker's session."""
    async with (
        running(tmp_path, made.settings(tmp_path)) as keeper,
        client(keeper.socket) as gate,
        client(keeper.socket, worker="gate-1") as fallen,
    ):
        grant = await opened(gate, await keeper.new())
        assert await fallen.lease(grant.id, "github") is Reason.SESSION_INVALID
        leaf = await fallen.sign_leaf(grant.id, HostName("api.example.com"), made.public_key(), denied=False)
        assert leaf is Reason.SESSION_INVALID
        assert await fallen.sign_leaf(grant.id, HostName("x.test"), made.public_key(), denied=True) is leaf
        assert await fallen.draw(grant.id, "requests", "session", 5, 5) is Reason.SESSION_INVALID
        assert await fallen.open_session(token=None, source=SOURCE, listener="http") is Reason.SESSION_REQUIRED
        assert await gate.draw(grant.id, "requests", "session", 5, 5) == 1
    refused = [line for line in made.journal(tmp_path) if line["reason"] == "session_not_here"]
    assert len(refused) == 4


async def test_revocation_reaches_every_link_within_a_second(tmp_path: Path) -> None:
    heard = [Heard(), Heard()]
    async with (
        running(tmp_path, made.settings(tmp_path)) as keeper,
        client(keeper.socket, heard[0]) as one,
        client(keeper.socket, heard[1], "gate-1") as two,
    ):
        session = await keeper.new()
        await opened(one, session)
        await opened(two, session)
        begun = time.monotonic()
        await keeper.admin.ask(SessionRevoke(session.id), str)
        for ear in heard:
            await ear.wait_for(SessionEnded(session.id, "revoked"))
        assert time.monotonic() - begun < 1.0
        assert await one.lease(session.id, "github") is Reason.SESSION_INVALID
        token = session.token.reveal().decode()
        assert await one.open_session(token=token, source=SOURCE, listener="http") is Reason.SESSION_INVALID
        with pytest.raises(KeeperError, match="no live session"):
            await keeper.admin.ask(SessionRevoke(session.id), str)


async def test_a_killed_keeper_comes_back_with_its_sessions_and_keys(tmp_path: Path) -> None:
    settings = made.settings(tmp_path)
    heard = Heard()
    async with running(tmp_path, settings) as keeper, client(keeper.socket, heard) as gate:
        session, gone = await keeper.new(ttl_seconds=600.0), await keeper.new()
        frozen = await keeper.new()
        grant = await opened(gate, session)
        await keeper.admin.ask(SessionRevoke(gone.id), str)
        await keeper.admin.ask(SessionFreeze(frozen.id), type(None))
        lease = await gate.lease(grant.id, "github")
        assert isinstance(lease, LeaseGrant)
        assert sum([await gate.draw(grant.id, "requests", "session", 12, 12) for _ in range(12)]) == 12
        assert await gate.announce("gate-0aa") is None
        ca, audit = (tmp_path / "ca.pem").read_text(), (tmp_path / "audit.pub").read_text()
        keeper.process.kill()
        await keeper.process.wait()
        assert await gate.lease(grant.id, "github") is Reason.KEEPER_UNAVAILABLE
        async with running(tmp_path, settings, epoch=2) as second:
            assert await gate.wait_up(5)
            assert gate.down_seconds() == 0.0
            again = await gate.lease(grant.id, "github")  # on the new link, without a new connection of the sandbox
            assert isinstance(again, LeaseGrant)
            assert again.lease_id == lease.lease_id
            assert (tmp_path / "ca.pem").read_text() == ca
            assert (tmp_path / "audit.pub").read_text() == audit
            assert await gate.draw(grant.id, "requests", "session", 1, 12) == 0
            assert (await opened(gate, frozen)).frozen
            token = gone.token.reveal().decode()
            assert await gate.open_session(token=token, source=SOURCE, listener="") is Reason.SESSION_INVALID
            assert isinstance(await gate.checkpoint("gate-0aa", 3, "ab" * 32), bytes)
            assert (await second.admin.status()).epoch == 2
    assert SessionEnded(session.id, "gone") not in heard.pushes


async def test_the_log_verifies_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    settings = made.settings(tmp_path)
    async with running(tmp_path, settings) as keeper, client(keeper.socket) as gate:
        writer = ChainWriter(tmp_path / "audit", "gate-1")
        await gate.announce("gate-1")
        assert isinstance(await gate.checkpoint(*writer.current()), bytes)
        await opened(gate, await keeper.new())
        keeper.process.kill()
        await keeper.process.wait()
        async with running(tmp_path, settings, epoch=2):
            assert await gate.wait_up(5)
            assert isinstance(await gate.checkpoint(*writer.current()), bytes)
        writer.close()
    report = verify(tmp_path / "audit", decode_key((tmp_path / "audit.pub").read_text()))
    assert report.problems == []
    assert sorted(one.role for one in report.chains) == ["gate", "keeper", "keeper"]


async def test_what_changed_while_the_link_was_down_is_told(tmp_path: Path) -> None:
    """Pushes that were missed: a session that was revoked, and one whose policy is another."""
    before = {name: SessionSpec("triage", ("github",), f"10.9.{n}.0/24") for n, name in enumerate(("same", "moved"))}
    after = {**before, "moved": SessionSpec("bare", (), "10.9.1.0/24")}
    heard = Heard()
    async with (
        running(tmp_path, made.settings(tmp_path, sessions=before)) as keeper,
        client(keeper.socket, heard) as gate,
    ):
        for source in ("10.9.0.9", "10.9.1.9"):
            assert isinstance(await gate.open_session(token=None, source=source, listener=""), SessionGrant)
        keeper.process.kill()
        await keeper.process.wait()
        async with running(tmp_path, made.settings(tmp_path, sessions=after), epoch=2):
            assert await gate.wait_up(5)
            assert [push.sid for push in heard.pushes if isinstance(push, SessionEnded)] == ["moved"]
            assert isinstance(await gate.lease(SessionId("same"), "github"), LeaseGrant)
            assert isinstance(await gate.lease(SessionId("moved"), "github"), Reason)


async def test_what_hangs_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path, made.settings(tmp_path)) as keeper, client(keeper.socket) as gate:
        keeper.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(5):
                while gate.down_seconds() == 0.0:
                    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.05)
        finally:
            keeper.process.send_signal(signal.SIGCONT)
        assert await gate.wait_up(5)


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(struct.pack(">I", 1 << 30), id="frame_of_a_gigabyte"),
        pytest.param(struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", id="no_msgpack"),
        pytest.param(struct.pack(">I", 1) + b"\x80", id="empty_map"),
        pytest.param(struct.pack(">I", 60000) + b"\x91" * 60000, id="sixty_thousand_deep"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
    ],
)
async def test_a_peer_that_sends_garbage_is_cut_and_the_keeper_lives(tmp_path: Path, garbage: bytes) -> None:
    async with running(tmp_path, made.settings(tmp_path)) as keeper:
        reader, writer = await asyncio.open_unix_connection(str(keeper.socket))
        writer.write(garbage)
        async with asyncio.timeout(3):
            assert await reader.read() == b""
        writer.close()
        async with client(keeper.socket) as gate:
            await opened(gate, await keeper.new())


async def test_a_peer_that_asks_too_much_at_once_is_cut(tmp_path: Path) -> None:
    from tidegate.keeper.protocol import Ping, WorkerCall
    from tidegate.keeper.wire import frame

    async with running(tmp_path, made.settings(tmp_path)) as keeper:
        reader, writer = await asyncio.open_unix_connection(str(keeper.socket))
        flood = b"".join(frame(WorkerCall(n, Ping())) for n in range(60_000))
        try:
            writer.write(flood)
            async with asyncio.timeout(10):
                while await reader.read(1 << 20):
                    pass
        except ConnectionError:
            pass
        writer.close()
        async with client(keeper.socket) as gate:
            await opened(gate, await keeper.new())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
async def test_another_uid_is_not_served() -> None:
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX);"
        "os.setgroups([]); os.setgid(64732); os.setuid(64732);"
        "s.connect(sys.argv[1]); print(s.recv(1))"
    )
    with open_folder() as folder:
        async with running(folder, made.settings(folder)) as keeper:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, str(keeper.socket), stdout=asyncio.subprocess.PIPE, cwd="/"
            )  # fmt: skip
            assert (await asyncio.wait_for(process.communicate(), 5))[0].strip() == b"b''"


async def test_a_command_source_runs_in_the_minter(tmp_path: Path) -> None:
    where = tmp_path / "seen"
    script = f"echo $PPID $TOKEN > {where}; echo command-secret-0123456789-abcdef"
    settings = made.settings(tmp_path, sources={"github": CommandSource(("/bin/sh", "-c", script))})
    async with running(tmp_path, settings) as keeper, client(keeper.socket) as gate:
        grant = await opened(gate, await keeper.new())
        first, second = await asyncio.gather(gate.lease(grant.id, "github"), gate.lease(grant.id, "github"))
        assert isinstance(first, LeaseGrant)
        assert first.secret.reveal() == b"command-secret-0123456789-abcdef"
        assert isinstance(second, LeaseGrant)
        assert second.lease_id == first.lease_id
        parent = where.read_text().split()
        assert len(parent) == 1  # no variable of the keeper's reaches a command
        assert parent[0] != str(keeper.process.pid)
        assert (await keeper.admin.status()).minter


async def test_a_bad_reload_changes_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(made.SECRET + "\r\n")
    good = made.settings(tmp_path, sources={"github": FileSource(str(secret))})
    async with running(tmp_path, good) as keeper, client(keeper.socket) as gate:
        grant = await opened(gate, await keeper.new())
        secret.write_text("short")
        with pytest.raises(KeeperError, match="weaker than 80 bits"):
            await keeper.admin.configure(2, encode_keeper(good))
        with pytest.raises(KeeperError, match="no settings are held"):
            await keeper.admin.commit(2)
        secret.write_text(made.OTHER_SECRET)
        lease = await gate.lease(grant.id, "github")
        assert isinstance(lease, LeaseGrant)
        assert lease.secret.reveal().decode() == made.OTHER_SECRET
        assert (await keeper.admin.status()).epoch == 1


async def test_a_file_session_has_a_folder_to_mount(tmp_path: Path) -> None:
    sessions = {"agent": SessionSpec("triage", ("github",), "10.9.9.0/24")}
    async with running(tmp_path, made.settings(tmp_path, sessions=sessions)) as keeper, client(keeper.socket) as gate:
        grant = await gate.open_session(token=None, source=SOURCE, listener="http")
        assert isinstance(grant, SessionGrant)
        assert grant.id == "agent"
        folder = tmp_path / "sandbox" / "agent"
        env = folder / "env"
        assert stat.S_IMODE(env.stat().st_mode) == 0o444
        assert f"GITHUB_TOKEN={grant.holdings[0].placeholder}\n" in env.read_text()
        assert made.SECRET not in env.read_text()
        assert (folder / "ca.pem").read_text() == (tmp_path / "ca.pem").read_text()
        assert (folder / "bundle.pem").is_file()
    async with running(tmp_path, made.settings(tmp_path, sessions=sessions)):
        assert grant.holdings[0].placeholder in env.read_text()
