"""What is wrong with the ways in as a whole: two at one address, one that leads nowhere, virtual addresses that do lead
somewhere.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from tidegate.config.model import DnsSettings, ListenSettings, address_text

__all__ = ["ways_problems"]

type Problems = Iterator[tuple[str, str]]

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_VIRTUAL_HOMES: Final = tuple(
    ip_network(text) for text in ("198.18.0.0/15", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
"""Where virtual addresses may be: benchmarking (RFC 2544) and private networks, which no public name leads to."""
_VIRTUAL_BITS: Final = 13
"""What a network of virtual addresses leaves for them: twice as many as a session can have."""


def ways_problems(listen: ListenSettings, dns: DnsSettings) -> Problems:
    """Yield key and problem of each thing that is wrong."""
    # A listener that nobody serves would look like a way in that holds.
    if listen.socks:
        yield "listen.socks", "this way in is not built yet: write off"
    yield from _addresses(listen)
    yield from _networks(dns)
    if dns.answer == "virtual":
        for key in ("virtual_v4", "virtual_v6"):
            network = ip_network(getattr(dns, key))
            for other, (host, _) in listen.named():
                if ip_address(host) in network:
                    yield f"dns.{key}", f"holds {host}, where {other} stands: names would be given real addresses"
        for key in ("dns", "transparent"):
            if not getattr(listen, key):
                yield "dns.answer", f"virtual addresses need listen.{key}"


def _addresses(listen: ListenSettings) -> Problems:
    taken: dict[tuple[str, int], str] = {}
    for key, address in listen.named():
        if key != "listen.http" and address[0] in _EVERYWHERE:
            yield key, "stands on the sandbox's side alone: give that address, not all of them"
        everywhere = (_EVERYWHERE[":" in address[0]], address[1])
        for other in {address, everywhere} & taken.keys():
            yield key, f"{address_text(other)} is {taken[other]}'s already"
        taken[address] = key


def _networks(dns: DnsSettings) -> Problems:
    for key, version, most in (("virtual_v4", 4, 32), ("virtual_v6", 6, 128)):
        network = ip_network(getattr(dns, key))
        if network.version != version:
            yield f"dns.{key}", f"must be an IPv{version} network"
        elif not any(_within(network, home) for home in _VIRTUAL_HOMES):
            homes = ", ".join(str(home) for home in _VIRTUAL_HOMES if home.version == version)
            yield f"dns.{key}", f"must lead nowhere: inside {homes}"
        elif network.prefixlen > most - _VIRTUAL_BITS:
            yield f"dns.{key}", f"too small for a session's names: /{most - _VIRTUAL_BITS} or shorter"


def _within(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    return inner.prefixlen >= outer.prefixlen and inner.network_address in outer
