"""Sessions in a worker: opened at the keeper once, ended by its word, their secrets searched for to the end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.exchange.stage import CREDENTIAL, PLACEHOLDER, SECRET, SESSION, FakeKeeper, Stage, grant, stage
from tidegate.exchange.ending import End
from tidegate.exchange.sessions import Lease, LiveSession
from tidegate.keeper.protocol import (
    EpochPush,
    LeaseAdded,
    LeaseEnded,
    LeaseGrant,
    LiveSecret,
    Push,
    SessionEnded,
    SessionFrozen,
    SessionGrant,
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
    assert known("token", "10.0.0.2") is session
    assert known("token", "10.0.0.3") is None
    assert known("other", "10.0.0.2") is None
    assert known(None, "10.0.0.2") is None
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
    cut: list[tuple[object, ...]] = []
    ended: list[str] = []
    channel.cut = lambda *why: cut.append(why)
    made.gate.sessions.on_end = ended.append
    session.channels.add(channel)
    made.gate.sessions.pushed(SessionEnded(SESSION, "revoked"))
    assert cut == [(Reason.SESSION_INVALID, End.REVOKED)]
    assert ended == [SESSION]
    assert session.refusal(made.clock.boot()) is Reason.SESSION_INVALID
    assert made.gate.sessions.known("token", "10.0.0.2") is None
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
    assert made.gate.sessions.known(None, "10.0.0.0") is None
    assert made.gate.sessions.known(None, f"10.0.{4099 >> 8}.{4099 & 255}") is not None


class Overtaking(FakeKeeper):
    """A keeper whose pushes are read in one go with the grant, before who asked has its turn."""

    def __init__(self, *pushes: Push, **more: Any) -> None:
        super().__init__(**more)
        self.pushes = list(pushes)
        self.tell: Callable[[Push], None] = lambda _: None

    async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason:
        answer: asyncio.Future[SessionGrant | Reason] = asyncio.get_running_loop().create_future()
        answer.set_result(await super().open_session(token=token, source=source, listener=listener))
        while self.pushes:
            self.tell(self.pushes.pop(0))
        return await answer


def overtaking(folder: Path, *pushes: Push, **more: Any) -> Stage:
    keeper = Overtaking(*pushes, **more)
    made = stage(folder, keeper=keeper)
    keeper.tell = made.gate.sessions.pushed
    return made


async def test_a_session_that_ends_in_the_breath_of_its_grant_is_not_served(tmp_path: Path) -> None:
    made = overtaking(tmp_path, SessionEnded(SESSION, "revoked"))
    keeper = made.keeper
    answers: list[SessionGrant | Reason] = [grant(), Reason.SESSION_INVALID]

    async def one_after_the_other(**_: object) -> SessionGrant | Reason:
        answer = answers.pop(0)
        while isinstance(keeper, Overtaking) and keeper.pushes:
            keeper.tell(keeper.pushes.pop(0))
        return answer

    keeper.open_session = one_after_the_other  # type: ignore[method-assign]
    assert await made.gate.sessions.open("token", "10.0.0.2", "") is Reason.SESSION_INVALID
    assert made.gate.sessions.known("token", "10.0.0.2") is None
    assert len(made.gate.sessions) == 0


async def test_also_when_another_way_in_was_open(tmp_path: Path) -> None:
    made = overtaking(tmp_path)
    first = await opened(made)
    assert isinstance(made.keeper, Overtaking)
    made.keeper.pushes = [SessionEnded(SESSION, "revoked")] * 2
    second = await made.gate.sessions.open(None, "10.0.0.2", "")
    assert first.ended is Reason.SESSION_INVALID
    assert second is not first
    assert made.keeper.count("open") == 3  # the grant that the end overtook is asked for again


async def test_frozen_and_a_new_secret_in_the_breath_of_the_grant(tmp_path: Path) -> None:
    fresh = LiveSecret("lease-9", "key", Secret(OTHER), PLACEHOLDER)
    made = overtaking(tmp_path, LeaseAdded(SESSION, fresh), SessionFrozen(SESSION, True))
    session = await opened(made)
    assert session.frozen
    assert found(session, OTHER)
    made.gate.sessions.pushed(SessionFrozen(SESSION, False))
    await made.gate.sessions.open("token", "10.0.0.9", "")
    assert not session.frozen


async def test_V_08_pushes_that_nobody_opens_for_are_bounded_and_then_nothing_opens(tmp_path: Path) -> None:
    others = [SessionFrozen(SessionId(f"s{n}"), True) for n in range(4097)]
    made = overtaking(tmp_path, *others)
    assert await made.gate.sessions.open("token", "10.0.0.2", "") is Reason.KEEPER_UNAVAILABLE
    assert isinstance(await made.gate.sessions.open("token", "10.0.0.2", ""), LiveSession)


@pytest.mark.parametrize("kind", ["renew", "cut", "hold"])
async def test_a_push_that_cannot_be_done_ends_its_session_alone(tmp_path: Path, kind: str) -> None:
    made = stage(tmp_path)
    session, bad, good = await opened(made), made.channel(), made.channel()
    cut: list[Reason | None] = []
    good.cut = lambda reason, _: cut.append(reason)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    setattr(bad, kind, fail)
    session.channels |= {bad, good}
    pushes: dict[str, Push] = {
        "renew": LeaseAdded(SESSION, LiveSecret("lease-9", "key", Secret(OTHER), PLACEHOLDER)),
        "cut": SessionEnded(SESSION, "revoked"),
        "hold": SessionFrozen(SESSION, True),
    }
    made.gate.sessions.pushed(pushes[kind])
    assert session.ended is not None
    assert cut[0] is session.ended
    assert made.gate.sessions.known("token", "10.0.0.2") is None
    assert [line["reason"] for line in made.records("fault")] == ["internal_fault"]
    assert await opened(made) is not session


async def test_rotations_without_end_are_searched_for_a_day_each(tmp_path: Path) -> None:
    made = stage(tmp_path)
    session = await opened(made)
    values = [b"rotated-%04d-" % n + SECRET for n in range(40)]
    for number, value in enumerate(values):
        made.gate.sessions.pushed(
            LeaseAdded(SESSION, LiveSecret(f"l{number}", "key", Secret(value.upper()), PLACEHOLDER))
        )
        made.gate.sessions.pushed(LeaseEnded(SESSION, f"l{number - 1}"))
        if number == 20:
            made.clock.forward(3600 * 24 + 1)
        await asyncio.gather(*made.gate.sessions._tasks._tasks)
    assert not session.needles.scattered
    assert all(found(session, value.upper()) for value in values[20:])
    assert len(session.current_pairs()) < 25


async def test_a_session_of_many_secrets_opens_off_the_loop(tmp_path: Path) -> None:
    secrets = tuple(
        LiveSecret(f"l{n}", "key", Secret(b"%04d" % n + SECRET), PLACEHOLDER, ended=True) for n in range(300)
    )
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant(secrets=secrets)))
    opening = asyncio.ensure_future(opened(made))
    turns = 0
    while not opening.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2
    assert found(await opening, b"0299" + SECRET)
