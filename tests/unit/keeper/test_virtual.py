"""Numbers of names: one a session and name for good, also over a restart, and bounded."""

from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.keeper.protocol import Hello, Number, Numbered, OpenSession
from tidegate.keeper.seal import Seal
from tidegate.keeper.store import SqliteStore
from tidegate.keeper.virtual import MOST_NAMES, VirtualBook
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

ONE, TWO = SessionId("one"), SessionId("two")


def _store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "store.db", Seal(b"k" * 32))


def test_a_name_has_one_number_and_a_number_one_name(tmp_path: Path) -> None:
    book = VirtualBook(_store(tmp_path))
    first, second = book.number(ONE, "a.test"), book.number(ONE, "b.test")
    assert (first, second) == (1, 2)
    assert book.number(ONE, "a.test") == first
    assert book.name(ONE, 2) == "b.test"
    assert book.number(TWO, "b.test") == 1, "a session's own"
    assert [book.name(ONE, number) for number in (0, 3, -1)] == [None] * 3
    assert book.name(SessionId("three"), 1) is None


def test_numbers_outlive_the_keeper(tmp_path: Path) -> None:
    store = _store(tmp_path)
    book = VirtualBook(store)
    names = [f"n{index}.test" for index in range(200)]
    before = {name: book.number(ONE, name) for name in names}
    book.number(TWO, "other.test")
    again = VirtualBook(store)
    assert {name: again.number(ONE, name) for name in reversed(names)} == before
    assert again.number(ONE, "new.test") == 201
    assert again.name(TWO, 1) == "other.test"


def test_an_ended_sessions_names_are_gone(tmp_path: Path) -> None:
    store = _store(tmp_path)
    book = VirtualBook(store)
    for index in range(130):
        book.number(ONE, f"n{index}.test")
    book.number(TWO, "kept.test")
    book.drop(ONE)
    assert [key for key, _ in store.items("virtual")] == ["two#0"]
    assert VirtualBook(store).name(ONE, 1) is None
    assert book.number(ONE, "fresh.test") == 1


def test_a_session_has_so_many_and_no_more(tmp_path: Path) -> None:
    book = VirtualBook(_store(tmp_path))
    for index in range(MOST_NAMES):
        assert book.number(ONE, f"n{index}.test") == index + 1
    assert book.number(ONE, "one-more.test") is None
    assert book.number(ONE, "n0.test") == 1
    assert book.number(TWO, "one-more.test") == 1, "the others have theirs"


async def test_a_worker_asks_for_its_own_sessions_and_for_names_alone(tmp_path: Path) -> None:
    from tidegate.config.model import SessionSpec

    sessions = {"agent": SessionSpec("triage", (), "10.0.0.9/32")}
    keeper, _ = await made.configured(tmp_path, made.TurnedClock(), made.settings(tmp_path, sessions=sessions))
    desk = WorkerDesk(keeper, Allowances(keeper.clock.boot()))
    await desk.answer(Hello("gate-0", "c" * 32))
    agent = SessionId("agent")
    assert await desk.answer(Number(agent, "a.test")) is Reason.SESSION_INVALID
    assert await desk.answer(Numbered(agent, 1)) is Reason.SESSION_INVALID
    await desk.answer(OpenSession(None, "10.0.0.9", "x"))
    assert await desk.answer(Number(agent, "a.test")) == 1
    assert await desk.answer(Numbered(agent, 1)) == "a.test"
    assert await desk.answer(Numbered(agent, 2)) == ""
    for odd in ("A.test", "a..test", "", "10.0.0.1", "x" * 300):
        assert await desk.answer(Number(agent, odd)) is Reason.MALFORMED_HOST


@pytest.mark.parametrize("why", ["revoked", "expired"])
async def test_the_end_of_a_session_forgets_its_names(tmp_path: Path, why: str) -> None:
    from tidegate.config.model import SessionSpec

    sessions = {"agent": SessionSpec("triage", (), "10.0.0.9/32")}
    keeper, _ = await made.configured(tmp_path, made.TurnedClock(), made.settings(tmp_path, sessions=sessions))
    record = keeper.sessions.get(SessionId("agent"))
    assert record is not None
    keeper.virtual.number(record.id, "a.test")
    keeper.end_session(record, why)
    assert keeper.virtual.name(record.id, 1) is None
