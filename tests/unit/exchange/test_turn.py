"""A turn that need not wait costs no turn of the loop; what it raises comes out."""

import asyncio

import pytest

from tidegate.exchange.turn import now_or_later


async def test_what_need_not_wait_is_done_at_once() -> None:
    done: list[int] = []

    async def turn() -> None:
        done.append(1)

    assert now_or_later(turn()) is None
    assert done == [1]


async def test_what_waits_comes_back_as_a_task() -> None:
    gate = asyncio.Event()

    async def turn() -> None:
        await gate.wait()

    waiting = now_or_later(turn())
    assert waiting is not None
    gate.set()
    await waiting


@pytest.mark.parametrize("waits", [False, True])
async def test_what_it_raises_comes_out(waits: bool) -> None:
    async def turn() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("fault")

    with pytest.raises(ValueError, match="fault"):
        await (now_or_later(turn()) or asyncio.sleep(0))
