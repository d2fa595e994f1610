"""What was refused as things stood is tried again, and said once."""

import asyncio
from pathlib import Path

import pytest

from tidegate.config.load import Loaded, load_all
from tidegate.errors import ConfigError, KeeperError
from tidegate.runtime import configuration
from tidegate.runtime.configuration import Configuration


class Keeper:
    """A participant that refuses until `free` is set."""

    name = "keeper"

    def __init__(self) -> None:
        self.free = False
        self.tries = 0
        self.taken = asyncio.Event()

    async def prepare(self, epoch: int, settings: bytes) -> None:
        self.tries += 1
        if not self.free:
            raise KeeperError("live session x has this name or source")

    async def commit(self, epoch: int) -> None:
        self.taken.set()


async def test_a_refusal_of_the_moment_is_tried_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "_POLL_SECONDS", 0.001)
    file, keeper, told = tmp_path / "tidegate.yaml", Keeper(), list[str]()
    file.write_text("version: 1\nstate_dir: s\n")

    def load() -> Loaded:
        return load_all(file, environ={}, flags={})

    one = Configuration(
        load(), with_keeper=True, load=load, dangers=lambda _: [], refused=lambda text, _: told.append(text)
    )
    one.offer_to(keeper, lambda _: b"")
    file.write_text("version: 1\nstate_dir: s\ndeny_cidrs: [203.0.113.0/24]\n")
    with pytest.raises(ConfigError, match="live session x"):
        await one.reload("test")
    polling = asyncio.create_task(one.poll())
    try:
        async with asyncio.timeout(10):
            while keeper.tries < 3:  # the file has changed once; then each time that something may have ended
                one.try_again()
                await asyncio.sleep(0.001)
            keeper.free = True
            while not keeper.taken.is_set():
                one.try_again()
                await asyncio.sleep(0.001)
    finally:
        polling.cancel()
    assert len(told) <= 2, "at the ask and at the changed file; never at another try"
    assert one.problem == ""


async def test_a_wrong_file_is_not_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text("version: 1\nstate_dir: s\n")

    def load() -> Loaded:
        return load_all(file, environ={}, flags={})

    one = Configuration(load(), with_keeper=True, load=load, dangers=lambda _: [], refused=lambda *_: None)
    file.write_text("version: 1\nworkers: 1000000\n")
    with pytest.raises(ConfigError):
        await one.reload("test")
    one.try_again()
    assert one._again is None
