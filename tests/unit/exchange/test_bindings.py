"""A network that is bound to another session: what a worker remembers of clients inside it is worth nothing."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import FakeKeeper, Stage, grant, stage
from tidegate.exchange.sessions import LiveSession
from tidegate.keeper.protocol import EpochPush, SessionGrant, SourceBound
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

BOB = grant(id=SessionId("bob0000000000000"), source="10.0.0.5/32")


async def opened(made: Stage, source: str, token: str | None = "token") -> LiveSession:
    session = await made.gate.sessions.open(token, source, "gate:8080")
    assert isinstance(session, LiveSession), session
    return session


@pytest.mark.parametrize(
    ("own", "peer", "bound", "kept"),
    [
        pytest.param(None, "10.0.0.5", "10.0.0.5/32", False, id="of-no-network"),
        pytest.param(None, "10.0.0.6", "10.0.0.5/32", True, id="beside-it"),
        pytest.param(None, "::ffff:10.0.0.5", "10.0.0.5/32", False, id="through-a-dual-stack-socket"),
        pytest.param("10.0.0.0/24", "10.0.0.5", "10.0.0.5/32", False, id="a-narrower-one-wins"),
        pytest.param("10.0.0.0/24", "10.0.0.5", "10.0.0.0/16", True, id="a-wider-one-does-not"),
        pytest.param("10.0.0.0/24", "10.0.0.5", "10.0.0.0/24", True, id="its-own"),
        pytest.param("fd00::/64", "fd00::5", "fd00::5/128", False, id="ipv6"),
        pytest.param(None, "fd00::5", "10.0.0.0/8", True, id="another-family"),
    ],
)
async def test_a_bound_network_is_forgotten_and_its_connections_cut(
    tmp_path: Path, own: str | None, peer: str, bound: str, kept: bool
) -> None:
    made = stage(tmp_path, keeper=FakeKeeper(opens=grant(source=own)))
    session, channel = await opened(made, peer), made.channel((peer, 40000))
    cut: list[Reason | None] = []
    channel.cut = lambda reason, _: cut.append(reason)
    session.channels.add(channel)
    made.gate.sessions.pushed(SourceBound(bound))
    assert (made.gate.sessions.known("token", peer) is session) is kept
    assert cut == ([] if kept else [Reason.SESSION_INVALID])
    assert session.ended is None  # it goes on from everywhere else


async def test_a_network_that_is_bound_while_the_keeper_is_asked_counts(tmp_path: Path) -> None:
    """The answer of before is thrown away, or an address would keep the session that it has just lost."""
    made = stage(tmp_path)

    class Slow(FakeKeeper):
        async def open_session(self, *, token: str | None, source: str, listener: str) -> SessionGrant | Reason:
            answer = await super().open_session(token=token, source=source, listener=listener)
            if self.count("open") == 1:
                made.gate.sessions.pushed(SourceBound("10.0.0.5/32"))
                self.opens = Reason.SESSION_INVALID
            return answer

    keeper = Slow()
    made.gate.sessions._keeper = keeper
    assert await made.gate.sessions.open("token", "10.0.0.5", "") is Reason.SESSION_INVALID
    assert keeper.count("open") == 2
    assert made.gate.sessions.known("token", "10.0.0.5") is None


async def test_a_new_link_or_epoch_asks_the_keeper_again(tmp_path: Path) -> None:
    """What was bound while there was no link was told to nobody; the sessions themselves go on."""
    made = stage(tmp_path)
    session = await opened(made, "10.0.0.5")
    made.gate.sessions.pushed(EpochPush(7))
    assert made.gate.sessions.known("token", "10.0.0.5") is None
    assert await opened(made, "10.0.0.5") is session
    made.keeper.opens = BOB
    made.gate.sessions.pushed(EpochPush(8))
    assert (await opened(made, "10.0.0.5", None)).id == BOB.id
