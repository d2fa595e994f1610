"""A session with doors: its token is good behind them, and who only says that it came by one has nothing."""

from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.errors import KeeperError
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.protocol import Hello, LaunchReport, OpenSession, SessionGrant, SessionNew, SessionOpened
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.policy.reasons import Reason
from tidegate.session.door import LaunchNote
from tidegate.session.identity import SessionId, new_session_id


async def opened(admin: AdminDesk, *, doors: bool) -> tuple[SessionId, str]:
    found = await admin.answer(SessionNew("bare", launch=True, doors=doors, id=new_session_id()))
    assert isinstance(found, SessionOpened)
    return found.id, found.token.reveal().decode()


@pytest.mark.parametrize(
    ("doors", "source", "welcome"),
    [
        pytest.param(True, "door:OWN", True, id="own_door"),
        pytest.param(True, "door:OTHER", False, id="another_door"),
        pytest.param(True, "10.0.0.5", False, id="no_door"),
        pytest.param(True, "door:", False, id="nameless_door"),
        pytest.param(False, "10.0.0.5", True, id="without_doors"),
        pytest.param(False, "door:OTHER", False, id="without_doors_at_another"),
    ],
)
async def test_a_token_is_good_where_its_session_is(tmp_path: Path, doors: bool, source: str, welcome: bool) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    admin, worker = AdminDesk(keeper, reload), WorkerDesk(keeper, Allowances(0.0))
    await worker.answer(Hello("gate-0", "c" * 32))
    (own, token), (other, _) = await opened(admin, doors=doors), await opened(admin, doors=True)
    where = source.replace("OWN", own).replace("OTHER", other)
    found = await worker.answer(OpenSession(token, where, "door:http"))
    assert isinstance(found, SessionGrant) if welcome else found is Reason.SESSION_INVALID
    told = [line["incident"]["name"] for line in made.journal(tmp_path) if line["type"] == "incident"]
    assert told == ([] if welcome else ["session_misplaced"])
    await keeper.close()


@pytest.mark.parametrize(("source", "welcome"), [("door:OWN", True), ("10.0.0.5", False)])
async def test_doors_and_a_network_are_no_second_way_in(tmp_path: Path, source: str, welcome: bool) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    admin, worker = AdminDesk(keeper, reload), WorkerDesk(keeper, Allowances(0.0))
    await worker.answer(Hello("gate-0", "c" * 32))
    own = await admin.answer(SessionNew("bare", source="10.0.0.0/8", launch=True, doors=True, id=new_session_id()))
    assert isinstance(own, SessionOpened)
    ask = OpenSession(own.token.reveal().decode(), source.replace("OWN", own.id), "door:http")
    found = await worker.answer(ask)
    assert isinstance(found, SessionGrant) if welcome else found is Reason.SESSION_INVALID
    await keeper.close()


async def test_who_says_a_door_and_shows_no_token_has_no_session(tmp_path: Path) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    admin, worker = AdminDesk(keeper, reload), WorkerDesk(keeper, Allowances(0.0))
    await worker.answer(Hello("gate-0", "c" * 32))
    own, _ = await opened(admin, doors=True)
    assert await worker.answer(OpenSession(None, f"door:{own}", "door:http")) is Reason.SESSION_REQUIRED
    await keeper.close()


async def test_an_id_is_taken_once(tmp_path: Path) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    admin = AdminDesk(keeper, reload)
    own, _ = await opened(admin, doors=True)
    with pytest.raises(KeeperError, match="already"):
        await admin.answer(SessionNew("bare", launch=True, id=own))
    await keeper.close()


async def test_what_a_launchs_wall_dropped_is_on_record_by_rule_before_its_end(tmp_path: Path) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    dropped = {"everything else": 7, "another source\x1b[0m": 1}
    note = LaunchNote(id="box", act="end", net="veth", outcome="exited", seconds=2.5, dropped=dropped)
    await AdminDesk(keeper, reload).answer(LaunchReport(SessionId("s"), "team", note))
    *drops, end = made.journal(tmp_path)[-3:]
    assert end["type"] == "launch"
    assert {(one["type"], one["session"], one["owner"], one["verdict"]) for one in drops} == {
        ("conn", "s", "team", "deny")
    }
    assert {(one["reason"], one["conn"]["end"], one["conn"]["transport"]) for one in drops} == {
        ("wall_dropped", "wall_dropped", "other")
    }
    assert [(one["rule"], one.get("count")) for one in drops] == [
        ("sandbox: everything else", 7), ("sandbox: another source\\x1b[0m", None),
    ]  # fmt: skip
    first, last = (datetime.fromisoformat(drops[0][name]) for name in ("first", "last"))
    assert (last - first).total_seconds() == 2.5
    await keeper.close()


async def test_a_launch_is_on_record_with_what_is_not_ours_escaped(tmp_path: Path) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    note = LaunchNote(id="box", act="end", argv="a\x1b[0m", outcome="oom", seconds=0.25, limits={"pids": 4.0})
    await AdminDesk(keeper, reload).answer(LaunchReport(SessionId("s"), "team", note))
    (line,) = (line for line in made.journal(tmp_path) if line["type"] == "launch")
    assert (line["session"], line["owner"], line["launch"]["argv"]) == ("s", "team", "a\\x1b[0m")
    assert (line["launch"]["duration_ms"], line["launch"]["limits"]) == (250, {"pids": 4.0})
    await keeper.close()
