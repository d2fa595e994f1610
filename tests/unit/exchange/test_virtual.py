"""Virtual addresses: in and out of their networks, and whose they are."""

import ipaddress

import pytest

from tests.unit.exchange.stage import FakeKeeper
from tidegate.config.model import DnsSettings
from tidegate.exchange.virtual import VirtualNames, VirtualNetworks
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.session.identity import SessionId

AGENT = SessionId("agent")
NAME = HostName("db.allowed.test")
NETWORKS = VirtualNetworks(DnsSettings(answer="virtual"))


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("number", [1, 255, 256, 4096])
def test_a_number_goes_into_an_address_and_out_of_it(version: int, number: int) -> None:
    address = NETWORKS.address(number, version)
    assert address.version == version
    assert NETWORKS.number(address) == number


@pytest.mark.parametrize("text", ["10.0.0.1", "198.20.0.1", "::ffff:198.18.0.1", "fd7a:7469:6466::1"])
def test_another_address_is_none(text: str) -> None:
    assert NETWORKS.number(ipaddress.ip_address(text)) is None


def test_without_virtual_answers_no_address_is_one() -> None:
    assert VirtualNetworks(DnsSettings()).number(ipaddress.ip_address("198.18.0.1")) is None


async def test_the_keeper_is_asked_once_for_each() -> None:
    keeper, names = FakeKeeper(), VirtualNames()
    assert [await names.number(keeper, AGENT, NAME) for _ in range(2)] == [1, 1]
    assert await names.name(keeper, AGENT, 1) == NAME
    assert [ask[0] for ask in keeper.asked] == ["number"]
    other = VirtualNames()
    assert [await other.name(keeper, AGENT, 1) for _ in range(2)] == [NAME, NAME]
    assert [ask[0] for ask in keeper.asked] == ["number", "numbered"]


async def test_a_number_that_nobody_has_may_be_had_later() -> None:
    keeper, names = FakeKeeper(), VirtualNames()
    assert await names.name(keeper, AGENT, 1) is None
    keeper.numbers = ["db.allowed.test"]
    assert await names.name(keeper, AGENT, 1) == NAME


async def test_what_the_keeper_refuses_is_told_and_not_kept() -> None:
    keeper, names = FakeKeeper(numbers=Reason.KEEPER_UNAVAILABLE), VirtualNames()
    assert await names.number(keeper, AGENT, NAME) is Reason.KEEPER_UNAVAILABLE
    assert await names.name(keeper, AGENT, 1) is Reason.KEEPER_UNAVAILABLE
    keeper.numbers = []
    assert await names.number(keeper, AGENT, NAME) == 1
