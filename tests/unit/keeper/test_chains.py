from pathlib import Path

import pytest

from tests.unit.keeper import made
from tidegate.audit.checkpoint import open_note
from tidegate.audit.event import Head

CLAIM, OTHER = "c" * 32, "o" * 32
A, B = "aa" * 32, "bb" * 32


async def test_only_forward_steps_are_signed(tmp_path: Path) -> None:
    one, _ = await made.configured(tmp_path, made.TurnedClock())
    book, journal = one.chains, one.journal
    note = book.sign(Head("gate-1", 5, A), CLAIM, journal)
    assert note is not None
    assert open_note(note, one.keys.audit.public_key()) == Head("gate-1", 5, A)
    assert book.sign(Head("gate-1", 5, A), CLAIM, journal) is not None
    assert book.sign(Head("gate-1", 5, B), CLAIM, journal) is None
    assert book.sign(Head("gate-1", 4, B), CLAIM, journal) is None
    assert book.sign(Head("gate-1", 6, B), CLAIM, journal) is not None


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(Head("../x", 1, A), id="path"),
        pytest.param(Head("keeper-1", 1, A), id="the_keepers_own"),
        pytest.param(Head("gate-1", -1, A), id="negative"),
        pytest.param(Head("gate-1", 1, "zz" * 32), id="no_hash"),
        pytest.param(Head("gate-1\nx", 1, A), id="newline"),
    ],
)
async def test_what_is_no_head_is_not_signed(tmp_path: Path, head: Head) -> None:
    one, _ = await made.configured(tmp_path, made.TurnedClock())
    assert one.chains.sign(head, CLAIM, one.journal) is None


async def test_a_chain_is_its_claims_alone_over_a_restart_too(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    one, _ = await made.configured(tmp_path, clock)
    assert one.chains.sign(Head("gate-1", 5, A), CLAIM, one.journal) is not None
    await one.close()
    two, _ = await made.configured(tmp_path, clock)
    assert two.chains.sign(Head("gate-1", 6, B), OTHER, two.journal) is None
    assert two.chains.sign(Head("gate-1", 4, B), CLAIM, two.journal) is None
    assert two.chains.sign(Head("gate-1", 6, B), CLAIM, two.journal) is not None


async def test_birth_heads_and_death_stand_in_the_keepers_chain(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    one, _ = await made.configured(tmp_path, clock)
    one.chains.announce("gate-1", CLAIM, one.journal)
    one.chains.sign(Head("gate-1", 5, A), CLAIM, one.journal)
    one.chains.lost(CLAIM)
    clock.go(10)
    assert one.chains.announce("gate-1", CLAIM, one.journal)  # back in time
    clock.go(60)
    one.tick()
    one.chains.lost(CLAIM)
    clock.go(31)
    one.tick()
    assert one.chains.sign(Head("gate-1", 9, B), CLAIM, one.journal) is None
    own = one.journal.writer.chain
    await one.close()
    blocks = [line["writer"] for line in made.journal(tmp_path) if line["type"] == "writer"]
    steps = [(one["act"], one["seq"]) for one in blocks if one["chain"] == "gate-1"]  # type: ignore[index]
    assert steps == [("born", None), ("head", 5), ("dead", 5)]
    two, _ = await made.configured(tmp_path, clock)
    await two.close()
    assert any(
        line["type"] == "writer" and line["writer"]["act"] == "dead" and line["writer"]["chain"] == own  # type: ignore[index]
        for line in made.journal(tmp_path)
    )


async def test_the_keeper_checkpoints_its_own_chain(tmp_path: Path) -> None:
    clock = made.TurnedClock()
    one, _ = await made.configured(tmp_path, clock)
    clock.go(20)
    one.tick()
    await one.close()
    notes = [line["checkpoint"]["note"] for line in made.journal(tmp_path) if line["type"] == "checkpoint"]  # type: ignore[index]
    assert notes
    assert open_note(notes[0], one.keys.audit.public_key()).chain.startswith("keeper-")
