"""Reports to the keeper: each once, in order, also through a keeper that is away."""

import asyncio

import pytest

from tidegate.errors import KeeperError
from tidegate.keeper.protocol import FaultReport
from tidegate.runtime.reports import Report, Reports


class Keeper:
    """Takes reports, or not."""

    def __init__(self) -> None:
        self.away = False
        self.told: list[str] = []
        self.has_three = asyncio.Event()

    async def tell(self, report: Report) -> None:
        if self.away:
            raise KeeperError("the keeper is gone")
        assert isinstance(report, FaultReport)
        self.told.append(f"{report.name} {report.detail}")
        if len(self.told) == 3:
            self.has_three.set()


async def test_what_a_keeper_could_not_take_it_gets_when_it_is_back_in_order() -> None:
    keeper = Keeper()
    reports = Reports(keeper.tell)
    keeper.away = True
    for number in range(3):
        reports.put(FaultReport("x", str(number)))
    with pytest.raises(KeeperError):
        await reports.deliver()
    keeper.away = False
    async with asyncio.timeout(10):
        task = asyncio.ensure_future(reports.deliver_forever())
        await keeper.has_three.wait()
        task.cancel()
    assert keeper.told == ["x 0", "x 1", "x 2"]
    await reports.deliver()
    assert len(keeper.told) == 3


async def test_what_did_not_fit_is_counted() -> None:
    keeper = Keeper()
    reports = Reports(keeper.tell)
    for number in range(300):
        reports.put(FaultReport("x", str(number)))
    await reports.deliver()
    assert keeper.told[:2] == ["reports_lost 44 reports before the next one were lost", "x 44"]
    assert keeper.told[-1] == "x 299"
    assert len(keeper.told) == 257
