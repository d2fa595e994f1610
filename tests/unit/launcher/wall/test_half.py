"""What one half is told: whatever it answers, the next report comes, and nothing is told twice."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.errors import TidegateError
from tidegate_launcher.wall.half import Absent, Half, by_rule
from tidegate_launcher.wall.nflog import Dropped

DROP = Dropped("tg0", "everything else", "10.77.0.2", "udp", "192.0.2.7", 443)


class Gate:
    def __init__(self) -> None:
        self.heard: list[Mapping[str, Any]] = []
        self.fault: BaseException | None = None

    def send(self, report: Mapping[str, Any]) -> None:
        if self.fault is not None:
            raise self.fault
        self.heard.append(report)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(TidegateError("the gate did not answer"), id="a fault"),
        pytest.param(Absent("no gate is running there"), id="nobody there"),
        pytest.param(OverflowError("cannot fit"), id="a defect"),
        pytest.param(MemoryError(), id="no memory"),
    ],
)
def test_what_one_answers_ends_no_watch_and_loses_no_drop(fault: BaseException) -> None:
    gate = Gate()
    half = Half(gate.send)
    half.saw(DROP)
    gate.fault = fault
    half.report({"places": []}, ending=False)
    assert isinstance(half.fault, TidegateError)
    gate.fault = None
    half.report({"places": ["now"]}, ending=False)
    assert half.fault is None
    [report] = gate.heard
    assert (report["number"], report["places"]) == (1, ["now"]), "the same report, of how it stands now"
    assert [drop["times"] for drop in report["drops"]] == [1]


def test_the_last_report_is_the_one_after_which_nothing_waits() -> None:
    gate = Gate()
    half = Half(gate.send)
    for port in range(150):
        half.saw(DROP._replace(device=f"tg{port % 3}", port=port))
    for _ in range(2):
        half.report({}, ending=True)
    assert [report["ending"] for report in gate.heard] == [False, True]
    assert half.ended


def test_many_different_packets_of_a_place_are_one_by_their_rule() -> None:
    gate = Gate()
    half = Half(gate.send)
    for port in range(1000):
        half.saw(DROP._replace(port=port))
    half.report({}, ending=False)
    drops = gate.heard[0]["drops"]
    assert len(drops) == 65
    assert sum(drop["times"] for drop in drops) == 1000
    assert drops[-1]["client"] is by_rule("tg0", "everything else").client
