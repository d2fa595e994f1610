"""Tasks that someone owns: none fails unseen, and none says what it was handling."""

import asyncio
import logging

import pytest

from tidegate.keeper.tasks import OwnedTasks


async def fail() -> None:
    raise ValueError("sk-a-secret")


async def test_a_failure_goes_to_the_log_with_its_place_and_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    tasks = OwnedTasks()
    with caplog.at_level(logging.ERROR):
        await asyncio.wait([tasks.spawn(fail(), name="doomed")])
        await asyncio.sleep(0)
    assert "the task doomed failed: ValueError at test_tasks.py:" in caplog.text
    assert "sk-a-secret" not in caplog.text


async def test_a_failure_goes_to_its_owner_where_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[BaseException] = []
    tasks = OwnedTasks(faults.append)
    await asyncio.wait([tasks.spawn(fail(), name="doomed")])
    await asyncio.sleep(0)
    assert [type(fault) for fault in faults] == [ValueError]
    assert not caplog.text


async def test_what_is_cancelled_at_the_end_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    tasks = OwnedTasks()
    tasks.spawn(asyncio.sleep(3600), name="long")
    await tasks.close()
    assert not caplog.text
