"""What a keeper has in force, as its gate reads it: never another one's, whatever fails and wherever it stops."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.runtime import in_force
from tidegate.runtime.in_force import InForce
from tidegate.runtime.two_phase import NotPrepared

OLD, NEW = "a" * 64, "b" * 64


def said(state: Path, digest: str = OLD) -> InForce:
    one = InForce(state)
    one.say(digest)
    return one


def cannot_be_made(state: Path) -> None:
    (state / "settings.new").mkdir()


def cannot_be_taken_away(state: Path) -> None:
    word = state / "settings.hash"
    word.unlink()
    (word / "held").mkdir(parents=True)


@pytest.mark.parametrize(
    ("failing", "kept"),
    [
        pytest.param(cannot_be_made, OLD, id="cannot be made"),
        pytest.param(cannot_be_taken_away, "", id="cannot be taken away"),
    ],
)
def test_what_could_not_be_said_afterwards_is_not_begun(
    tmp_path: Path, failing: Callable[[Path], None], kept: str
) -> None:
    one = said(tmp_path)
    failing(tmp_path)
    with pytest.raises(NotPrepared, match="settings"):
        one.begin(NEW)
    assert one.read() == kept, "the old word, or none: never one that is not so"


def test_nothing_is_said_from_the_begin_of_a_change_to_its_end(tmp_path: Path) -> None:
    one = said(tmp_path)
    one.begin(NEW)
    assert InForce(tmp_path).read() == "", "also after a crash"
    beside = tmp_path / "settings.new"
    assert beside.read_text() == f"{NEW}\n", "it needs no space any more"
    one.say(NEW)
    assert one.read() == NEW
    assert not beside.exists()


def test_a_keeper_that_starts_takes_the_last_ones_word_back(tmp_path: Path) -> None:
    said(tmp_path).withdraw()
    assert InForce(tmp_path).read() == ""
    InForce(tmp_path).withdraw()


def test_a_word_that_was_begun_for_other_settings_is_not_said(tmp_path: Path) -> None:
    one = said(tmp_path)
    one.begin(NEW)
    one.say(OLD)
    assert one.read() == OLD


def test_a_word_that_cannot_be_said_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings\.hash"):
        InForce(tmp_path / "nowhere").say(NEW)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        pytest.param(NEW, "", id="the same"),
        pytest.param(OLD, "the keeper has not taken this configuration", id="another"),
        pytest.param(None, "the keeper does not say which configuration it has in force", id="none"),
    ],
)
async def test_a_gate_hears_what_is_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str | None, text: str
) -> None:
    monkeypatch.setattr(in_force, "_AGREE_SECONDS", 0.0)
    one = InForce(tmp_path) if word is None else said(tmp_path, word)
    assert one.against(NEW) == text
    if text:
        with pytest.raises(NotPrepared, match=text):
            await one.agrees(NEW)
    else:
        await one.agrees(NEW)
