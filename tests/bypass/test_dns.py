"""Attacks through DNS, decided where a name becomes addresses: a real server says what an attacker would."""

import asyncio
import contextlib
import dataclasses
import itertools
from ipaddress import IPv6Network, ip_address

import dns.message
import pytest

from tests.lab.dns import (
    addresses,
    cname,
    delayed,
    dns_server,
    empty,
    forged_first,
    only,
    rcode,
    records,
    sequence,
    silent,
    truncated,
)
from tidegate.clock import SYSTEM
from tidegate.config.model import ResolverSettings
from tidegate.policy.addresses import NO_SITE, Site
from tidegate.policy.names import HostName
from tidegate.policy.reasons import Reason
from tidegate.resolve.pin import Pin, pin
from tidegate.resolve.resolver import Resolver

NAME = HostName("api.allowed.test")
GOOD = "93.184.216.34"
GOOD6 = "2606:2800:220:1::1"


@contextlib.asynccontextmanager
async def pins(dns, *, site=NO_SITE, deadline=5.0):
    """Pin names through one resolver that asks `dns`."""
    names = Resolver(ResolverSettings(servers=(dns.address,), timeout_seconds=deadline), SYSTEM)

    async def one(name=NAME, port=443, allowed=()):
        return await pin(HostName(name), port, allowed=allowed, site=site, resolver=names, clock=SYSTEM)

    try:
        yield one
    finally:
        await names.close()


async def pin_once(script, *, allowed=(), site=NO_SITE, deadline=5.0):
    with dns_server({NAME: script}) as dns:
        async with pins(dns, site=site, deadline=deadline) as one:
            return await one(allowed=allowed)


def dialled(made):
    assert isinstance(made, Pin), made
    return [str(address) for address in made.addresses]


async def test_D_01_rebinding_between_check_and_dial_changes_nothing():
    script = sequence(addresses(GOOD, ttl=0), addresses("169.254.169.254", ttl=0))
    with dns_server({NAME: script}) as dns:
        async with pins(dns) as one:
            first = await one()
            assert dialled(first) == [GOOD]
            assert (dns.count(rrtype="A"), dns.count(rrtype="AAAA")) == (1, 1)
            # The next attempt is a lookup of its own, and is vetted as such; the first pin stays what it was.
            assert await one() is Reason.RESOLVED_METADATA
            assert dialled(first) == [GOOD]
            assert dns.count(rrtype="A") == 2


async def test_D_05_a_pin_past_its_age_is_looked_up_and_vetted_again():
    with dns_server({NAME: sequence(addresses(GOOD, ttl=0), addresses("10.0.0.5", ttl=0))}) as dns:
        async with pins(dns) as one:
            first = await one()
            assert first.is_fresh(now=first.vetted_at + 299, max_age=300)
            # Not at the very end: a sum of floats may be a hair less than its parts.
            assert not first.is_fresh(now=first.vetted_at + 300.001, max_age=300)
            assert await one() is Reason.RESOLVED_BLOCKED


@pytest.mark.parametrize(
    "bad",
    ["10.0.0.5", "127.0.0.1", "100.64.0.1", "0.0.0.0", "fd00::5", "::1", "::ffff:10.0.0.5", "fe80::1", "2002:a00:5::"],
)
async def test_D_02_one_bad_address_refuses_the_whole_name(bad):
    assert await pin_once(addresses(GOOD, GOOD6, bad)) is Reason.RESOLVED_BLOCKED


async def test_D_02_metadata_among_good_addresses_is_metadata():
    reason = await pin_once(addresses(GOOD, "169.254.169.254"), allowed=("169.254.0.0/16", "0.0.0.0/0"))
    assert reason is Reason.RESOLVED_METADATA


async def test_D_03_a_cname_into_the_site_is_refused_by_its_address():
    assert await pin_once(cname("internal.corp.test", then=addresses("10.1.2.3"))) is Reason.RESOLVED_BLOCKED


