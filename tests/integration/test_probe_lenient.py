"""Where nothing is refused, every way is open: a way of the probe that cannot fail proves nothing."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate_launcher
from tests.lab.certs import Authority
from tests.lab.lenient import chatty, lax_proxy, lenient
from tests.lab.sockets import bind_loopback, free_port, in_namespace
from tests.lab.world import GATE, UPLINK, World, resolver_of, why_no_world, world

PROGRAM = Path(tidegate_launcher.__file__).with_name("probe.py")
PORT = 7000


def probed(*options: str, prefix: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [*prefix, sys.executable, str(PROGRAM), "--json", "--seconds", "1", *options],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert not [way for way in report["ways"] if "fault of the probe" in way["evidence"]]
    return {f"{way['kind']}: {way['way']}": way for way in report["ways"]}


def closed(ways: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: f"{way['state']}: {way['evidence']}" for name, way in ways.items() if way["state"] != "open"}


def test_a_proxy_that_passes_everything_on_is_open_in_every_way() -> None:
    server, proxy = free_port(), free_port()
    with (
        Authority() as ca,
        lenient(ca, bind_loopback, "127.0.0.1", port=server),
        lax_proxy(bind_loopback, proxy, target=("127.0.0.1", server)),
    ):
        given = ("--allowed", "allowed.test", "--proxy", f"http://127.0.0.1:{proxy}")
        ways = probed(*given, "--only", "proxy", "name", "smuggling", "h2")
    through = {
        name: way for name, way in ways.items() if not name.endswith(("by name", "any address")) and "SOCKS" not in name
    }
    assert len(through) > 100
    assert closed(through) == {}


@pytest.fixture(scope="module")
def nowhere() -> Iterator[World]:
    """A world without a wall: the gate's machine forwards, and whatever is asked beyond is answered."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world())
        stack.enter_context(resolver_of(place.client, "9.9.9.9"))
        ca = stack.enter_context(Authority())
        _unwalled(place)
        for space in (place.internet, place.gate):
            stack.enter_context(lenient(ca, in_namespace(space), "::", port=PORT))
        groups = (("224.0.0.251", 5353), ("239.255.255.250", 1900), ("", 123))
        stack.enter_context(chatty(in_namespace(place.gate), *groups, own=GATE))
        yield place


_SWITCHES = (
    "net.ipv4.icmp_ratelimit=0",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.icmp_echo_ignore_broadcasts=0",
)
_GATE_SWITCHES = (
    *_SWITCHES,
    "net.ipv4.ip_forward=1",
    "net.ipv6.conf.all.forwarding=1",
    "net.ipv4.conf.all.arp_ignore=1",
)
_CLIENT_SWITCHES = ("net.ipv4.ping_group_range=0 2147483647",)
_REDIRECT = f"""
table inet everywhere {{
  chain taken {{
    type nat hook prerouting priority -100;
    iifname {{ NAME }} meta l4proto {{ tcp, udp }} FILTER redirect to :{PORT}
  }}
}}
"""


def _unwalled(place: World) -> None:
    def run(*words: str, given: str | None = None) -> None:
        subprocess.run(words, input=given, text=True, check=True, capture_output=True, timeout=10)

    def ip(space: str, *words: str) -> None:
        run("ip", "-n", space, *words)

    for space, device, address in ((place.gate, "sandbox", "fd77::1"), (place.client, "eth0", "fd77::2")):
        ip(space, "address", "add", f"{address}/64", "dev", device, "nodad")
    for space, device, address in ((place.gate, "uplink", "fd99::1"), (place.internet, "cable", "fd99::2")):
        ip(space, "address", "add", f"{address}/64", "dev", device, "nodad")
    ip(place.client, "route", "add", "default", "via", GATE)
    ip(place.client, "-6", "route", "add", "default", "via", "fd77::1")
    ip(place.gate, "-6", "route", "add", "default", "via", "fd99::2")
    ip(place.internet, "route", "add", "10.77.0.0/30", "via", UPLINK)
    ip(place.internet, "-6", "route", "add", "fd77::/64", "via", "fd99::1")
    ip(place.internet, "route", "add", "local", "default", "dev", "lo")  # every address is its own
    for network in ("2000::/3", "64:ff9b::/32", "::/64", "fd00:ec2::/32", "fd20::/16", "fc00::/16"):
        ip(place.internet, "-6", "route", "add", "local", network, "dev", "lo")
    _neighbour(place)
    switches = {place.gate: _GATE_SWITCHES, place.internet: _SWITCHES, place.client: _CLIENT_SWITCHES}
    for space, words in switches.items():
        run("ip", "netns", "exec", space, "sysctl", "-qw", *words)
    _settle(place)
    beyond = _REDIRECT.replace("NAME", "cable").replace("FILTER", "")
    run("ip", "netns", "exec", place.internet, "nft", "-f", "-", given=beyond)
    here = _REDIRECT.replace("NAME", "sandbox, other").replace("FILTER", "fib daddr type local")
    run(*place.gate_prefix, "nft", "-f", "-", given=here)


def _settle(place: World) -> None:
    """Wait until every IPv6 address is known to be nobody else's: those of the links are, after a second."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        asked = [["ip", "-n", space, "-6", "address", "show", "tentative"] for space in dataclasses.astuple(place)]
        if not any(subprocess.run(words, capture_output=True, timeout=10, check=True).stdout for words in asked):
            return
        time.sleep(0.05)  # the kernel has no other way to tell
    raise AssertionError("an IPv6 address is still tentative")


def _neighbour(place: World) -> None:
    """Put another neighbour on the link, and room for more."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", place.gate, *words], check=True, capture_output=True, timeout=10)

    ip("address", "add", f"{GATE}/24", "dev", "sandbox")
    ip("link", "add", "other", "link", "sandbox", "type", "macvlan", "mode", "bridge")
    ip("address", "add", "10.77.0.5/32", "dev", "other")
    ip("address", "add", "fe80::5efe:101:101/64", "dev", "other", "nodad")
    ip("address", "add", "fe80::a9fe:a9fe/64", "dev", "other", "nodad")
    ip("link", "set", "other", "up")


@pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")
def test_without_a_wall_every_way_out_is_open(nowhere: World) -> None:
    kinds = ("direct", "transition", "metadata", "private", "host", "dns", "udp", "icmp", "ip", "link")
    assert closed(probed("--only", *kinds, prefix=tuple(nowhere.client_prefix))) == {}


@pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")
def test_without_a_wall_a_flood_comes_through(nowhere: World) -> None:
    """As fast as the machine can: one that has other things to do may need several tries to be fast enough."""
    tries = (closed(probed("--flood", "--only", "flood", prefix=tuple(nowhere.client_prefix))) for _ in range(5))
    assert {} in tries
