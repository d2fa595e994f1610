"""A pin: the addresses that one connection attempt may dial, every one of them vetted (invariant 3).

One lookup makes one pin. A pin is used for the connection it was made for, and for others to the
same name and port only while it is younger than `upstream.pin_max_age_seconds`.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

import msgspec

from tidegate.clock import Clock
from tidegate.policy.addresses import IPNetwork, Site, parse_networks, vet
from tidegate.policy.names import Host, HostName
from tidegate.policy.reasons import Reason
from tidegate.resolve.resolver import Resolver

__all__ = ["Pin", "pin"]


class Pin(msgspec.Struct, frozen=True):
    """What may be dialled for `name:port`: `addresses` as the answer gave them, `vetted_at` on the boot clock."""

    name: Host
    port: int
    addresses: tuple[IPv4Address | IPv6Address, ...]
    vetted_at: float
    ttl: float
    cnames: tuple[HostName, ...] = ()

    def is_fresh(self, *, now: float, max_age: float) -> bool:
        """Say whether the pin is younger than `max_age` seconds at `now` (boot clock)."""
        return 0 <= now - self.vetted_at < max_age


async def pin(
    host: Host,
    port: int,
    *,
    allowed: Sequence[str],
    site: Site,
    resolver: Resolver,
    clock: Clock,
    payer: str | None = None,
) -> Pin | Reason:
    """Look `host` up once and vet the whole answer; return the pin, or the reason that no address may be dialled.

    `allowed` is the rule's `addresses`; `payer` the session whose share of the resolver it takes.
    A host that is an address literal is vetted as it stands.
    """
    networks: Sequence[IPNetwork] = parse_networks(tuple(allowed))
    if not isinstance(host, str):
        vetted = vet((host,), port=port, allowed=networks, site=site)
        return vetted if isinstance(vetted, Reason) else Pin(host, port, vetted, clock.boot(), float("inf"))
    answer = await resolver.lookup(host, payer=payer)
    if isinstance(answer, Reason):
        return answer
    vetted = vet(answer.addresses, port=port, allowed=networks, site=site)
    if isinstance(vetted, Reason):
        return vetted
    return Pin(host, port, vetted, clock.boot(), answer.ttl, answer.cnames)
