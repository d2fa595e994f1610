"""Many connections that show no session."""

from pathlib import Path

import pytest

from tests.unit.exchange.stage import Stage, stage
from tidegate.exchange.channel import Channel
from tidegate.policy.reasons import Reason
from tidegate.runtime.descriptors import Descriptors
from tidegate.runtime.strangers import Strangers


class Crowd:
    """Channels that come, and the names of those that were ended."""

    def __init__(self, made: Stage, *, most: int, in_all: int) -> None:
        self.ended: list[str] = []
        self.strangers = Strangers()
        self._made, self._most, self._in_all = made, most, in_all

    def come(self, name: str, address: str = "10.0.0.2") -> Channel:
        channel = self._made.channel((address, 40000))
        channel.end = lambda reason: self.ended.append(name) if reason is Reason.BUDGET else None
        self.strangers.come(channel, most=self._most, in_all=self._in_all)
        return channel


def test_above_the_cap_of_an_address_its_oldest_goes(tmp_path: Path) -> None:
    crowd = Crowd(stage(tmp_path), most=3, in_all=100)
    crowd.come("other", "10.0.0.9")
    for number in range(5):
        crowd.come(f"silent-{number}")
    assert crowd.ended == ["silent-0", "silent-1"]
    assert len(crowd.strangers) == 4


def test_above_the_cap_of_all_the_oldest_goes_whatever_its_address(tmp_path: Path) -> None:
    crowd = Crowd(stage(tmp_path), most=3, in_all=10)
    for number in range(12):
        crowd.come(f"silent-{number}", f"10.0.1.{number}")
    assert crowd.ended == ["silent-0", "silent-1"]


def test_one_that_has_shown_its_session_is_no_stranger_any_more(tmp_path: Path) -> None:
    crowd = Crowd(stage(tmp_path), most=2, in_all=100)
    good = crowd.come("good")
    good.joined()
    for number in range(3):
        crowd.come(f"silent-{number}")
    assert crowd.ended == ["silent-0"]


@pytest.mark.parametrize(("lowest", "short"), [(3, False), (1000, False), (1100, True), (None, True)])
def test_descriptors_that_run_out_are_told_before_they_have(
    monkeypatch: pytest.MonkeyPatch, lowest: int | None, short: bool
) -> None:
    def dup(_: int) -> int:
        if lowest is None:
            raise OSError(24, "Too many open files")
        return lowest

    monkeypatch.setattr("tidegate.runtime.descriptors.resource.getrlimit", lambda _: (1200, 1200))
    monkeypatch.setattr("tidegate.runtime.descriptors.os.dup", dup)
    monkeypatch.setattr("tidegate.runtime.descriptors.os.close", lambda _: None)
    found = Descriptors()
    assert found.reserve == 150
    assert found.short() is short
    assert (found.problem() is not None) is short
