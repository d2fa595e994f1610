"""Sessions of launchers: whatever goes wrong on the way, the keeper is asked to revoke until it has."""

import asyncio
import socket
from pathlib import Path

import pytest

from tidegate.config.model import Settings
from tidegate.errors import KeeperError, LaunchError
from tidegate.keeper.calls import scope_of
from tidegate.keeper.protocol import (
    AdminAsk,
    LaunchReport,
    SessionList,
    SessionNew,
    SessionOpened,
    SessionRevoke,
    SessionView,
)
from tidegate.policy.rules import PolicySpec
from tidegate.runtime.door import close_all, receive_door
from tidegate.runtime.door_post import DoorPost
from tidegate.runtime.launches import LaunchDesk
from tidegate.secret import Secret
from tidegate.session.call import ToolCall
from tidegate.session.door import DoorSpec, LaunchNote, Opening
from tidegate.session.identity import SessionId


class Book:
    """A keeper as far as its sessions go; `fails` asks more go unanswered."""

    def __init__(self) -> None:
        self.sessions: dict[SessionId, str] = {}
        self.asked: list[SessionNew] = []
        self.reports: list[LaunchReport] = []
        self.fails = 0
        self.silent = False

    async def __call__[T](self, ask: AdminAsk, kind: type[T], /) -> T:
        answer = self._answer(ask)
        assert isinstance(answer, kind if isinstance(kind, type) else tuple)
        return answer

    def _answer(self, ask: AdminAsk) -> object:
        if isinstance(ask, LaunchReport):
            self.reports.append(ask)
            return None
        if isinstance(ask, SessionNew) and ask.id is not None:
            self.asked.append(ask)
            self.sessions[ask.id] = "launch" if ask.launch else "admin"
            if self.silent:
                raise KeeperError("no answer came")
            return SessionOpened(ask.id, Secret("token"), None, {}, "team", scope_of(ask.call))
        if self.fails:
            self.fails -= 1
            raise KeeperError("the keeper is gone")
        if isinstance(ask, SessionRevoke):
            if self.sessions.pop(ask.id, None) is None:
                raise KeeperError("there is no live session")
            return ""
        assert isinstance(ask, SessionList)
        views = (SessionView(sid, "o", "p", (), None, None, False, origin) for sid, origin in self.sessions.items())
        return tuple(views)


def desk(book: Book, folder: Path) -> LaunchDesk:
    settings = Settings(state_dir=str(folder), policies={"p": PolicySpec("p")})
    return LaunchDesk(book, lambda: settings, DoorPost())


async def until_empty(book: Book) -> None:
    async with asyncio.timeout(10):
        while book.sessions:  # noqa: ASYNC110 - revoked by a task of the desk's own
            await asyncio.sleep(0.01)


async def test_a_lease_that_ends_while_the_keeper_is_away_is_revoked_when_it_is_back(tmp_path: Path) -> None:
    book = Book()
    one = desk(book, tmp_path)
    opened = await one.open(Opening(policy="p"), [])
    assert book.sessions == {opened.id: "launch"}
    book.fails = 3
    one.end(opened.id)
    await until_empty(book)
    await one.close()


async def test_a_session_whose_opening_was_not_answered_is_revoked(tmp_path: Path) -> None:
    book = Book()
    book.silent = True
    one = desk(book, tmp_path)
    with pytest.raises(KeeperError):
        await one.open(Opening(policy="p"), [])
    await until_empty(book)
    await one.close()


async def test_what_an_earlier_gate_left_is_revoked_and_nothing_else(tmp_path: Path) -> None:
    book = Book()
    book.sessions = {SessionId("old"): "launch", SessionId("file"): "file", SessionId("mine"): "admin"}
    await desk(book, tmp_path).begin()
    assert list(book.sessions.values()) == ["file", "admin"]


async def test_a_gate_that_stops_opens_nothing_and_ends_what_there_is(tmp_path: Path) -> None:
    book = Book()
    one = desk(book, tmp_path)
    await one.open(Opening(policy="p"), [])
    one.stop()
    with pytest.raises(LaunchError, match="stopping"):
        await one.open(Opening(policy="p"), [])
    await one.close()
    assert not book.sessions


async def test_a_socket_that_is_no_door_asks_nothing_of_the_keeper(tmp_path: Path) -> None:
    book = Book()
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(LaunchError, match="own network"):
        await desk(book, tmp_path).open(Opening(policy="p", doors=(DoorSpec("http"),)), [sock])
    assert not book.sessions


async def test_workers_are_told_of_a_session_with_doors_and_of_no_other(tmp_path: Path) -> None:
    post = DoorPost()
    wire, theirs = post.join()
    settings = Settings(state_dir=str(tmp_path), policies={"p": PolicySpec("p")})
    one = LaunchDesk(Book(), lambda: settings, post)
    (tmp_path / "doors").mkdir()
    with theirs, socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "doors" / "http.sock"))
        door.listen()
        await one.open(Opening(policy="p"), [])
        with pytest.raises(BlockingIOError):
            receive_door(theirs)
        opened = await one.open(Opening(policy="p", doors=(DoorSpec("http", port=8080),)), [door.dup()])
        found = receive_door(theirs)
        assert found is not None
        assert found[0].id == opened.id
        close_all(found[1])
    await one.close()
    post.leave(wire)


async def test_a_launch_is_on_record_by_what_the_keeper_made_of_the_session_and_not_by_what_was_asked(
    tmp_path: Path,
) -> None:
    book = Book()
    one = desk(book, tmp_path)
    call = ToolCall.of("web\n", "c1", parent=SessionId("parent"))
    opened = await one.open(Opening(policy="p", owner="somebody-else", call=call), [])
    assert [ask.call for ask in book.asked] == [call]
    note = LaunchNote(id="box", act="start")
    await one.note(opened.id, note)
    assert book.reports == [LaunchReport(opened.id, "team", note, scope_of(call))]
    await one.close()
