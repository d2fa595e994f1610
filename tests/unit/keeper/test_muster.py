"""No lease before every worker of the session searches for its secret."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.keeper import leases
from tidegate.keeper.client import KeeperClient
from tidegate.keeper.core import Keeper
from tidegate.keeper.muster import STRAY_SECONDS, WAIT_SECONDS, Muster
from tidegate.keeper.protocol import LeaseAdded, LeaseGrant, Push, SessionEnded, SessionGrant
from tidegate.keeper.server import WorkerDoor
from tidegate.keeper.sessions import Record
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

SID = SessionId("s1")


class Worker:
    """A worker's link, and what it has been told."""

    def __init__(self, claim: str, *, pid: int = 0, opened: tuple[str, ...] = (SID,)) -> None:
        self.claim, self.pid, self.opened = claim, pid, {SessionId(one) for one in opened}


def mustered(*workers: Worker) -> tuple[Muster, made.TurnedClock, list[tuple[str, str]]]:
    clock = made.TurnedClock()
    muster = Muster(clock, wait_seconds=0.2)
    cut: list[tuple[str, str]] = []
    muster.on_cut = lambda server, session: cut.append((server.claim, session))
    for worker in workers:
        muster.join(worker)
    return muster, clock, cut


async def begun(muster: Muster, but: Worker | None = None) -> asyncio.Task[bool]:
    task = asyncio.ensure_future(muster.settle(SID, "l1", but))
    await asyncio.sleep(0)
    return task


async def test_a_lease_waits_for_every_other_worker_of_the_session_and_for_no_one_else() -> None:
    asks, b, c, other = Worker("a"), Worker("b"), Worker("c"), Worker("d", opened=("s2",))
    muster, _, cut = mustered(asks, b, c, other)
    settling = await begun(muster, asks)
    for server, session, lease in ((b, SID, "l2"), (b, "s2", "l1"), (other, SID, "l1"), (c, SID, "l1")):
        muster.took(server, SessionId(session), lease)
        await asyncio.sleep(0)
        assert not settling.done()
    muster.took(b, SID, "l1")
    assert await settling
    assert cut == []


async def test_a_worker_that_does_not_take_it_is_cut_off_from_that_session_alone() -> None:
    slow = Worker("b", opened=(SID, "s2"))
    muster, _, cut = mustered(slow)
    assert await (await begun(muster))
    assert cut == [("b", SID)]
    assert slow.opened == {"s2"}


async def test_a_worker_without_a_link_is_waited_for() -> None:
    old, new = Worker("b"), Worker("b")
    muster, _, cut = mustered(old)
    muster.lost(old)
    settling = await begun(muster)
    muster.join(new)
    await asyncio.sleep(0)
    assert not settling.done()
    muster.came_back(new)
    assert await settling
    assert cut == []


async def test_a_link_that_is_lost_while_a_lease_waits_is_waited_for_too() -> None:
    b = Worker("b")
    muster, _, _ = mustered(b)
    settling = await begun(muster)
    muster.lost(b)
    assert not await settling


@pytest.mark.parametrize(("later", "lent"), [(0.0, False), (STRAY_SECONDS + 1, True)], ids=["at-once", "when-it-cut"])
async def test_a_worker_that_lives_without_a_link_stops_leases_until_it_has_cut_all(later: float, lent: bool) -> None:
    b = Worker("b", pid=os.getpid())
    muster, clock, _ = mustered(b)
    muster.lost(b)
    clock.go(later)
    assert await (await begun(muster)) is lent


async def test_a_worker_whose_process_is_gone_serves_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    b = Worker("b", pid=gone.pid)
    muster, _, _ = mustered(b)
    muster.lost(b)
    assert await (await begun(muster))


async def test_after_a_restart_leases_wait_for_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    muster, _, _ = mustered()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("tidegate.keeper.muster.asyncio.sleep", sleep)
    await muster.ready()
    muster.opened(restarted=False)
    await muster.ready()
    assert slept == []
    muster.opened(restarted=True)
    await muster.ready()
    assert slept == [1.5]


