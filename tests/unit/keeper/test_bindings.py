"""Every worker hears of a network that was bound, once, and of nothing else about it."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.keeper import made
from tidegate.config.model import SessionSpec, encode_keeper
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.core import Keeper
from tidegate.keeper.protocol import Push, SessionFreeze, SessionNew, SessionOpened, SessionRevoke, SourceBound
from tidegate.keeper.reload import Reload


def _ears(keeper: Keeper) -> list[SourceBound]:
    heard: list[SourceBound] = []

    def listen(push: Push, but: object) -> None:
        del but
        if isinstance(push, SourceBound):
            heard.append(push)

    keeper.push = listen
    return heard


async def _desk(folder: Path) -> tuple[AdminDesk, Keeper]:
    keeper, reload = await made.configured(folder, made.TurnedClock())
    return AdminDesk(keeper, reload), keeper


@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param("10.0.0.5/32", [SourceBound("10.0.0.5/32")], id="bound"),
        pytest.param(None, [], id="by-token-alone"),
    ],
)
async def test_a_new_session_with_a_network_is_told(
    tmp_path: Path, source: str | None, told: list[SourceBound]
) -> None:
    desk, keeper = await _desk(tmp_path)
    heard = _ears(keeper)
    opened = await desk.answer(SessionNew("bare", source=source))
    assert heard == told
    assert isinstance(opened, SessionOpened)
    await desk.answer(SessionFreeze(opened.id))
    await desk.answer(SessionRevoke(opened.id))
    assert heard == told
    await keeper.close()


async def test_a_reload_tells_what_was_bound_anew_and_no_more(tmp_path: Path) -> None:
    def networks(**sessions: str) -> bytes:
        specs = {name: SessionSpec("bare", (), network) for name, network in sessions.items()}
        return encode_keeper(made.settings(tmp_path, sessions=specs))

    keeper, reload = await made.configured(tmp_path, made.TurnedClock())
    heard = _ears(keeper)

    async def switch(epoch: int, reload: Reload, settings: bytes) -> list[str]:
        heard.clear()
        await reload.configure(epoch, settings, ())
        reload.commit(epoch)
        return [push.network for push in heard]

    assert await switch(2, reload, networks(a="10.0.1.0/24", b="10.0.2.0/24")) == ["10.0.1.0/24", "10.0.2.0/24"]
    assert await switch(3, reload, networks(a="10.0.1.0/24", b="10.0.2.0/24")) == []
    assert await switch(4, reload, networks(a="10.0.1.0/24", b="10.0.1.7/32")) == ["10.0.1.7/32"]
    assert await switch(5, reload, networks(a="10.0.1.7/32", b="10.0.1.0/24")) == ["10.0.1.7/32", "10.0.1.0/24"]
    assert not keeper.problems()
    await keeper.close()


def test_a_worker_cannot_learn_from_it_whose_the_network_is() -> None:
    assert [field.name for field in msgspec.structs.fields(SourceBound)] == ["network"]
