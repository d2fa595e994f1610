"""Sessions in a worker: opened at the keeper once, ended by its word, their secrets searched for to the end."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.unit.exchange.stage import CREDENTIAL, PLACEHOLDER, SECRET, SESSION, FakeKeeper, Stage, grant, stage
from tidegate.exchange.sessions import Lease, LiveSession
from tidegate.keeper.protocol import (
    EpochPush,
    LeaseAdded,
    LeaseEnded,
    LeaseGrant,
    LiveSecret,
    SessionEnded,
    SessionFrozen,
)
from tidegate.policy.reasons import Reason
from tidegate.secret import Secret
from tidegate.session.identity import SessionId

OTHER = b"An0therS3cretOfTheSameSession!!!"


async def opened(made: Stage, token: str | None = "token", source: str = "10.0.0.2") -> LiveSession:
    session = await made.gate.sessions.open(token, source, "gate:8080")
    assert isinstance(session, LiveSession), session
    return session


def found(session: LiveSession, secret: bytes) -> bool:
    return bool(session.needles) and session.needles.scrub(b"x " + secret + b" y")[1] > 0


async def test_the_keeper_is_asked_once_a_way_in(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    known = made.gate.sessions.known
    assert known("token", "10.0.0.2", "") is session
    assert known("token", "10.0.0.3", "") is None
    assert known("other", "10.0.0.2", "") is None
    assert known(None, "10.0.0.2", "") is None
    assert await opened(made, None) is session


@pytest.mark.parametrize("reason", [Reason.SESSION_INVALID, Reason.SESSION_REQUIRED, Reason.KEEPER_UNAVAILABLE])
async def test_what_the_keeper_refuses_is_refused_and_not_kept(tmp_path: Path, reason: Reason) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=reason))
    assert await made.gate.sessions.open("t", "10.0.0.2", "") is reason
    assert len(made.gate.sessions) == 0


async def test_a_session_of_an_unknown_policy_is_invalid(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant(policy="gone")))
    assert await made.gate.sessions.open("t", "10.0.0.2", "") is Reason.SESSION_INVALID


@pytest.mark.parametrize(
    ("changes", "later", "reason"),
    [
        pytest.param({}, 0, None, id="live"),
        pytest.param({"expires_in": None}, 10**9, None, id="without-end"),
        pytest.param({"expires_in": 60.0}, 59, None, id="before-its-end"),
        pytest.param({"expires_in": 60.0}, 60, Reason.SESSION_INVALID, id="expired"),
        pytest.param({"frozen": True}, 0, Reason.SESSION_FROZEN, id="frozen"),
    ],
)
async def test_refusal(tmp_path: Path, changes: dict[str, object], later: float, reason: Reason | None) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant(**changes)))
    session = await opened(made)
    assert session.refusal(made.clock.boot() + later) is reason


async def test_an_ended_session_cuts_its_connections_and_is_forgotten(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session, channel = await opened(made), made.channel()
    cut: list[Reason] = []
    ended: list[str] = []
    channel.cut = cut.append
    made.gate.sessions.on_end = ended.append
    session.channels.add(channel)
    made.gate.sessions.pushed(SessionEnded(SESSION, "revoked"))
    assert cut == [Reason.SESSION_INVALID]
    assert ended == [SESSION]
    assert session.refusal(made.clock.boot()) is Reason.SESSION_INVALID
    assert made.gate.sessions.known("token", "10.0.0.2", "") is None
    assert ("forget", SESSION) in made.keeper.asked


async def test_freezing_holds_the_connections_and_thawing_lets_them_go(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session, channel = await opened(made), made.channel()
    held: list[bool] = []
    channel.hold = lambda *, frozen: held.append(frozen)
    session.channels.add(channel)
    for frozen in (True, False):
        made.gate.sessions.pushed(SessionFrozen(SESSION, frozen))
        assert session.frozen is frozen
    assert held == [True, False]


async def test_every_secret_is_searched_for_after_its_lease_has_ended(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    assert found(session, SECRET)
    assert not found(session, OTHER)
    made.gate.sessions.pushed(LeaseAdded(SESSION, LiveSecret("lease-9", "key", Secret(OTHER), PLACEHOLDER)))
    assert found(session, OTHER)
    made.gate.sessions.pushed(LeaseEnded(SESSION, "lease-9"))
    made.gate.sessions.pushed(LeaseEnded(SESSION, "lease-0"))
    assert found(session, SECRET)
    assert found(session, OTHER)


async def test_a_push_for_a_session_of_another_worker_is_nothing(tmp_path: Path) -> None:
    made = stage(tmp_path)
    epochs: list[int] = []
    made.gate.sessions.on_epoch = epochs.append
    made.gate.sessions.pushed(SessionEnded(SESSION, "revoked"))
    made.gate.sessions.pushed(EpochPush(7))
    assert epochs == [7]


async def test_a_lease_is_borrowed_once_however_many_wait(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    borrowed = await asyncio.gather(*(session.borrow("key", made.keeper, made.clock) for _ in range(5)))
    assert made.keeper.count("lease") == 1
    assert len({lease.id for lease in borrowed if not isinstance(lease, Reason)}) == 1
    assert session.lease("key", made.clock.boot()) is borrowed[0]


async def test_a_lease_is_renewed_ahead_of_its_end_and_gone_when_ended_or_dropped(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    await session.borrow("key", made.keeper, made.clock)
    now = made.clock.boot()
    assert session.lease("key", now + 594) is not None
    assert session.lease("key", now + 595) is None
    made.gate.sessions.pushed(LeaseEnded(SESSION, "lease-1"))
    assert session.lease("key", now) is None
    await session.borrow("key", made.keeper, made.clock)
    made.gate.sessions.drop_leases()
    assert session.lease("key", now) is None


async def test_a_refused_lease_is_a_reason(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(leases=Reason.CREDENTIAL_UNAVAILABLE))
    session = await opened(made)
    assert await session.borrow("key", made.keeper, made.clock) is Reason.CREDENTIAL_UNAVAILABLE


async def test_who_leaves_while_borrowing_takes_nobody_along(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    first = asyncio.ensure_future(session.borrow("key", Silent(), made.clock))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(session.borrow("key", made.keeper, made.clock))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await second, Lease)
    assert first.cancelled()


class Silent(FakeKeeper):
    """A keeper that never answers."""

    async def lease(self, session: SessionId, credential: str) -> LeaseGrant | Reason:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def test_a_session_whose_lease_brings_a_new_secret_searches_for_it(tmp_path: Path) -> None:
    fresh = LeaseGrant("lease-5", "key", Secret(OTHER), 600.0)
    made = stage(tmp_path, keeper=FakeKeeper(leases=fresh))
    session = await opened(made)
    await session.borrow("key", made.keeper, made.clock)
    assert found(session, OTHER)


async def test_expired_sessions_are_swept(tmp_path: Path) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant(expires_in=60.0)))
    session = await opened(made)
    made.gate.sessions.sweep(made.clock.boot() + 59)
    assert session.ended is None
    made.gate.sessions.sweep(made.clock.boot() + 60)
    assert session.ended is Reason.SESSION_INVALID
    assert len(made.gate.sessions) == 0


async def test_a_reload_gives_sessions_their_new_policy_or_ends_them(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    other = stage(tmp_path / "other", rules=()).gate.prepared.policies["p"]
    made.gate.sessions.adopt({"p": other}, {"key": msgspec.structs.replace(CREDENTIAL, ttl_seconds=1)})
    assert session.policy is other
    assert session.subject.policy_hash == other.hash
    assert session.holdings[0].spec.ttl_seconds == 1
    made.gate.sessions.adopt({"p": other}, {})
    assert session.holdings == ()
    assert found(session, SECRET)
    made.gate.sessions.adopt({}, {})
    assert session.ended is Reason.SESSION_INVALID


async def test_V_08_the_ways_in_that_are_remembered_are_bounded(tmp_path: Path) -> None:
    made = stage(tmp_path)
    for number in range(4100):
        await made.gate.sessions.open(None, f"10.0.{number >> 8}.{number & 255}", "")
    assert made.gate.sessions.known(None, "10.0.0.0", "") is None
    assert made.gate.sessions.known(None, f"10.0.{4099 >> 8}.{4099 & 255}", "") is not None
