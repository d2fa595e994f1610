from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.config.model import FileSource, KeeperSettings, SessionSpec, encode_keeper
from tidegate.errors import ConfigError, KeeperError
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import EpochPush, LeaseEnded, LeaseGrant, Push, SessionEnded
from tidegate.keeper.reload import Reload
from tidegate.keeper.sessions import Record
from tidegate.session.identity import SessionId

AGENT = SessionId("agent")


async def _switch(reload: Reload, epoch: int, settings: KeeperSettings) -> None:
    await reload.configure(epoch, encode_keeper(settings), ())
    reload.commit(epoch)


def _ears(keeper: Keeper) -> list[Push]:
    heard: list[Push] = []
    keeper.push = lambda push, but: heard.append(push)
    return heard


def _placeholder(keeper: Keeper) -> str:
    record = keeper.sessions.get(AGENT)
    assert record is not None
    return record.placeholders["github"]


async def test_a_file_session_keeps_its_placeholder_over_reload_and_restart(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    settings = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",), "10.0.0.0/24")})
    one, reload = await made.configured(tmp_path, clock, settings)
    first = _placeholder(one)
    heard = _ears(one)
    await _switch(reload, 2, settings)
    assert _placeholder(one) == first
    assert heard == [EpochPush(2)]
    await one.close()
    two, _ = await made.configured(tmp_path, clock, settings)
    assert _placeholder(two) == first


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(SessionSpec("bare", (), "10.0.0.0/24"), id="policy"),
        pytest.param(SessionSpec("triage", (), "10.0.0.0/24"), id="credentials"),
        pytest.param(SessionSpec("triage", ("github",), "10.0.1.0/24"), id="network"),
        pytest.param(SessionSpec("triage", ("github",), "10.0.0.0/24", "other"), id="owner"),
    ],
)
async def test_a_changed_session_is_cut_so_that_it_opens_anew(tmp_path: Path, spec: SessionSpec) -> None:
    clock = made.TurnedClock()
    old = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",), "10.0.0.0/24")})
    one, reload = await made.configured(tmp_path, clock, old)
    heard = _ears(one)
    await _switch(reload, 2, made.settings(tmp_path, sessions={"agent": spec}))
    assert SessionEnded(AGENT, "changed") in heard
    record = one.sessions.get(AGENT)
    assert record is not None
    assert (record.policy, record.source, record.owner) == (spec.policy, spec.from_, spec.owner)


async def test_two_sessions_may_swap_their_networks(tmp_path: Path) -> None:
    def swapped(first: str, second: str) -> KeeperSettings:
        return made.settings(
            tmp_path, sessions={"a": SessionSpec("bare", (), first), "b": SessionSpec("bare", (), second)}
        )

    one, reload = await made.configured(tmp_path, made.TurnedClock(), swapped("10.0.0.0/24", "10.0.1.0/24"))
    await _switch(reload, 2, swapped("10.0.1.0/24", "10.0.0.0/24"))
    assert not one.problems()
    a = one.sessions.get(SessionId("a"))
    assert a is not None
    assert a.source == "10.0.1.0/24"


async def test_a_revoked_file_session_stays_so_until_the_file_has_been_without_it(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    settings = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",))})
    one, reload = await made.configured(tmp_path, clock, settings)
    first = _placeholder(one)
    one.end_session(one.sessions.need(AGENT), "revoked")
    await _switch(reload, 2, settings)
    assert one.sessions.get(AGENT) is None
    [warning] = one.warnings()
    assert warning.startswith("sessions.agent is in the file but revoked")
    await one.close()
    two, reload = await made.configured(tmp_path, clock, settings)
    assert two.sessions.get(AGENT) is None
    await _switch(reload, 2, made.settings(tmp_path))
    assert not two.warnings()
    await _switch(reload, 3, settings)
    assert _placeholder(two) != first
    assert not two.warnings()


async def test_a_session_whose_policy_is_gone_ends(tmp_path: Path) -> None:
    one, reload = await made.configured(tmp_path, made.TurnedClock())
    record = Record(id=SessionId("x" * 16), owner="o", policy="bare", credentials=(), source=None, origin="admin")
    one.sessions.put(record)
    heard = _ears(one)
    await _switch(reload, 2, made.settings(tmp_path, policies=(made.policy(),)))
    assert SessionEnded(record.id, "policy_removed") in heard
    assert one.sessions.get(record.id) is None


async def test_a_changed_source_ends_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(made.OTHER_SECRET)
    sessions = {"agent": SessionSpec("triage", ("github",))}
    one, reload = await made.configured(tmp_path, made.TurnedClock(), made.settings(tmp_path, sessions=sessions))
    record = one.sessions.need(AGENT)
    lease = await one.leases.lend(record, "github", None)
    assert isinstance(lease, LeaseGrant)
    heard = _ears(one)
    await _switch(reload, 2, made.settings(tmp_path, sessions=sessions, sources={"github": FileSource(str(path))}))
    assert LeaseEnded(AGENT, lease.lease_id) in heard
    again = await one.leases.lend(one.sessions.need(AGENT), "github", None)
    assert isinstance(again, LeaseGrant)
    assert again.secret.reveal().decode() == made.OTHER_SECRET


@pytest.mark.parametrize(
    ("sessions", "says"),
    [
        pytest.param({"a": SessionSpec("nope")}, "no policy", id="policy"),
        pytest.param({"a": SessionSpec("triage", ("nope",))}, "no credential", id="credential"),
        pytest.param({"a": SessionSpec("bare", ("github",))}, "no rule of policy", id="credential_without_rule"),
        pytest.param({"a" * 29: SessionSpec("bare")}, "at most 28", id="name_too_long_for_a_token"),
        pytest.param(
            {"a": SessionSpec("bare", (), "10.0.0.0/24"), "b": SessionSpec("bare", (), "10.0.0.0/24")},
            "source of a too",
            id="one_network_twice",
        ),
    ],
)
async def test_settings_that_cannot_be_used_change_nothing(
    tmp_path: Path, sessions: dict[str, SessionSpec], says: str
) -> None:
    one, reload = await made.configured(tmp_path, made.TurnedClock())
    before = one.rules
    with pytest.raises(ConfigError, match=says):
        await reload.configure(2, encode_keeper(made.settings(tmp_path, sessions=sessions)), ())
    with pytest.raises(KeeperError):
        reload.commit(2)
    assert one.rules is before
    assert one.epoch == 1


async def test_epochs_only_go_forward(tmp_path: Path) -> None:
    _, reload = await made.configured(tmp_path, made.TurnedClock())
    with pytest.raises(KeeperError, match="not after"):
        await reload.configure(1, encode_keeper(made.settings(tmp_path)), ())
    with pytest.raises(ConfigError, match="cannot read"):
        await reload.configure(2, b"\x80", ())
