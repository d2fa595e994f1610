"""The book of sessions: what is beneath a session is what still stands there."""

from pathlib import Path

from tests.unit.keeper import made
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.protocol import SessionNew, SessionOpened, SessionRevoke
from tidegate.session.call import ToolCall
from tidegate.session.identity import SessionId


async def opened(admin: AdminDesk, parent: SessionId | None = None) -> SessionId:
    call = None if parent is None else ToolCall.of("web", "c1", parent=parent)
    found = await admin.answer(SessionNew("bare", call=call))
    assert isinstance(found, SessionOpened)
    return found.id


async def test_a_session_whose_calls_have_ended_before_it_ends_with_those_that_have_not(tmp_path: Path) -> None:
    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    admin = AdminDesk(keeper, reload)
    parent, other = await opened(admin), await opened(admin)
    first, second = await opened(admin, parent), await opened(admin, parent)
    await admin.answer(SessionRevoke(first))
    assert [one.id for one in keeper.sessions.beneath(parent)] == [second]
    await admin.answer(SessionRevoke(parent))
    assert [one.id for one in keeper.sessions.all()] == [other]
    await keeper.close()