@pytest.mark.parametrize(
    "target", ["metadata.google.internal", "METADATA.google.internal", "metadata.goog", "instance-data.ec2.internal"]
)
async def test_D_03_a_cname_to_a_metadata_name_is_refused_by_name(target):
    assert await pin_once(cname(target, then=addresses(GOOD))) is Reason.RESOLVED_METADATA


def _chain(length):
    rows = [(f"c{n}.test." if n else f"{NAME}.", 60, "CNAME", f"c{n + 1}.test.") for n in range(length)]
    return records(*rows, (f"c{length}.test.", 60, "A", GOOD))


@pytest.mark.parametrize(
    "script",
    [
        cname(NAME),
        cname("b.test", then=cname(NAME)),
        _chain(40),
        _chain(11),
    ],
    ids=["itself", "two names", "chain of 40", "chain of 11"],
)
async def test_D_04_a_cname_loop_or_a_long_chain_is_a_failure(script):
    async with asyncio.timeout(5):
        assert await pin_once(script) is Reason.DNS_FAILURE


async def test_D_04_a_chain_within_the_bound_is_followed():
    made = await pin_once(only("A", _chain(10)))
    assert dialled(made) == [GOOD]
    assert len(made.cnames) == 10


async def test_D_04_a_loop_that_needs_new_queries_ends_with_few_of_them():
    with dns_server({"*.loop.test": lambda query: cname(f"x{len(query.name)}.{query.name}")(query)}) as dns:
        async with pins(dns) as one:
            assert await one("a.loop.test") is Reason.DNS_FAILURE
        assert dns.count() <= 2 * 11


@pytest.mark.parametrize("fault", ["id", "question", "not-a-response", "garbage"])
async def test_D_10_a_forged_reply_is_ignored(fault):
    made = await pin_once(only("A", forged_first(addresses("6.6.6.6"), addresses(GOOD), fault=fault)))
    assert dialled(made) == [GOOD]


async def test_D_10_a_late_reply_to_an_earlier_query_is_ignored():
    # The reply to the first lookup comes when the second one is on the wire, from the right address and port.
    script = sequence(delayed(0.3, addresses("6.6.6.6", ttl=0)), addresses(GOOD, ttl=0))
    with dns_server({NAME: only("A", script)}) as dns:
        async with pins(dns, deadline=0.1) as one:
            assert await one() is Reason.DNS_FAILURE
        async with pins(dns) as one:
            assert dialled(await one()) == [GOOD]


async def test_D_10_ids_and_ports_are_not_predictable():
    with dns_server({"*.test": addresses(GOOD)}) as dns:
        async with pins(dns) as one:
            for number in range(16):
                await one(f"n{number}.test")
        ids = [query.message.id for query in dns.queries]
    assert len(set(ids)) > 28
    assert len({later - earlier for earlier, later in itertools.pairwise(ids)}) > 20


@pytest.mark.parametrize("family", ["A", "AAAA"])
async def test_D_11_a_truncated_reply_is_asked_again_over_tcp(family):
    script = only(family, truncated(addresses(GOOD, GOOD6)), other=addresses(GOOD, GOOD6))
    with dns_server({NAME: script}) as dns:
        async with pins(dns) as one:
            assert dialled(await one()) == [GOOD6, GOOD]
        assert dns.count(rrtype=family, transport="tcp") == 1


@pytest.mark.parametrize(
    "tcp",
    [
        rcode("SERVFAIL"),
        silent,
        lambda query: _other_question(query),
        truncated(addresses(GOOD6), tcp=lambda query: _still_truncated(query)),
    ],
    ids=["servfail", "closed", "other question", "still truncated"],
)
async def test_D_11_a_family_that_fails_over_tcp_fails_the_name(tcp):
    script = only("AAAA", truncated(addresses(GOOD6), tcp=tcp), other=addresses(GOOD))
    assert await pin_once(script) is Reason.DNS_FAILURE


def _other_question(query):
    other = dns.message.make_query("other.test.", query.rrtype, id=query.message.id)
    return addresses(GOOD6)(dataclasses.replace(query, message=other))