# --- over real links --------------------------------------------------------------------------------------------


class Lab:
    """A keeper with one session behind its real door, and workers with real clients."""

    def __init__(self, keeper: Keeper, folder: Path) -> None:
        self.keeper, self.path = keeper, folder / "k.sock"
        self.record = keeper.sessions.put(
            keeper.with_placeholders(
                Record(
                    id=SID, owner="me", policy="triage", credentials=("github",), source="10.0.0.0/24", origin="admin"
                )
            )
        )
        self.clients: list[KeeperClient] = []

    async def worker(self, name: str, on_push: Callable[[Push], None]) -> KeeperClient:
        client = KeeperClient(self.path, name, on_push)
        self.clients.append(client)
        await client.start()
        assert await client.wait_up(5.0)
        assert isinstance(await self.open(client), SessionGrant)
        return client

    async def open(self, client: KeeperClient) -> SessionGrant | Reason:
        return await client.open_session(token=None, source="10.0.0.2", listener="l")


@asynccontextmanager
async def lab(folder: Path) -> AsyncIterator[Lab]:
    keeper, _ = await made.configured(folder, made.TurnedClock())
    made_lab = Lab(keeper, folder)
    door = WorkerDoor(keeper, made_lab.path, gate_uid=os.geteuid())
    keeper.push = door.push
    await door.open()
    try:
        yield made_lab
    finally:
        for client in made_lab.clients:
            await client.close()
        await door.close()
        await keeper.close()


async def test_no_worker_has_a_lease_before_the_other_one_searches_for_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:
        order: list[str] = []
        a = await here.worker("a", lambda _: None)
        await here.worker("b", lambda push: order.append(type(push).__name__) if isinstance(push, LeaseAdded) else None)
        assert isinstance(await a.lease(SID, "github"), LeaseGrant)
        order.append("lent")
        assert order == ["LeaseAdded", "lent"]


