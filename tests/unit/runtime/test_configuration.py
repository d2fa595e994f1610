"""What was refused as things stood, or could not be told to the gate, is tried again, and said once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.config.load import Loaded, load_all
from tidegate.errors import ConfigError, KeeperError
from tidegate.runtime import configuration
from tidegate.runtime.configuration import Configuration
from tidegate.runtime.in_force import InForce


class Keeper:
    """A participant that refuses until `free` is set."""

    name = "keeper"

    def __init__(self) -> None:
        self.free = False
        self.tries = 0
        self.taken = asyncio.Event()
        self.at_commit: Callable[[], object] = lambda: None

    async def prepare(self, epoch: int, settings: bytes) -> None:
        self.tries += 1
        if not self.free:
            raise KeeperError("live session x has this name or source")

    async def commit(self, epoch: int) -> None:
        self.at_commit()
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


class Word(InForce):
    """The word, and how often it could not be said."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.failures, self.tried_often, self.said = 0, asyncio.Event(), asyncio.Event()

    def say(self, digest: str) -> None:
        try:
            super().say(digest)
        except ConfigError:
            self.failures += 1
            if self.failures == 3:
                self.tried_often.set()
            raise
        self.said.set()


class Half:
    """A keeper on its own, with what it has said of a failure to tell its gate; its file can be changed."""

    def __init__(self, folder: Path) -> None:
        self.file, self.word, self.keeper = folder / "tidegate.yaml", Word(folder), Keeper()
        self.keeper.free = True
        self.untold, self.refused = list[str](), list[str]()
        self.file.write_text("version: 1\nstate_dir: s\n")
        self.configuration = Configuration(
            self.load(),
            with_keeper=True,
            load=self.load,
            dangers=lambda _: [],
            refused=lambda text, _: self.refused.append(text),
            in_force=self.word,
            untold=self.untold.append,
        )
        self.configuration.offer_to(self.keeper, lambda _: b"")
        self.word.say(self.hash)

    @property
    def hash(self) -> str:
        return self.configuration.settings.keeper_hash()

    def load(self) -> Loaded:
        return load_all(self.file, environ={}, flags={})

    async def change(self) -> None:
        self.file.write_text("version: 1\nstate_dir: s\ndeny_cidrs: [203.0.113.0/24]\n")
        await self.configuration.reload("test")


async def test_invariant_8_no_word_of_the_old_settings_is_left_when_the_new_are_taken(tmp_path: Path) -> None:
    half, words = Half(tmp_path), list[str]()
    before = half.hash
    half.keeper.at_commit = lambda: words.append(half.word.read())
    await half.change()
    assert words == [""]
    assert half.word.read() == half.hash != before
    assert (half.untold, half.configuration.problem) == ([], "")


async def test_invariant_8_what_could_not_be_told_to_the_gate_is_not_taken(tmp_path: Path) -> None:
    half = Half(tmp_path)
    before = half.hash
    (tmp_path / "settings.new").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        await half.change()
    assert not half.keeper.taken.is_set()
    assert half.word.read() == half.hash == before
    assert "Is a directory" in half.configuration.problem
    assert len(half.refused) == 1
    (tmp_path / "settings.new").rmdir()
    half.configuration.try_again()
    await half.configuration.reload("test")
    assert half.word.read() == half.hash != before


async def test_what_fails_to_be_told_after_it_was_taken_is_said_and_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "_POLL_SECONDS", 0.001)
    half, held = Half(tmp_path), tmp_path / "settings.hash" / "held"
    before = half.hash
    half.keeper.at_commit = lambda: held.mkdir(parents=True)
    await half.change()
    assert half.hash != before, "it is taken"
    assert half.word.read() == "", "and no gate goes on by the old one"
    assert "the gate cannot be told" in half.configuration.problem
    assert half.refused == []
    half.word.said.clear()  # at the start
    polling = asyncio.create_task(half.configuration.poll())
    try:
        async with asyncio.timeout(10):
            await half.word.tried_often.wait()
            held.rmdir()
            held.parent.rmdir()
            await half.word.said.wait()
    finally:
        polling.cancel()
    assert half.word.read() == half.hash
    assert half.configuration.problem == ""
    assert len(half.untold) == 1, "said once, however often it is tried"
