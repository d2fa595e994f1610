"""Attacks on sessions, by someone who holds a worker, a harness token or another sandbox.

Longer than a module should be, since every attack is made on one keeper.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from tests.unit.keeper import made
from tidegate.config.model import SessionSpec
from tidegate.errors import KeeperError, TidegateError
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import (
    Checkpoint,
    Draw,
    HarnessCall,
    HarnessNew,
    HarnessOpened,
    HarnessRevoke,
    Hello,
    Lease,
    LeaseGrant,
    OpenSession,
    Ping,
    SessionEnv,
    SessionFreeze,
    SessionGrant,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionShow,
    SignLeaf,
    WorkerAsk,
)
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.policy.reasons import Reason
from tidegate.policy.rules import Budgets
from tidegate.secret import Secret
from tidegate.session.identity import SessionId, parse_source
from tidegate.session.token import Claims, mint_token

HERE, ELSEWHERE = "10.0.0.5", "10.0.7.5"


class Gate:
    """A keeper with its desks, without sockets."""

    def __init__(self, keeper: Keeper, admin: AdminDesk, clock: made.TurnedClock, state: Path) -> None:
        self.keeper, self.admin, self.clock, self.state = keeper, admin, clock, state
        self.allowances = Allowances(0.0)

    async def link(self) -> WorkerDesk:
        desk = WorkerDesk(self.keeper, self.allowances)
        await desk.answer(Hello("gate", "c" * 32))
        return desk

    async def new(self, policy: str = "triage", **more: object) -> SessionOpened:
        opened = await self.admin.answer(SessionNew(policy, **{"credentials": ("github",), **more}))  # type: ignore[arg-type]
        assert isinstance(opened, SessionOpened)
        return opened

    async def harness(self, *policies: str, most: int = 2, ttl: float = 600.0) -> HarnessOpened:
        opened = await self.admin.answer(HarnessNew(policies, most, ttl))
        assert isinstance(opened, HarnessOpened)
        return opened

    def incidents(self) -> list[object]:
        return [line["reason"] for line in made.journal(self.state) if line["type"] == "incident"]


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gate]:
    clock = made.TurnedClock()
    settings = made.settings(tmp_path, sessions={"agent": SessionSpec("triage", ("github",), "10.0.0.0/24")})
    keeper, reload = await made.configured(tmp_path, clock, settings)
    yield Gate(keeper, AdminDesk(keeper, reload), clock, tmp_path)
    await keeper.close()


def _open(token: Secret | None, source: str = ELSEWHERE) -> OpenSession:
    return OpenSession(token.reveal().decode() if token else None, source, "http")


async def test_neither_token_nor_source_is_407(gate: Gate) -> None:
    assert await (await gate.link()).answer(_open(None)) is Reason.SESSION_REQUIRED


async def test_a_source_opens_its_session_and_no_other(gate: Gate) -> None:
    grant = await (await gate.link()).answer(_open(None, HERE))
    assert isinstance(grant, SessionGrant)
    assert grant.id == "agent"


@pytest.mark.parametrize("source", [HERE, "::ffff:10.0.0.5"])
async def test_a_stolen_token_used_from_another_sandboxs_network_is_refused(gate: Gate, source: str) -> None:
    other = await gate.new()
    assert await (await gate.link()).answer(_open(other.token, source)) is Reason.SESSION_INVALID
    assert "session_misplaced" in gate.incidents()


async def test_a_token_of_a_bound_session_is_refused_from_anywhere_else(gate: Gate) -> None:
    bound = await gate.new(source="10.0.3.0/24")
    desk = await gate.link()
    assert await desk.answer(_open(bound.token)) is Reason.SESSION_INVALID
    assert await desk.answer(_open(bound.token, "unix:box")) is Reason.SESSION_INVALID
    assert isinstance(await desk.answer(_open(bound.token, "10.0.3.9")), SessionGrant)


async def test_a_bad_token_is_not_made_good_by_a_good_source(gate: Gate) -> None:
    assert await (await gate.link()).answer(_open(Secret("no.token.x"), HERE)) is Reason.SESSION_INVALID


async def test_an_expired_session_is_refused_on_the_boot_clock(gate: Gate) -> None:
    session = await gate.new(ttl_seconds=60.0)
    desk = await gate.link()
    gate.clock.wall_now -= 86_400  # setting the clock back prolongs nothing
    gate.clock.boot_now += 61
    assert await desk.answer(_open(session.token)) is Reason.SESSION_INVALID
    assert await desk.answer(Lease(session.id, "github")) is Reason.SESSION_INVALID


async def test_a_token_with_another_exp_is_refused_even_when_signed(gate: Gate) -> None:
    session = await gate.new(ttl_seconds=60.0)
    forged = mint_token(Claims(session.id, 4_000_000_000), gate.keeper.keys.token)
    assert await (await gate.link()).answer(_open(forged)) is Reason.SESSION_INVALID


def _asks(sid: SessionId) -> list[WorkerAsk]:
    return [
        Lease(sid, "github"),
        SignLeaf(sid, "api.example.com", made.public_key(), False),
        SignLeaf(sid, "denied.test", made.public_key(), True),
        Draw(sid, "requests", "session", 1, 10),
    ]


async def test_a_worker_gets_nothing_of_a_session_that_has_not_come_to_it(gate: Gate) -> None:
    session = await gate.new()
    mine, fallen = await gate.link(), await gate.link()
    await mine.answer(_open(session.token))
    assert [await fallen.answer(ask) for ask in _asks(session.id)] == [Reason.SESSION_INVALID] * 4
    given = [await mine.answer(ask) for ask in _asks(session.id)]
    assert not [answer for answer in given if isinstance(answer, Reason)]


async def test_a_link_that_has_not_said_who_it_is_gets_nothing(gate: Gate) -> None:
    session = await gate.new()
    desk = WorkerDesk(gate.keeper, gate.allowances)
    assert await desk.answer(_open(session.token)) is Reason.INTERNAL_FAULT
    assert not isinstance(await desk.answer(Ping()), Reason)


async def test_a_frozen_session_gets_no_lease(gate: Gate) -> None:
    session = await gate.new()
    desk = await gate.link()
    await desk.answer(_open(session.token))
    await gate.admin.answer(SessionFreeze(session.id))
    assert await desk.answer(Lease(session.id, "github")) is Reason.SESSION_FROZEN


async def test_a_credential_that_the_session_does_not_hold_is_not_lent(gate: Gate) -> None:
    session = await gate.new(credentials=())
    desk = await gate.link()
    await desk.answer(_open(session.token))
    assert await desk.answer(Lease(session.id, "github")) is Reason.CREDENTIAL_OUT_OF_SCOPE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("evil.test", Reason.NOT_IN_ALLOWLIST, id="not_allowed"),
        pytest.param("api.example.com.evil.test", Reason.NOT_IN_ALLOWLIST, id="suffix"),
        pytest.param("*.example.com", Reason.MALFORMED_HOST, id="wildcard"),
        pytest.param("API.example.com", Reason.MALFORMED_HOST, id="upper_case"),
        pytest.param("api.example.com.", Reason.MALFORMED_HOST, id="trailing_dot"),
        pytest.param("api.example.com\0.evil", Reason.MALFORMED_HOST, id="nul"),
        pytest.param("169.254.169.254", Reason.NOT_IN_ALLOWLIST, id="metadata"),
    ],
)
async def test_no_leaf_for_a_name_that_the_policy_cannot_allow(gate: Gate, name: str, reason: Reason) -> None:
    desk = await gate.link()
    session = await gate.new()
    await desk.answer(_open(session.token))
    assert await desk.answer(SignLeaf(session.id, name, made.public_key(), False)) is reason


@pytest.mark.parametrize("name", ["api.example.com", "x.odd.example.com"])
async def test_a_leaf_for_an_allowed_name_on_any_port_of_the_policy(gate: Gate, name: str) -> None:
    desk = await gate.link()
    session = await gate.new()
    await desk.answer(_open(session.token))
    chain = await desk.answer(SignLeaf(session.id, name, made.public_key(), False))
    assert isinstance(chain, tuple)
    leaf = x509.load_der_x509_certificate(chain[0])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


async def test_leaves_for_denials_are_few_over_all_links(gate: Gate) -> None:
    session = await gate.new()
    links = [await gate.link(), await gate.link()]
    for desk in links:
        await desk.answer(_open(session.token))
    answers = [
        await links[n % 2].answer(SignLeaf(session.id, f"n{n}.test", made.public_key(), True)) for n in range(30)
    ]
    assert sum(isinstance(answer, tuple) for answer in answers) == 20
    assert answers[-1] is Reason.BUDGET


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(Draw(SessionId(""), "requests", "session", -5, 10), id="negative"),
        pytest.param(Draw(SessionId(""), "gold", "session", 5, 10), id="kind"),
        pytest.param(Draw(SessionId(""), "requests", "rule:nope", 5, 10), id="rule"),
        pytest.param(Draw(SessionId(""), "requests", "policy:other", 5, 10), id="anothers_policy"),
    ],
)
async def test_a_draw_out_of_bounds_is_refused(gate: Gate, draw: Draw) -> None:
    session = await gate.new()
    desk = await gate.link()
    await desk.answer(_open(session.token))
    with pytest.raises(TidegateError):
        await desk.answer(msgspec.structs.replace(draw, session=session.id))


async def test_a_fallen_worker_cannot_raise_a_limit_and_a_new_session_does_not_refill(tmp_path: Path) -> None:
    limits = Budgets(requests_per_minute=10)
    settings = made.settings(tmp_path, policies=(made.policy(owner_budget=limits, policy_budget=limits),))
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings)
    gate = Gate(keeper, AdminDesk(keeper, reload), clock, tmp_path)
    desk = await gate.link()
    granted = {"owner": 0, "policy": 0}
    for _ in range(3):
        session = await gate.new()
        await desk.answer(_open(session.token))
        for scope in [*granted] * 9:
            amount = await desk.answer(Draw(session.id, "requests", scope, 9, 1_000_000))
            assert isinstance(amount, int)
            granted[scope] += amount
    assert granted == {"owner": 10, "policy": 10}


async def test_one_draw_takes_a_slice_of_a_budget_that_others_share(tmp_path: Path) -> None:
    """One draw is at most a slice of what others share."""
    settings = made.settings(tmp_path, policies=(made.policy(policy_budget=Budgets(upload_bytes_per_hour=3200)),))
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings)
    gate = Gate(keeper, AdminDesk(keeper, reload), clock, tmp_path)
    desk, session = await gate.link(), await gate.new()
    await desk.answer(_open(session.token))
    assert await desk.answer(Draw(session.id, "upload_bytes", "policy", 1 << 40, 1 << 40)) == 100


async def test_what_observing_lets_out_is_counted_for_the_policy_by_a_limit_of_ours(gate: Gate) -> None:
    """What observing lets out is one sum for all workers and sessions of a policy."""
    desks, granted = [await gate.link(), await gate.link()], 0
    sessions = [await gate.new() for _ in range(5)]
    for number in range(100):
        session = sessions[number % 5]
        await desks[number % 2].answer(_open(session.token))
        amount = await desks[number % 2].answer(Draw(session.id, "observed_bytes", "policy", 1 << 40, 1 << 40))
        assert isinstance(amount, int)
        granted += amount
    assert granted == 1_000_000
    with pytest.raises(TidegateError):
        await desks[0].answer(Draw(session.id, "observed_bytes", "session", 1, 10))


async def test_more_links_are_no_more_claims_by_source(gate: Gate) -> None:
    """The rate is one for all links."""
    for n in range(3):
        await gate.new(source=f"10.7.{n}.0/24")
    first, second = await gate.link(), await gate.link()
    while gate.allowances.by_source.take(gate.clock.boot()):
        pass
    assert await first.answer(OpenSession(None, "10.7.0.1", "http")) is Reason.BUDGET
    assert await second.answer(OpenSession(None, "10.7.1.1", "http")) is Reason.BUDGET


async def test_checkpoints_are_no_way_to_a_signed_lie(gate: Gate) -> None:
    mine = await gate.link()
    other = WorkerDesk(gate.keeper, gate.allowances)
    await other.answer(Hello("gate-1", "d" * 32))
    assert isinstance(await mine.answer(Checkpoint("gate-a", 7, "aa" * 32)), bytes)
    assert await other.answer(Checkpoint("gate-a", 8, "bb" * 32)) is Reason.AUDIT_UNAVAILABLE
    assert await mine.answer(Checkpoint("gate-a", 7, "bb" * 32)) is Reason.AUDIT_UNAVAILABLE
    assert gate.incidents().count("checkpoint_refused") == 2


async def test_a_flood_of_incidents_is_bounded_and_cannot_forge_a_line(gate: Gate) -> None:
    desk = await gate.link()
    for _ in range(500):
        await desk.answer(Lease(SessionId('x\n{"v":1}\x1b[2J'), "github"))
    lines = [line for line in made.journal(gate.state) if line["type"] == "incident"]
    assert 0 < len(lines) <= 50
    assert all(line["session"] is None for line in lines)  # the session has not come to this link


async def test_C_31_a_placeholder_is_of_one_session(gate: Gate) -> None:
    one, two = await gate.new(), await gate.new()
    assert one.placeholders.keys() == two.placeholders.keys()
    assert one.placeholders["GITHUB_TOKEN"] != two.placeholders["GITHUB_TOKEN"]


# --- the harness: half trusted -------------------------------------------------------------------


async def _by_harness(gate: Gate, one: HarnessOpened, ask: object) -> object:
    return await gate.admin.answer(HarnessCall(one.token, ask))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        pytest.param(SessionNew("bare"), "may not use policy", id="other_policy"),
        pytest.param(SessionNew("triage", source="10.0.9.0/24"), "cannot bind", id="network"),
        pytest.param(SessionNew("triage", ("nope",)), "no credential", id="unknown_credential"),
        pytest.param(SessionShow(SessionId("agent")), "no live session", id="show_anothers"),
        pytest.param(SessionEnv(SessionId("agent")), "no live session", id="env_of_anothers"),
        pytest.param(SessionRevoke(SessionId("agent")), "no live session", id="revoke_anothers"),
    ],
)
async def test_a_harness_cannot_go_beyond_its_own(gate: Gate, ask: object, says: str) -> None:
    one = await gate.harness("triage")
    with pytest.raises(TidegateError, match=says):
        await _by_harness(gate, one, ask)


async def test_a_harness_opens_so_many_so_long_and_as_its_owner(gate: Gate) -> None:
    one = await gate.harness("triage", most=2, ttl=100.0)
    first = await _by_harness(gate, one, SessionNew("triage", ("github",), 1e6, "somebody-else"))
    assert isinstance(first, SessionOpened)
    await _by_harness(gate, one, SessionNew("triage"))
    with pytest.raises(KeeperError, match="2 sessions already"):
        await _by_harness(gate, one, SessionNew("triage"))
    record = gate.keeper.sessions.need(first.id)
    assert record.owner == "default"
    assert record.expires_in(gate.clock) == pytest.approx(100.0)
    listed = await _by_harness(gate, one, SessionList())
    assert isinstance(listed, tuple)
    assert len(listed) == 2
    await _by_harness(gate, one, SessionRevoke(first.id))
    await _by_harness(gate, one, SessionNew("triage"))
    gate.clock.go(101)
    with pytest.raises(KeeperError, match="not valid"):
        await _by_harness(gate, one, SessionList())


async def test_a_revoked_harness_takes_its_sessions_with_it(gate: Gate) -> None:
    one = await gate.harness("triage")
    session = await _by_harness(gate, one, SessionNew("triage"))
    assert isinstance(session, SessionOpened)
    await gate.admin.answer(HarnessRevoke(one.id))
    assert gate.keeper.sessions.get(session.id) is None
    with pytest.raises(KeeperError, match="not valid"):
        await _by_harness(gate, one, SessionList())


async def test_caps_on_sessions_hold_for_policy_and_owner(tmp_path: Path) -> None:
    policy = made.policy(policy_budget=Budgets(sessions=2), owner_budget=Budgets(sessions=1))
    settings = made.settings(tmp_path, policies=(policy,))
    clock = made.TurnedClock()
    keeper, reload = await made.configured(tmp_path, clock, settings)
    gate = Gate(keeper, AdminDesk(keeper, reload), clock, tmp_path)
    await gate.new(owner="a")
    with pytest.raises(KeeperError, match="owner 'a'"):
        await gate.new(owner="a")
    await gate.new(owner="b")
    with pytest.raises(KeeperError, match="policy 'triage'"):
        await gate.new(owner="c")


async def test_what_was_given_stands_in_the_keepers_chain_and_no_secret_does(gate: Gate) -> None:
    session = await gate.new()
    desk = await gate.link()
    await desk.answer(_open(session.token))
    lease = await desk.answer(Lease(session.id, "github"))
    assert isinstance(lease, LeaseGrant)
    await gate.admin.answer(SessionRevoke(session.id))
    acts = [
        (line["type"], (line.get("session_event") or line["credential"])["act"])  # type: ignore[index]
        for line in made.journal(gate.state)
        if line["type"] in ("session", "credential") and "agent" not in str(line)
    ]
    assert acts == [("session", "open"), ("session", "join"), ("credential", "lease"), ("session", "revoke")]
    text = msgspec.json.encode(made.journal(gate.state)).decode()
    for hidden in (made.SECRET, session.token.reveal().decode(), session.placeholders["GITHUB_TOKEN"]):
        assert hidden not in text


async def test_opening_by_source_does_not_slow_with_the_number_of_sessions(gate: Gate) -> None:
    for n in range(300):
        await gate.new("bare", credentials=(), source=f"10.1.{n // 250}.{n % 250}/32")
    begun = time.process_time()
    for _ in range(300):
        gate.keeper.sessions.at(parse_source(HERE))
    assert time.process_time() - begun < 0.5
