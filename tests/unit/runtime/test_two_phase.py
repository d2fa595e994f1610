"""Reload: all or nothing, and in the right order."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tidegate.config.load import load_all
from tidegate.config.model import AuditSettings, Limits, ListenSettings, Settings
from tidegate.config.problem import ConfigErrors
from tidegate.errors import ConfigError, KeeperError
from tidegate.runtime.two_phase import check_variables, needs_restart, two_phase


class Someone:
    """A participant that keeps what it is told."""

    def __init__(self, name: str, story: list[str], *, refuses: BaseException | None = None) -> None:
        self.name = name
        self._story = story
        self._refuses = refuses

    async def prepare(self, epoch: int, settings: bytes) -> None:
        self._story.append(f"{self.name} prepares {epoch} {settings.decode()}")
        if self._refuses is not None:
            raise self._refuses

    async def commit(self, epoch: int) -> None:
        self._story.append(f"{self.name} commits {epoch}")


async def test_invariant_8_all_prepare_before_any_commits_and_the_keeper_is_first() -> None:
    story: list[str] = []
    keeper, gate = Someone("keeper", story), Someone("gate", story)
    await two_phase(7, [(keeper, b"k"), (gate, b"g")], decided=lambda: story.append("decided"))
    assert story == ["keeper prepares 7 k", "gate prepares 7 g", "decided", "keeper commits 7", "gate commits 7"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(KeeperError("no such source"), "no such source", id="refused"),
        pytest.param(TimeoutError(), "no answer in time", id="silent"),
    ],
)
@pytest.mark.parametrize("broken", ["keeper", "gate"])
async def test_invariant_8_one_that_cannot_prepare_keeps_the_old_everywhere(
    broken: str, fault: BaseException, said: str
) -> None:
    story: list[str] = []
    both = [Someone(name, story, refuses=fault if name == broken else None) for name in ("keeper", "gate")]
    with pytest.raises(ConfigError, match=f"{broken} cannot take the new configuration: {said}"):
        await two_phase(7, [(one, b"") for one in both], decided=lambda: story.append("decided"))
    assert not [step for step in story if "commits" in step or step == "decided"]


async def test_a_defect_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(ZeroDivisionError):
        await two_phase(7, [(Someone("keeper", [], refuses=ZeroDivisionError()), b"")], decided=lambda: None)


async def test_no_refusal_hides_a_defect() -> None:
    refusing, broken = (
        Someone("keeper", [], refuses=KeeperError("no")),
        Someone("gate", [], refuses=ZeroDivisionError()),
    )
    with pytest.raises(ZeroDivisionError):
        await two_phase(7, [(refusing, b""), (broken, b"")], decided=lambda: None)


async def test_every_refusal_is_told() -> None:
    both = [Someone(name, [], refuses=KeeperError(f"not {name}")) for name in ("keeper", "gate")]
    with pytest.raises(ConfigError, match=r"keeper cannot take .* not keeper; gate cannot take .* not gate"):
        await two_phase(7, [(one, b"") for one in both], decided=lambda: None)


async def test_all_prepare_side_by_side() -> None:
    meeting = asyncio.Barrier(2)

    class Meeting(Someone):
        async def prepare(self, epoch: int, settings: bytes) -> None:
            await meeting.wait()

    async with asyncio.timeout(10):
        await two_phase(7, [(Meeting("keeper", []), b""), (Meeting("gate", []), b"")], decided=lambda: None)


OLD = Settings(state_dir="/s")


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        pytest.param({"limits": Limits(headers=5)}, [], id="limits change live"),
        pytest.param({"listen": ListenSettings(http=(("127.0.0.1", 1),))}, ["listen"], id="a listener"),
        pytest.param({"state_dir": "/t", "workers": 3}, ["state_dir", "workers"], id="two at once"),
        pytest.param({"audit": AuditSettings(dir="/a")}, ["audit.dir"], id="where the log is"),
        pytest.param({"audit": AuditSettings(fsync="always")}, [], id="how the log is written"),
    ],
)
def test_what_cannot_change_live_is_named(change: dict[str, object], keys: list[str]) -> None:
    assert needs_restart(OLD, msgspec.structs.replace(OLD, **change)) == keys


def test_a_source_in_a_variable_that_the_keeper_did_not_get_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text(
        "version: 1\ncredentials:\n"
        + "".join(
            f"  {name}:\n    source: {{env: {variable}}}\n    for: [{{host: api.allowed.test}}]\n"
            "    place: {header: Authorization, format: 'Bearer {secret}'}\n"
            for name, variable in (("old", "OLD_TOKEN"), ("new", "NEW_TOKEN"))
        )
    )
    loaded = load_all(path, environ={}, flags={})
    check_variables({"OLD_TOKEN", "NEW_TOKEN"}, loaded)
    with pytest.raises(ConfigErrors) as refused:
        check_variables({"OLD_TOKEN"}, loaded)
    (problem,) = refused.value.problems
    assert (problem.file, problem.line, problem.key) == (str(path), 8, "credentials.new.source")
    assert "NEW_TOKEN needs a restart" in problem.message