async def test_a_worker_that_does_not_acknowledge_is_cut_off_and_the_lease_is_lent(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:
        heard: list[Push] = []

        def fail(push: Push) -> None:
            heard.append(push)
            if isinstance(push, LeaseAdded):
                raise RuntimeError("no room")

        a = await here.worker("a", lambda _: None)
        b = await here.worker("b", fail)
        begin = asyncio.get_running_loop().time()
        assert isinstance(await a.lease(SID, "github"), LeaseGrant)
        assert asyncio.get_running_loop().time() - begin < WAIT_SECONDS + 1.0
        assert await b.lease(SID, "github") is Reason.SESSION_INVALID
        assert SessionEnded(SID, "unsettled") in heard
        assert any(line["type"] == "fault" for line in made.journal(tmp_path))
        again = await here.open(b)
        assert isinstance(again, SessionGrant)
        assert len(again.secrets) == 1


async def test_a_push_that_raises_costs_no_link(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:

        def fail(_: Push) -> None:
            raise MemoryError("RE2 is out of memory")

        b = await here.worker("b", fail)
        here.keeper.freeze(here.record, frozen=True)
        here.keeper.freeze(here.record, frozen=False)
        assert isinstance(await b.lease(SID, "github"), LeaseGrant)
        assert b.down_seconds() == 0.0
        assert b.problem == "MemoryError on the keeper link"


async def test_the_link_comes_back_whatever_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab(tmp_path) as here:
        client = KeeperClient(here.path, "w", lambda _: None)
        here.clients.append(client)
        faults = [RecursionError("deep"), ZeroDivisionError("odd"), RuntimeError("new kind")]
        greet = client._greet

        async def stumble(link: object) -> None:
            if faults:
                raise faults.pop()
            await greet(link)  # type: ignore[arg-type]

        monkeypatch.setattr(client, "_greet", stumble)
        await client.start()
        assert await client.wait_up(5.0)
        assert faults == []


# --- the book ---------------------------------------------------------------------------------------------------


class Book:
    """A lease book whose settling the test decides."""

    def __init__(self, keeper: Keeper, clock: made.TurnedClock) -> None:
        self.keeper, self.clock, self.value = keeper, clock, made.SECRET
        self.settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.settled.set_result(True)
        self.asked = asyncio.Event()
        keeper.leases._settle = self._settle
        keeper.leases._fetch = self._fetch
        self.record = keeper.sessions.put(
            keeper.with_placeholders(
                Record(id=SID, owner="me", policy="triage", credentials=("github",), source=None, origin="admin")
            )
        )

    async def _settle(self, *_: object) -> bool:
        self.asked.set()
        return await self.settled

    async def _fetch(self, record: Record, credential: str) -> leases.Fetched:
        return leases.Fetched(Secret(self.value), 900.0, "env", "header")

    async def lend(self) -> LeaseGrant | Reason:
        return await self.keeper.leases.lend(self.record, "github", None)

    async def rotate(self, value: str) -> asyncio.Task[LeaseGrant | Reason]:
        """Begin a rotation whose lease is pending when this returns."""
        self.asked.clear()
        self.value, self.settled = value, asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self.keeper.leases._renew(self.record, "github", None))
        await self.asked.wait()
        return task

    def searched(self) -> set[str]:
        return {one.secret.reveal().decode() for one in self.keeper.leases.secrets(SID)}


async def booked(folder: Path) -> Book:
    clock = made.TurnedClock()
    keeper, _ = await made.configured(folder, clock)
    return Book(keeper, clock)


async def test_a_pending_secret_is_searched_for_and_the_old_one_is_lent(tmp_path: Path) -> None:
    book = await booked(tmp_path)
    old = await book.lend()
    rotating = await book.rotate(made.OTHER_SECRET)
    assert book.searched() == {made.SECRET, made.OTHER_SECRET}
    assert isinstance(old, LeaseGrant)
    lent = await book.lend()
    assert isinstance(lent, LeaseGrant)
    assert lent.lease_id == old.lease_id
    book.settled.set_result(True)
    grant = await rotating
    assert isinstance(grant, LeaseGrant)
    assert grant.secret.reveal().decode() == made.OTHER_SECRET
    assert book.searched() == {made.SECRET, made.OTHER_SECRET}


async def test_a_lease_that_cannot_be_settled_is_not_lent_and_the_old_one_stays(tmp_path: Path) -> None:
    book = await booked(tmp_path)
    old = await book.lend()
    rotating = await book.rotate(made.OTHER_SECRET)
    book.settled.set_result(False)
    assert await rotating is Reason.CREDENTIAL_UNAVAILABLE
    assert await book.lend() == old
    assert book.searched() == {made.SECRET, made.OTHER_SECRET}


@pytest.mark.parametrize("end", ["session", "credential"])
async def test_what_ends_while_its_lease_is_pending_gets_none(tmp_path: Path, end: str) -> None:
    book = await booked(tmp_path)
    rotating = await book.rotate(made.SECRET)
    if end == "session":
        book.keeper.end_session(book.record, "revoked")
    else:
        book.keeper.leases.end_credential(SID, "github", "changed")
    book.settled.set_result(True)
    assert await rotating is Reason.CREDENTIAL_UNAVAILABLE
    assert book.searched() == (set() if end == "session" else {made.SECRET})
    assert bool(list(book.keeper.store.items("leases"))) is (end != "session")


async def test_the_secrets_of_a_session_are_bounded_so_that_its_grant_fits_a_frame(tmp_path: Path) -> None:
    book = await booked(tmp_path)
    for number in range(400):
        book.value = f"{number:04d}" + "x9Qz" * 1000
        outcome = await book.keeper.leases._renew(book.record, "github", None)
        if outcome is Reason.CREDENTIAL_UNAVAILABLE:
            break
    assert 100 < number < 399
    assert sum(len(one.secret) for one in book.keeper.leases.secrets(SID)) < leases.MOST_BYTES
    assert "too many secrets of one day" in " ".join(book.keeper.warnings())
    book.clock.go(24 * 3600 + 1)
    book.keeper.tick()
    assert isinstance(await book.lend(), LeaseGrant)
