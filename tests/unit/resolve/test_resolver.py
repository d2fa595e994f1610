"""The resolver against a real server: what it asks, what it keeps, what it shares."""

import asyncio
import contextlib

import pytest

from tests.lab.clock import SteppedClock
from tests.lab.dns import addresses, cname, delayed, dns_server, empty, only, rcode, sequence, silent
from tidegate.config.model import ResolverSettings
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.resolve.resolver import Answer, Resolver

NAME = HostName("api.allowed.test")


@contextlib.asynccontextmanager
async def resolver(*servers, clock=None, **settings):
    made = Resolver(ResolverSettings(servers=tuple(s.address for s in servers), **settings), clock or SteppedClock())
    try:
        yield made
    finally:
        await made.close()


def texts(answer):
    assert isinstance(answer, Answer), answer
    # Servers shuffle; the order is theirs within a family.
    return sorted(str(address) for address in answer.addresses)


async def test_returns_both_families():
    with dns_server({NAME: addresses("127.0.0.1", "::1", "127.0.0.2")}) as dns:
        async with resolver(dns) as names:
            answer = await names.lookup(NAME)
        assert texts(answer) == ["127.0.0.1", "127.0.0.2", "::1"]
        assert [address.version for address in answer.addresses] == [6, 4, 4]
        assert dns.count() == 2


async def test_keeps_an_answer_for_its_ttl_and_says_what_is_left():
    clock = SteppedClock()
    with dns_server({NAME: sequence(addresses("10.0.0.1", ttl=30), addresses("10.0.0.2", ttl=30))}) as dns:
        async with resolver(dns, clock=clock) as names:
            assert texts(await names.lookup(NAME)) == ["10.0.0.1"]
            clock.forward(20)
            again = await names.lookup(NAME)
            assert (texts(again), again.ttl) == (["10.0.0.1"], 10.0)
            assert dns.count() == 2
            clock.forward(10)
            assert texts(await names.lookup(NAME)) == ["10.0.0.2"]


async def test_max_ttl_bounds_what_is_kept():
    clock = SteppedClock()
    with dns_server({NAME: addresses("10.0.0.1", ttl=86400)}) as dns:
        async with resolver(dns, clock=clock, max_ttl_seconds=60) as names:
            await names.lookup(NAME)
            clock.forward(60)
            await names.lookup(NAME)
        assert dns.count(rrtype="A") == 2


async def test_lookups_of_one_name_share_one_flight():
    with dns_server({NAME: delayed(0.05, addresses("10.0.0.1", ttl=0))}) as dns:
        async with resolver(dns) as names:
            answers = await asyncio.gather(*(names.lookup(NAME) for _ in range(20)))
        assert {tuple(texts(answer)) for answer in answers} == {("10.0.0.1",)}
        assert dns.count() == 2


async def test_one_caller_that_leaves_does_not_end_the_lookup_of_another():
    with dns_server({NAME: delayed(0.1, addresses("10.0.0.1"))}) as dns:
        async with resolver(dns) as names, asyncio.TaskGroup() as group:
            first = group.create_task(names.lookup(NAME))
            second = group.create_task(names.lookup(NAME))
            await asyncio.sleep(0)
            first.cancel()
            assert texts(await second) == ["10.0.0.1"]


async def test_close_ends_lookups_on_the_wire():
    with dns_server({NAME: silent}) as dns:
        names = Resolver(ResolverSettings(servers=(dns.address,)), SteppedClock())
        waiting = asyncio.gather(names.lookup(NAME), return_exceptions=True)
        await asyncio.sleep(0)
        await names.close()
        assert isinstance((await waiting)[0], asyncio.CancelledError)


async def test_the_next_server_answers_when_the_first_fails():
    with dns_server({NAME: rcode("SERVFAIL")}) as bad, dns_server({NAME: addresses("10.0.0.1")}) as good:
        async with resolver(bad, good) as names:
            assert texts(await names.lookup(NAME)) == ["10.0.0.1"]
        assert bad.count() == 2


async def test_a_server_that_is_not_there_is_known_at_once():
    with dns_server() as dns:
        address = dns.address
    async with asyncio.timeout(1):
        names = Resolver(ResolverSettings(servers=(address,)), SteppedClock())
        assert await names.lookup(NAME) is Reason.DNS_FAILURE
        await names.close()


async def test_a_zone_has_its_own_server_and_no_fallback():
    with dns_server({NAME: addresses("10.0.0.1")}) as default, dns_server({NAME: rcode("SERVFAIL")}) as zone:
        async with resolver(default, zones={"allowed.test.": (zone.address,)}) as names:
            assert await names.lookup(NAME) is Reason.DNS_FAILURE
        assert zone.count() > 0
        assert default.count() == 0


async def test_names_are_absolute_and_hosts_files_unread():
    with dns_server({"localhost": addresses("10.0.0.1")}) as dns:
        async with resolver(dns) as names:
            assert texts(await names.lookup(HostName("localhost"))) == ["10.0.0.1"]
            assert await names.lookup(HostName("vm")) is Reason.DNS_FAILURE
        assert {query.name for query in dns.queries} == {"localhost", "vm"}


async def test_nxdomain_for_one_family_is_no_answer_of_that_family():
    with dns_server({NAME: only("A", addresses("10.0.0.1"), other=rcode("NXDOMAIN"))}) as dns:
        async with resolver(dns) as names:
            assert texts(await names.lookup(NAME)) == ["10.0.0.1"]


async def test_follows_a_cname_that_the_server_did_not():
    scripts = {NAME: cname("edge.allowed.test", ttl=9), "edge.allowed.test": addresses("10.0.0.1", ttl=60)}
    with dns_server(scripts) as dns:
        async with resolver(dns) as names:
            answer = await names.lookup(NAME)
        assert texts(answer) == ["10.0.0.1"]
        assert (answer.cnames, answer.ttl) == (("edge.allowed.test",), 9.0)


async def test_a_failure_is_not_kept():
    with dns_server({NAME: sequence(empty, addresses("10.0.0.1"))}) as dns:
        async with resolver(dns) as names:
            assert await names.lookup(NAME) is Reason.DNS_FAILURE
            assert texts(await names.lookup(NAME)) == ["10.0.0.1"]


@pytest.mark.parametrize("target", ["odd\\032label.test", "a\\.b.test", "\\200.test"])
async def test_a_cname_to_what_is_no_host_name_is_a_failure(target):
    with dns_server({NAME: cname(target, then=addresses("10.0.0.1"))}) as dns:
        async with resolver(dns) as names:
            assert await names.lookup(NAME) is Reason.DNS_FAILURE