def _still_truncated(query):
    steps = addresses(GOOD6)(query)
    wire = bytearray(steps[0].wire)
    wire[2] |= 0x02
    return [type(steps[0])(bytes(wire))]


async def test_D_11_a_bad_address_beyond_the_truncation_is_seen():
    many = [f"93.184.{n}.1" for n in range(120)]
    assert await pin_once(addresses(*many, "10.0.0.5")) is Reason.RESOLVED_BLOCKED


@pytest.mark.parametrize("count", [129, 500, 4000])
async def test_D_12_too_many_addresses_refuse_the_name(count):
    many = [f"93.{n >> 8}.{n & 255}.1" for n in range(count)]
    assert await pin_once(addresses(*many)) is Reason.DNS_FAILURE


async def test_D_12_a_reply_of_64_kib_is_refused_before_it_is_parsed():
    # One address among 60 KiB of noise: only the length can refuse it. To parse it holds the loop for 0.1 s.
    noise = [(f"n{number}.test.", 60, "TXT", '"' + "x" * 200 + '"') for number in range(250)]
    script = only("A", records((f"{NAME}.", 60, "A", GOOD), *noise))
    with dns_server({NAME: script}) as dns:
        async with pins(dns) as one:
            assert await one() is Reason.DNS_FAILURE
        assert dns.count(transport="tcp") > 0


async def test_D_12_as_many_as_the_bound_are_vetted_all():
    many = [f"93.184.{n}.1" for n in range(128)]
    assert sorted(dialled(await pin_once(addresses(*many)))) == sorted(many)


async def test_D_13_hints_of_https_records_are_never_used():
    def script(query):
        name = query.name + "."
        hint = (name, 60, "HTTPS", "1 . alpn=h3 port=8443 ipv4hint=10.0.0.5")
        return records(hint, *([(name, 60, "A", GOOD)] if query.rrtype == "A" else []))(query)

    with dns_server({NAME: script}) as dns:
        async with pins(dns) as one:
            made = await one()
        assert (dialled(made), made.port) == ([GOOD], 443)
        assert {query.rrtype for query in dns.queries} == {"A", "AAAA"}


@pytest.mark.parametrize(
    "script",
    [rcode("NXDOMAIN"), rcode("SERVFAIL"), rcode("REFUSED"), rcode("NOTIMP"), empty],
    ids=["nxdomain", "servfail", "refused", "notimp", "empty"],
)
async def test_D_15_no_answer_is_a_failure_at_once(script):
    async with asyncio.timeout(1):
        assert await pin_once(script) is Reason.DNS_FAILURE


async def test_D_15_a_silent_server_is_a_failure_within_the_deadline():
    async with asyncio.timeout(1):
        assert await pin_once(silent, deadline=0.2) is Reason.DNS_FAILURE


@pytest.mark.parametrize("fault", [rcode("SERVFAIL"), silent], ids=["servfail", "silent"])
async def test_D_15_half_an_answer_is_a_failure(fault):
    assert await pin_once(only("A", addresses(GOOD), other=fault), deadline=0.5) is Reason.DNS_FAILURE


async def test_D_15_no_stale_answer_after_a_failure():
    with dns_server({NAME: sequence(addresses(GOOD, ttl=0), rcode("SERVFAIL"))}) as dns:
        async with pins(dns) as one:
            assert dialled(await one()) == [GOOD]
            assert await one() is Reason.DNS_FAILURE


@pytest.mark.parametrize("sink", ["0.0.0.0", "::", "127.0.0.1", "::1"])
async def test_D_16_a_sinkhole_answer_is_refused(sink):
    assert await pin_once(addresses(sink)) is Reason.RESOLVED_BLOCKED


