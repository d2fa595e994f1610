"""A pin is one lookup, vetted whole; literals are vetted as they stand."""

import contextlib
from ipaddress import ip_address

import pytest

from tests.lab.clock import SteppedClock
from tests.lab.dns import addresses, dns_server
from tidegate.config.model import ResolverSettings
from tidegate.policy.addresses import Site
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin, pin
from tidegate.resolve.resolver import Resolver

NAME = HostName("api.allowed.test")
SITE = Site(own_addresses=frozenset({ip_address("127.0.0.1")}), own_ports=frozenset({8080}))


@contextlib.asynccontextmanager
async def pinning(dns):
    clock = SteppedClock()
    names = Resolver(ResolverSettings(servers=(dns.address,)), clock)

    async def one(host, port=443, allowed=()):
        return await pin(host, port, allowed=allowed, site=SITE, resolver=names, clock=clock)

    try:
        yield one
    finally:
        await names.close()


async def test_pins_what_was_vetted_when_it_was_vetted():
    with dns_server({NAME: addresses("93.184.216.34", ttl=20)}) as dns:
        async with pinning(dns) as one:
            made = await one(NAME)
    assert made == Pin(NAME, 443, (ip_address("93.184.216.34"),), 1000.0, 20.0)
    assert made.is_fresh(now=1299.9, max_age=300)
    assert not made.is_fresh(now=1300, max_age=300)
    assert not made.is_fresh(now=999, max_age=300)


async def test_a_special_address_needs_the_rule_to_name_its_network():
    with dns_server({NAME: addresses("10.1.2.3")}) as dns:
        async with pinning(dns) as one:
            assert await one(NAME) is Reason.RESOLVED_BLOCKED
            assert isinstance(await one(NAME, allowed=("10.1.0.0/16",)), Pin)
            assert await one(NAME, allowed=("10.2.0.0/16",)) is Reason.RESOLVED_BLOCKED


async def test_the_gates_own_port_is_refused_though_its_address_is_allowed():
    with dns_server({NAME: addresses("127.0.0.1")}) as dns:
        async with pinning(dns) as one:
            assert await one(NAME, 8080, ("127.0.0.0/8",)) is Reason.SELF_OR_GATEWAY
            assert isinstance(await one(NAME, 8443, ("127.0.0.0/8",)), Pin)


@pytest.mark.parametrize(
    ("literal", "allowed", "reason"),
    [
        ("10.1.2.3", ("10.0.0.0/8",), None),
        ("10.1.2.3", (), Reason.RESOLVED_BLOCKED),
        ("169.254.169.254", ("169.254.0.0/16",), Reason.RESOLVED_METADATA),
    ],
    ids=["named", "not named", "metadata though named"],
)
async def test_a_literal_is_vetted_without_a_lookup(literal, allowed, reason):
    with dns_server() as dns:
        async with pinning(dns) as one:
            made = await one(ip_address(literal), allowed=allowed)
        assert dns.count() == 0
    assert made is reason if reason else made.addresses == (ip_address(literal),)
