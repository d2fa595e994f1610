import asyncio
from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.errors import CredentialError
from tidegate.keeper.core import Keeper
from tidegate.keeper.leases import Fetched
from tidegate.keeper.protocol import LeaseAdded, LeaseEnded, LeaseGrant, Push
from tidegate.keeper.sessions import Record
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret
from tidegate.session.identity import SessionId


class Lab:
    """A keeper with one session, a source that says what it is told, and ears."""

    def __init__(self, keeper: Keeper, clock: made.TurnedClock) -> None:
        self.keeper, self.clock = keeper, clock
        self.value = made.SECRET
        self.fails = False
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.pushes: list[Push] = []
        keeper.push = lambda push, but: self.pushes.append(push)
        keeper.leases._fetch = self._fetch
        record = Record(
            id=SessionId("s1"), owner="me", policy="triage", credentials=("github",), source=None, origin="admin"
        )
        self.record = keeper.sessions.put(keeper.with_placeholders(record))

    async def _fetch(self, record: Record, credential: str) -> Fetched:
        self.calls += 1
        await self.gate.wait()
        if self.fails:
            raise CredentialError("the vendor is away")
        return Fetched(Secret(self.value), 900.0, "env", "header")

    async def lend(self) -> LeaseGrant:
        grant = await self.keeper.leases.lend(self.record, "github", None)
        assert isinstance(grant, LeaseGrant)
        return grant

    async def settle(self) -> None:
        """Let the background fetches end."""
        while self.keeper.leases._flights:
            await asyncio.wait(self.keeper.leases._flights.values())


async def _lab(path: Path) -> Lab:
    clock = made.TurnedClock()
    keeper, _ = await made.configured(path, clock)
    return Lab(keeper, clock)


async def test_the_first_use_fetches_and_all_share_it(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    lab.gate.clear()
    waiting = [asyncio.ensure_future(lab.lend()) for _ in range(20)]
    await asyncio.sleep(0)
    lab.gate.set()
    grants = await asyncio.gather(*waiting)
    assert len({grant.lease_id for grant in grants}) == 1
    await lab.lend()
    assert lab.calls == 1


async def test_a_caller_that_goes_away_does_not_take_the_others_fetch_with_it(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    lab.gate.clear()
    first, second = asyncio.ensure_future(lab.lend()), asyncio.ensure_future(lab.lend())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    lab.gate.set()
    assert (await second).secret.reveal().decode() == made.SECRET


async def test_a_used_lease_is_renewed_ahead_and_an_unused_one_ends(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    first = await lab.lend()
    lab.clock.go(750)
    lab.keeper.tick()
    await lab.settle()
    assert lab.calls == 2
    assert (await lab.lend()).lease_id == first.lease_id  # the same value prolongs it
    lab.clock.go(100)
    assert (await lab.lend()).expires_in == 800
    lab.clock.go(900)
    lab.keeper.tick()
    assert LeaseEnded(SessionId("s1"), first.lease_id) in lab.pushes


async def test_a_rotated_secret_is_searched_for_before_the_old_one_ends(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    old = await lab.lend()
    lab.value = made.OTHER_SECRET
    lab.clock.go(750)
    lab.keeper.tick()
    await lab.settle()
    kinds = [type(push) for push in lab.pushes]
    assert kinds == [LeaseAdded, LeaseAdded, LeaseEnded]
    known = {one.secret.reveal().decode(): one.ended for one in lab.keeper.leases.secrets(SessionId("s1"))}
    assert known == {made.OTHER_SECRET: False, made.SECRET: True}
    assert (await lab.lend()).lease_id != old.lease_id
    lab.clock.go(24 * 3600 + 1)
    lab.keeper.tick()
    assert made.SECRET not in {one.secret.reveal().decode() for one in lab.keeper.leases.secrets(SessionId("s1"))}


async def test_a_source_that_fails_is_not_asked_again_at_once(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    lab.fails = True
    results = [await lab.keeper.leases.lend(lab.record, "github", None) for _ in range(10)]
    assert set(results) == {Reason.CREDENTIAL_UNAVAILABLE}
    assert lab.calls == 1
    assert "credential github: the vendor is away, when last asked" in lab.keeper.warnings()
    assert lab.keeper.problems() == ()
    lab.clock.go(2)
    lab.fails = False
    await lab.lend()
    assert not lab.keeper.problems()


async def test_a_clock_step_drops_the_leases(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    lease = await lab.lend()
    lab.clock.wall_now += 60
    lab.keeper.tick()
    assert LeaseEnded(SessionId("s1"), lease.lease_id) in lab.pushes
    assert (await lab.lend()).lease_id != lease.lease_id
    assert any(line["type"] == "fault" for line in made.journal(tmp_path))


async def test_leases_die_with_their_session(tmp_path: Path) -> None:
    lab = await _lab(tmp_path)
    await lab.lend()
    lab.keeper.end_session(lab.record, "revoked")
    assert lab.keeper.leases.secrets(SessionId("s1")) == ()
    assert not list(lab.keeper.store.items("leases"))


async def test_a_session_revoked_while_its_secret_is_fetched_gets_none(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    keeper, _ = await made.configured(tmp_path, clock)
    record = Record(
        id=SessionId("s2"), owner="me", policy="triage", credentials=("github",), source=None, origin="admin"
    )
    record = keeper.sessions.put(keeper.with_placeholders(record))
    keeper.end_session(record, "revoked")
    assert await keeper.leases.lend(record, "github", None) is Reason.CREDENTIAL_UNAVAILABLE
    assert keeper.leases.secrets(record.id) == ()


async def test_no_record_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.errors import AuditError

    lab = await _lab(tmp_path)

    def full(*_: object, **__: object) -> int:
        raise AuditError("no room")

    monkeypatch.setattr(lab.keeper.journal.writer, "append", full)
    assert await lab.keeper.leases.lend(lab.record, "github", None) is Reason.AUDIT_UNAVAILABLE
    assert lab.keeper.leases.secrets(SessionId("s1")) == ()
