"""Sessions of tool calls: children that have no more than their parent, and end with it.

Longer than a module should be, since one keeper with one family of sessions is what all of it is tried on.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.keeper import made
from tidegate.config.model import SessionSpec, encode_keeper
from tidegate.errors import CredentialError, KeeperError, TidegateError
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.calls import MOST_DEEP
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import (
    Draw,
    HarnessCall,
    HarnessNew,
    HarnessOpened,
    HarnessRevoke,
    Hello,
    LaunchReport,
    Lease,
    LeaseGrant,
    OpenSession,
    Push,
    SessionEnded,
    SessionFreeze,
    SessionFrozen,
    SessionGrant,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionShow,
    SessionThaw,
    SessionView,
    WallDrop,
    WallReport,
)
from tidegate.keeper.reload import Reload
from tidegate.keeper.settings import Rulebook
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.policy.names import parse_pattern
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets, PolicySpec, Rule
from tidegate.secret import Secret
from tidegate.session.budget import slice_of
from tidegate.session.call import ToolCall
from tidegate.session.door import LaunchNote
from tidegate.session.identity import SessionId, new_session_id

BOTH = ("github", "npm")
HOSTILE = 'web\n{"v":1}\x1b[2J\u202e'
ESCAPED = 'web\\x0a{"v":1}\\x1b[2J\\u202e'


def wide(name: str) -> PolicySpec:
    """A policy with both credentials, and a budget for each session."""
    one = made.policy(name)
    npm = Rule(id="npm", host=parse_pattern("npm.example.com"), credential="npm")
    return msgspec.structs.replace(one, allow=(*one.allow, npm), budgets_session=Budgets(requests_per_minute=64))


class Stage:
    """A keeper with its desks and one link."""

    def __init__(self, keeper: Keeper, reload: Reload, clock: made.TurnedClock, state: Path) -> None:
        self.keeper, self.reload, self.clock, self.state = keeper, reload, clock, state
        self.admin = AdminDesk(keeper, reload)
        self.worker = WorkerDesk(keeper, Allowances(0.0))
        self.pushed: list[Push] = []
        keeper.push = lambda push, but: self.pushed.append(push)

    async def new(self, policy: str | None = None, **more: Any) -> SessionOpened:
        opened = await self.admin.answer(SessionNew(policy, **more))
        assert isinstance(opened, SessionOpened)
        return opened

    async def parent(self, **more: Any) -> SessionOpened:
        return await self.new("triage", **{"credentials": BOTH, "owner": "team", "ttl_seconds": 600.0, **more})

    async def child(self, parent: SessionId, tool: str = "web", id: str = "c1", **more: Any) -> SessionOpened:
        return await self.new(call=ToolCall.of(tool, id, parent=parent), **more)

    async def come(self, opened: SessionOpened, source: str = "10.9.9.9") -> SessionGrant | Reason:
        found = await self.worker.answer(OpenSession(opened.token.reveal().decode(), source, "http"))
        assert isinstance(found, SessionGrant | Reason)
        return found

    def live(self, *opened: SessionOpened) -> list[bool]:
        return [self.keeper.sessions.get(one.id) is not None for one in opened]

    def lines(self, **wanted: object) -> list[dict[str, Any]]:
        return [line for line in made.journal(self.state) if all(line[key] == value for key, value in wanted.items())]


def settings(state: Path, **more: Any) -> Any:
    return made.settings(
        state,
        policies=(wide("triage"), wide("other")),
        credentials=(made.credential(), made.credential("npm", env="NPM_TOKEN")),
        sessions={"agent": SessionSpec("triage", BOTH, "10.0.0.0/24", "team")} | more,
    )


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings(tmp_path))
    one = Stage(keeper, reload, clock, tmp_path)
    await one.worker.answer(Hello("gate-0", "c" * 32))
    yield one
    await keeper.close()


# --- what it has ---------------------------------------------------------------------------------


async def test_a_child_has_its_parents_policy_owner_and_time_and_placeholders_of_its_own(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child(parent.id, credentials=("github",), owner="somebody-else", ttl_seconds=1e6)
    record = stage.keeper.sessions.need(child.id)
    assert (record.policy, record.owner, record.credentials) == ("triage", "team", ("github",))
    assert record.expires_in(stage.clock) == pytest.approx(600.0)
    assert (child.owner, child.call) == ("team", record.call)
    assert child.placeholders.keys() == {"GITHUB_TOKEN"}
    assert child.placeholders["GITHUB_TOKEN"] != parent.placeholders["GITHUB_TOKEN"]


async def test_a_child_may_end_before_its_parent(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child(parent.id, ttl_seconds=5.0)
    stage.clock.go(6)
    stage.keeper.tick()
    assert stage.live(parent, child) == [True, False]
    assert [line["reason"] for line in stage.lines(session=child.id, type="session")] == [None, "expired"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param({"credentials": BOTH}, "does not hold 'npm'", id="a credential more"),
        pytest.param({"credentials": ("nope",)}, "does not hold 'nope'", id="a credential that is none"),
        pytest.param({"policy": "other"}, "own policy, 'triage'", id="another policy"),
        pytest.param({"source": "10.9.0.0/16"}, "no network of its own", id="a network"),
        pytest.param({"ttl_seconds": -1.0}, "above 0", id="no time"),
    ],
)
async def test_a_child_that_asks_for_more_than_its_parent_is_refused(
    stage: Stage, more: dict[str, Any], says: str
) -> None:
    parent = await stage.parent(credentials=("github",))
    before = len(stage.lines(type="session"))
    with pytest.raises(TidegateError, match=says):
        await stage.child(parent.id, **more)
    assert len(list(stage.keeper.sessions.live())) == 2  # the file's, and the parent
    assert len(stage.lines(type="session")) == before


async def test_a_childs_child_has_no_more_than_the_child(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child(parent.id, credentials=("github",))
    await stage.child(child.id, credentials=("github",))
    with pytest.raises(KeeperError, match="does not hold 'npm'"):
        await stage.child(child.id, credentials=("npm",))


async def test_calls_within_calls_have_a_bound(stage: Stage) -> None:
    last = await stage.parent()
    for _ in range(MOST_DEEP - 1):
        last = await stage.child(last.id)
    with pytest.raises(KeeperError, match=f"at most {MOST_DEEP} deep"):
        await stage.child(last.id)


@pytest.mark.parametrize("gone", ["never", "revoked"])
async def test_a_parent_that_is_not_live_has_no_children(stage: Stage, gone: str) -> None:
    parent = await stage.parent()
    await stage.admin.answer(SessionRevoke(parent.id))
    with pytest.raises(KeeperError, match="no live session"):
        await stage.child(parent.id if gone == "revoked" else new_session_id())


async def test_a_session_without_a_parent_may_be_for_a_call_and_needs_its_policy(stage: Stage) -> None:
    opened = await stage.new("triage", call=ToolCall.of("web", "c1"))
    assert opened.call is not None
    assert opened.call.parent is None
    with pytest.raises(TidegateError, match="has a policy"):
        await stage.new(call=ToolCall.of("web", "c1"))


async def test_children_count_as_sessions_of_their_owner(tmp_path: Path) -> None:
    policy = made.policy(owner_budget=Budgets(sessions=2))
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, made.settings(tmp_path, policies=(policy,)))
    stage = Stage(keeper, reload, clock, tmp_path)
    parent = await stage.new("triage", owner="team")
    await stage.child(parent.id)
    with pytest.raises(KeeperError, match="2 sessions already"):
        await stage.child(parent.id)
    await keeper.close()


async def test_calls_draw_on_the_session_budget_of_the_session_that_they_are_made_in(stage: Stage) -> None:
    parent = await stage.parent()
    children = [await stage.child(parent.id), await stage.child(parent.id)]
    other = await stage.parent()
    for one in (parent, *children, other):
        assert isinstance(await stage.come(one), SessionGrant)

    async def draw(one: SessionOpened) -> object:
        return await stage.worker.answer(Draw(one.id, "requests", "session", slice_of(64), 64))

    drawn = 0
    while granted := await draw(children[drawn % 2]):
        assert isinstance(granted, int)
        drawn += granted
    assert drawn == 64
    assert await draw(parent) == 0
    await stage.admin.answer(SessionRevoke(children[0].id))  # a call that ends gives nothing back
    assert await draw(children[1]) == 0
    assert await draw(other) == slice_of(64)


async def test_a_worker_is_told_the_call_and_whose_budgets_it_draws_on(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child((await stage.child(parent.id)).id, "t", "i")
    grant = await stage.come(child)
    assert isinstance(grant, SessionGrant)
    assert (grant.call, grant.root) == (child.call, parent.id)


# --- where it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "welcome"),
    [
        pytest.param("10.0.0.7", True, id="its parent's network"),
        pytest.param("10.9.9.9", False, id="elsewhere"),
        pytest.param("door:agent", False, id="a door"),
    ],
)
async def test_a_child_is_where_its_parent_is_by_network(stage: Stage, source: str, welcome: bool) -> None:
    child = await stage.child(SessionId("agent"))
    found = await stage.come(child, source)
    assert isinstance(found, SessionGrant) if welcome else found is Reason.SESSION_INVALID
    if isinstance(found, SessionGrant):
        assert (found.id, found.source) == (child.id, "10.0.0.0/24")


async def test_the_network_alone_is_still_the_parents(stage: Stage) -> None:
    await stage.child(SessionId("agent"))
    found = await stage.worker.answer(OpenSession(None, "10.0.0.7", "http"))
    assert isinstance(found, SessionGrant)
    assert (found.id, found.call) == ("agent", None)


@pytest.mark.parametrize(
    ("doors", "source", "welcome"),
    [
        pytest.param(False, "door:PARENT", True, id="without doors at its parent's"),
        pytest.param(False, "10.9.9.9", False, id="without doors elsewhere"),
        pytest.param(False, "door:CHILD", False, id="without doors at what it says is its own"),
        pytest.param(True, "door:CHILD", True, id="with doors at its own"),
        pytest.param(True, "door:PARENT", False, id="with doors at its parent's"),
    ],
)
async def test_a_child_is_behind_its_own_doors_or_its_parents(
    stage: Stage, doors: bool, source: str, welcome: bool
) -> None:
    parent = await stage.parent(launch=True, doors=True, id=new_session_id())
    child = await stage.child(parent.id, launch=True, doors=doors, id=new_session_id())
    found = await stage.come(child, source.replace("PARENT", parent.id).replace("CHILD", child.id))
    assert isinstance(found, SessionGrant) if welcome else found is Reason.SESSION_INVALID


async def test_a_parents_token_opens_no_child_and_shows_at_no_childs_door(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child(parent.id, launch=True, doors=True, id=new_session_id())
    assert await stage.come(parent, f"door:{child.id}") is Reason.SESSION_INVALID
    (incident,) = stage.lines(type="incident")
    assert (incident["reason"], incident["session"]) == ("session_misplaced", parent.id)


# --- how it ends ---------------------------------------------------------------------------------


async def family(stage: Stage) -> tuple[SessionOpened, SessionOpened, SessionOpened, SessionOpened]:
    parent = await stage.parent()
    child = await stage.child(parent.id)
    return parent, child, await stage.child(child.id), await stage.parent()


async def test_a_parent_that_ends_takes_all_beneath_it_along(stage: Stage) -> None:
    parent, child, grandchild, other = await family(stage)
    for one in (parent, child, grandchild):
        assert isinstance(await stage.come(one), SessionGrant)
    await stage.admin.answer(SessionRevoke(parent.id))
    assert stage.live(parent, child, grandchild, other) == [False, False, False, True]
    ended = [push for push in stage.pushed if isinstance(push, SessionEnded)]
    assert {(push.sid, push.reason) for push in ended} == {
        (parent.id, "revoked"), (child.id, "parent_ended"), (grandchild.id, "parent_ended"),
    }  # fmt: skip
    assert ended[-1].sid == parent.id
    told = [(line["session"], line["reason"]) for line in stage.lines(type="session") if line["reason"]]
    assert sorted(told) == sorted((push.sid, push.reason) for push in ended)
    assert await stage.worker.answer(Lease(child.id, "github")) is Reason.SESSION_INVALID


async def test_a_child_that_ends_leaves_its_parent_and_takes_its_own_along(stage: Stage) -> None:
    parent, child, grandchild, other = await family(stage)
    await stage.admin.answer(SessionRevoke(child.id))
    assert stage.live(parent, child, grandchild, other) == [True, False, False, True]


async def test_a_parent_whose_time_is_over_takes_its_children_along_before_anybody_looks(stage: Stage) -> None:
    parent, child, grandchild, _ = await family(stage)
    stage.clock.go(601)
    assert stage.live(parent, child, grandchild) == [False, False, False]
    stage.keeper.tick()
    told = [line for line in stage.lines(type="session") if line["session_event"]["act"] in ("expire", "revoke")]
    assert len(told) == 4  # each once, the other parent too


async def test_a_keeper_that_fell_between_finds_and_ends_what_is_left(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings(tmp_path))
    stage = Stage(keeper, reload, clock, tmp_path)
    parent, child, grandchild, other = await family(stage)
    keeper.sessions.drop(parent.id)  # all that had reached the disk
    assert stage.live(child, grandchild, other) == [False, False, True]
    await keeper.close()
    keeper, _ = await made.configured(tmp_path, clock, settings(tmp_path))
    keeper.tick()
    assert {record.id for record in keeper.sessions.all()} == {"agent", other.id}
    await keeper.close()


async def test_a_family_is_the_same_after_a_restart(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings(tmp_path))
    parent, child, _, _ = await family(Stage(keeper, reload, clock, tmp_path))
    await keeper.close()
    keeper, reload = await made.configured(tmp_path, clock, settings(tmp_path))
    stage = Stage(keeper, reload, clock, tmp_path)
    assert keeper.sessions.need(child.id).call == child.call
    await stage.admin.answer(SessionRevoke(parent.id))
    assert stage.live(parent, child) == [False, False]
    await keeper.close()


@pytest.mark.parametrize(
    ("spec", "lives"),
    [
        pytest.param(SessionSpec("triage", BOTH, "10.0.0.0/24", "team"), True, id="as it was"),
        pytest.param(SessionSpec("triage", ("github",), "10.0.0.0/24", "team"), True, id="a credential less, not its"),
        pytest.param(SessionSpec("triage", ("npm",), "10.0.0.0/24", "team"), False, id="without its credential"),
        pytest.param(SessionSpec("other", BOTH, "10.0.0.0/24", "team"), False, id="another policy"),
        pytest.param(SessionSpec("triage", BOTH, "10.0.0.0/24", "else"), False, id="another owner"),
        pytest.param(None, False, id="gone"),
    ],
)
async def test_a_reload_ends_what_would_be_wider_than_its_parent(
    stage: Stage, spec: SessionSpec | None, lives: bool
) -> None:
    child = await stage.child(SessionId("agent"), credentials=("github",))
    below = await stage.child(child.id)
    fresh = settings(stage.state, **({} if spec is None else {"agent": spec}))
    if spec is None:
        fresh.sessions.pop("agent")
    await stage.reload.configure(2, encode_keeper(fresh), ())
    stage.reload.commit(2)
    assert stage.live(child, below) == [lives, lives]
    assert stage.keeper.problems() == ()


async def test_a_frozen_parent_freezes_its_children_and_opens_none(stage: Stage) -> None:
    parent, child, grandchild, other = await family(stage)
    await stage.admin.answer(SessionFreeze(parent.id))
    frozen = [stage.keeper.sessions.need(one.id).frozen for one in (parent, child, grandchild, other)]
    assert frozen == [True, True, True, False]
    assert {push.sid for push in stage.pushed if isinstance(push, SessionFrozen)} == {
        parent.id,
        child.id,
        grandchild.id,
    }
    for one in (parent, child):
        with pytest.raises(KeeperError, match="is frozen"):
            await stage.child(one.id)
    await stage.admin.answer(SessionThaw(parent.id))
    assert not any(stage.keeper.sessions.need(one.id).frozen for one in (parent, child, grandchild))


# --- on record -----------------------------------------------------------------------------------


async def test_every_record_of_the_keepers_about_a_child_has_its_call(stage: Stage) -> None:
    parent = await stage.parent()
    child = await stage.child(parent.id, HOSTILE, "c1", credentials=("github",))
    assert isinstance(await stage.come(child), SessionGrant)
    assert isinstance(await stage.worker.answer(Lease(child.id, "github")), LeaseGrant)
    await stage.come(child, "door:elsewhere")
    note = LaunchReport(child.id, child.owner, LaunchNote(id="box", act="start"), child.call)
    await stage.admin.answer(note)
    stage.keeper.leases.end_all("clock_step")
    await stage.admin.answer(SessionRevoke(child.id))
    lines = stage.lines(session=child.id)
    assert {line["type"] for line in lines} == {"session", "credential", "incident", "launch"}
    expected = {"tool": ESCAPED, "id": "c1", "parent": parent.id}
    assert [line["call"] for line in lines] == [expected] * len(lines)
    assert {(line["owner"]) for line in lines} == {"team"}
    assert {line["call"] for line in stage.lines(session=parent.id)} == {None}


async def test_a_packet_that_the_wall_dropped_has_the_call_of_whose_network_it_came_from(stage: Stage) -> None:
    opened = await stage.new("triage", call=ToolCall.of("web", "c1"), source="10.5.0.2/32")
    drop = WallDrop("tg0", "default", "10.5.0.2", "udp", "192.0.2.1", 53, 1, "", "")
    await stage.admin.answer(WallReport((drop,), ()))
    (line,) = stage.lines(type="conn")
    assert (line["session"], line["call"]) == (opened.id, {"tool": "web", "id": "c1", "parent": None})


async def test_a_failed_lease_of_a_call_says_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings(tmp_path))
    stage = Stage(keeper, reload, clock, tmp_path)

    async def fails(book: Rulebook, credential: str) -> Secret:
        raise CredentialError("the vendor is away")

    monkeypatch.setattr(keeper.sourcing, "fetch", fails)
    await stage.worker.answer(Hello("gate-0", "c" * 32))
    child = await stage.new("triage", credentials=("github",), call=ToolCall.of("web", "c1"))
    await stage.come(child)
    assert await stage.worker.answer(Lease(child.id, "github")) is Reason.CREDENTIAL_UNAVAILABLE
    (line,) = stage.lines(type="credential")
    assert line["call"] == {"tool": "web", "id": "c1", "parent": None}
    await keeper.close()


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("web", [0, 1]), ("web:c1", [0]), ("c2", [1]), ("fetch", [2]), ("web:c3", []), (HOSTILE, [3]), (ESCAPED, [3]),
        (None, [None, 0, 1, 2, 3]),
    ],
)  # fmt: skip
async def test_sessions_are_listed_by_their_call(stage: Stage, named: str | None, found: list[int | None]) -> None:
    words = [("web", "c1"), ("web", "c2"), ("fetch", "c3"), (HOSTILE, "c4")]
    opened = [(await stage.new("triage", call=ToolCall.of(*each))).id for each in words]
    views = await stage.admin.answer(SessionList(call=named))
    assert isinstance(views, tuple)
    assert [view.id for view in views] == ["agent" if at is None else opened[at] for at in found]
    view = await stage.admin.answer(SessionShow(opened[3]))
    assert isinstance(view, SessionView)
    assert view.call is not None
    assert (view.call.tool, view.call.id) == (ESCAPED, "c4")


# --- by a harness --------------------------------------------------------------------------------


async def by_harness(stage: Stage, one: HarnessOpened, ask: Any) -> Any:
    return await stage.admin.answer(HarnessCall(one.token, ask))


async def harness(stage: Stage, most: int = 3) -> HarnessOpened:
    opened = await stage.admin.answer(HarnessNew(("triage",), most, 600.0, "team"))
    assert isinstance(opened, HarnessOpened)
    return opened


async def test_a_harness_opens_calls_in_its_own_sessions_within_its_own_bounds(stage: Stage) -> None:
    one = await harness(stage)
    parent = await by_harness(stage, one, SessionNew("triage", BOTH))
    call = ToolCall.of("web", "c1", parent=parent.id)
    child = await by_harness(stage, one, SessionNew(None, ("npm",), call=call))
    assert stage.keeper.sessions.need(child.id).policy == "triage"
    await by_harness(stage, one, SessionNew("triage", call=ToolCall.of("web", "c2")))
    with pytest.raises(KeeperError, match="3 sessions already"):
        await by_harness(stage, one, SessionNew(None, call=call))
    assert len(await by_harness(stage, one, SessionList(call="web"))) == 2
    await stage.admin.answer(HarnessRevoke(one.id))
    assert stage.live(parent, child) == [False, False]


async def test_a_harness_makes_no_calls_in_anothers_session(stage: Stage) -> None:
    one, other = await harness(stage), await harness(stage)
    theirs = await by_harness(stage, other, SessionNew("triage"))
    for parent in (theirs.id, SessionId("agent"), (await stage.parent()).id):
        with pytest.raises(KeeperError, match="no live session"):
            await by_harness(stage, one, SessionNew("triage", call=ToolCall.of("web", "c1", parent=parent)))