@pytest.mark.parametrize(
    ("answer", "prefixes", "outcome"),
    [
        ("64:ff9b::5db8:d822", (), None),
        ("64:ff9b::a00:5", (), Reason.RESOLVED_BLOCKED),
        ("64:ff9b::a9fe:a9fe", (), Reason.RESOLVED_METADATA),
        ("2a00:1:2:3:4:5:5db8:d822", ("2a00:1:2:3:4:5::/96",), None),
        ("2a00:1:2:3:4:5:a00:5", ("2a00:1:2:3:4:5::/96",), Reason.RESOLVED_BLOCKED),
    ],
    ids=["public", "private inside", "metadata inside", "public, site prefix", "private, site prefix"],
)
async def test_D_17_nat64_is_judged_by_the_address_inside(answer, prefixes, outcome):
    site = Site(nat64_prefixes=tuple(IPv6Network(prefix) for prefix in prefixes))
    made = await pin_once(addresses(answer), site=site)
    if outcome:
        assert made is outcome
    else:
        assert made.addresses == (ip_address(answer),)


async def test_D_18_each_connection_gets_the_current_answer():
    script = sequence(*(addresses(f"93.184.216.{n}", ttl=0) for n in range(1, 4)))
    with dns_server({NAME: script}) as dns:
        async with pins(dns) as one:
            assert [dialled(await one())[0] for _ in range(3)] == [f"93.184.216.{n}" for n in range(1, 4)]


async def test_D_19_both_families_are_in_the_pin_so_that_the_dial_can_fall_back():
    assert dialled(await pin_once(addresses(GOOD, GOOD6))) == [GOOD6, GOOD]


async def test_D_20_ten_thousand_names_leave_a_bounded_cache():
    # The bound itself: tests/unit/resolve/test_cache.py. Here: lookups beyond the parallel bound wait and succeed.
    with dns_server({"*.allowed.test": addresses(GOOD)}) as dns:
        async with pins(dns, deadline=60.0) as one:  # all of them, on whatever machine
            made = await asyncio.gather(*(one(f"n{number}.allowed.test") for number in range(400)))
    assert all(isinstance(each, Pin) for each in made)


async def test_D_20_a_flood_of_slow_names_holds_up_nobody_else():
    with dns_server({"*.slow.test": silent, NAME: addresses(GOOD)}) as dns:
        names = Resolver(ResolverSettings(servers=(dns.address,)), SYSTEM)
        flood = [asyncio.create_task(names.lookup(HostName(f"n{n}.slow.test"), payer="flooder")) for n in range(1000)]
        async with asyncio.timeout(2):
            refused, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result() for task in refused} == {Reason.BUDGET}
            other = await names.lookup(NAME, payer="other")
            assert [str(address) for address in other.addresses] == [GOOD]
            # What another has already found is free, for the flooder as well.
            assert not isinstance(await names.lookup(NAME, payer="flooder"), Reason)
        await names.close()
        assert sum(task.cancelled() for task in flood) == 32
        assert await names.lookup(HostName("x.test"), payer="flooder") is Reason.DNS_FAILURE


async def test_D_21_case_and_unknown_types_do_not_matter():
    def script(query):
        rows = [
            (query.name.upper() + ".", 60, "TXT", '"noise"'),
            (query.name.upper() + ".", 60, "TYPE65400", r"\# 2 abcd"),
        ]
        if query.rrtype == "A":
            rows.append((query.name.upper() + ".", 60, "A", GOOD))
        return records(*rows)(query)

    assert dialled(await pin_once(script)) == [GOOD]


async def test_D_21_records_of_another_owner_are_not_read():
    script = only("A", records((f"{NAME}.", 60, "A", GOOD), ("other.test.", 60, "A", "6.6.6.6")))
    with dns_server({NAME: script, "other.test": rcode("NXDOMAIN")}) as dns:
        async with pins(dns) as one:
            assert dialled(await one()) == [GOOD]
            assert await one("other.test") is Reason.DNS_FAILURE


async def test_D_22_reverse_names_are_never_asked():
    with dns_server({NAME: addresses(GOOD), "34.216.184.93.in-addr.arpa": records()}) as dns:
        async with pins(dns) as one:
            await one()
        assert dns.count("*.in-addr.arpa") == 0
        assert dns.count(rrtype="PTR") == 0
