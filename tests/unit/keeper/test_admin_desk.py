"""What the supervisor has put on record."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.keeper import made
from tidegate.errors import AuditError
from tidegate.keeper.admin_desk import AdminDesk
from tidegate.keeper.protocol import Checkpoint, ConfigRefused, FaultReport, Hello
from tidegate.keeper.reload import Reload
from tidegate.keeper.worker_desk import Allowances, WorkerDesk
from tidegate.policy.reasons import Reason

CLAIM = "c" * 32


def lines(state: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in made.journal(state) if line["type"] == kind]


def dead(state: Path) -> list[tuple[str, int]]:
    blocks = [line["writer"] for line in lines(state, "writer")]
    return [(block["chain"], block["seq"]) for block in blocks if block["act"] == "dead"]


async def test_a_fault_the_supervisor_saw_is_on_record(tmp_path: Path) -> None:
    one, reload = await made.configured(tmp_path, made.TurnedClock())
    await AdminDesk(one, reload).answer(FaultReport("worker_ended", "worker 0 was killed\nby SIGKILL"))
    (line,) = lines(tmp_path, "fault")
    assert (line["verdict"], line["reason"], line["phase"]) == ("error", "internal_fault", "event")
    assert line["fault"] == {
        "name": "worker_ended", "where": "supervisor", "detail": "worker 0 was killed\\x0aby SIGKILL"
    }  # fmt: skip


async def test_invariant_8_a_refused_configuration_is_on_record_with_its_problems(tmp_path: Path) -> None:
    one, reload = await made.configured(tmp_path, made.TurnedClock())
    problems = tuple(f"tidegate.yaml:{number}: no" for number in range(60))
    await AdminDesk(one, reload).answer(ConfigRefused("/etc/tidegate.yaml", problems))
    line = next(line for line in lines(tmp_path, "config") if line["config"]["act"] == "refuse")
    assert (line["verdict"], line["config"]["file"]) == ("error", "/etc/tidegate.yaml")
    assert line["config"]["problems"] == [*problems[:50], "and 10 more"]


async def test_before_the_first_settings_there_is_no_chain_to_put_it_on(tmp_path: Path) -> None:
    one = made.keeper(tmp_path, made.TurnedClock())
    with pytest.raises(AuditError):
        await AdminDesk(one, Reload(one)).answer(FaultReport("keeper_ended", "x"))


@pytest.mark.parametrize("first", ["the link ends", "the supervisor tells"])
async def test_a_worker_known_to_be_gone_is_booked_dead_after_its_last_words(tmp_path: Path, first: str) -> None:
    clock = made.TurnedClock()
    one, reload = await made.configured(tmp_path, clock)
    desk, other = (WorkerDesk(one, Allowances(0.0), pid=pid) for pid in (4711, 4712))
    for number, worker in enumerate((desk, other)):
        await worker.answer(Hello(f"gate-{number}", f"{number}" * 32))
        await worker.answer(Checkpoint(f"gate-{number}", 5, "aa" * 32))
    told = FaultReport("worker_ended", "worker 0 ended", (4711,))
    if first == "the link ends":
        desk.lost()
        await AdminDesk(one, reload).answer(told)
    else:
        await AdminDesk(one, reload).answer(told)
        desk.lost()
    one.tick()
    assert dead(tmp_path) == []
    assert isinstance(await desk.answer(Checkpoint("gate-0", 6, "bb" * 32)), bytes)
    clock.go(1.5)
    one.tick()
    assert dead(tmp_path) == [("gate-0", 6)]


async def test_the_last_checkpoint_of_a_chain_is_its_death(tmp_path: Path) -> None:
    one, _ = await made.configured(tmp_path, made.TurnedClock())
    desk = WorkerDesk(one, Allowances(0.0))
    await desk.answer(Hello("gate-0", CLAIM))
    assert isinstance(await desk.answer(Checkpoint("gate-0", 5, "aa" * 32, last=True)), bytes)
    assert dead(tmp_path) == [("gate-0", 5)]
    assert await desk.answer(Checkpoint("gate-0", 6, "bb" * 32)) is Reason.AUDIT_UNAVAILABLE
