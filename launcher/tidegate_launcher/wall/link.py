"""The wall around one sandbox's link, as nftables rules: what may come in at the gate's end of it, and nothing else.

Pure: it makes the objects that nft reads as JSON (libnftables-json(5)); `nft` hands them over. Rules stand at the
gate's end, since a gVisor sandbox has a network stack of its own that rules in its own namespace do not hold. They
belong to the namespace, so that they outlive the gate: gate dead means no traffic.

| chain | hook | does |
|---|---|---|
| `source` | ingress of the device | lets in what the sandbox's own addresses send, ARP, neighbour discovery |
| `capture` | prerouting, dstnat | sends DNS to the responder and all other TCP to the transparent listener |
| `closed` | prerouting, after it | drops, counts and logs what is not for a listener of the gate |
| `forward` | forward | forwards nothing from or to the device |

The drop stands in prerouting: with forwarding off the kernel drops what is not local before `forward`, uncounted.
"""

import dataclasses
from collections.abc import Iterator
from typing import Final

from tidegate_launcher.wall.rules import (
    Address,
    Chain,
    Json,
    Listener,
    accept,
    among,
    at,
    counter,
    drop,
    equal,
    family,
    limit,
    listener_name,
    meta,
    payload,
    replacing,
    unequal,
)

__all__ = ["ANOTHER_SOURCE", "Link", "table_name", "transaction"]

_DNS: Final = 53
_MOST_CONNECTIONS: Final = 1024
_MOST_QUESTIONS: Final = 4096
"""Entries of UDP that a link has at a time; one lives for half a minute."""
_NEW_A_SECOND: Final = 200
_DNS_A_SECOND: Final = 500
# Each can be of another link-local source, which the kernel remembers, in a table that all namespaces share.
_DISCOVERIES_A_SECOND: Final = 10

ANOTHER_SOURCE: Final = "another source"
"""The rule of packets whose source is not the sandbox's: whose they are, they do not say."""


@dataclasses.dataclass(frozen=True)
class Link:
    """One sandbox's link: the device at the gate's end, the sandbox's addresses, what the gate listens on.

    `listeners` are those that the sandbox dials itself (the proxy, TLS and HTTP by name); `transparent` and `dns` those
    to which the rest is sent, at most one a family. Nothing else on the gate's machine is reached, be it at the same
    address or on the same port.
    """

    device: str
    sandbox: tuple[Address, ...]
    listeners: tuple[Listener, ...] = ()
    transparent: tuple[Listener, ...] = ()
    dns: tuple[Listener, ...] = ()
    gate: tuple[Address, ...] = ()
    """The gate's addresses on this link: all that it is asked for by ARP. None given: any."""

    def __post_init__(self) -> None:
        if not self.sandbox:
            raise ValueError("a link has at least one address of the sandbox")
        if not (self.listeners or self.transparent or self.dns):
            raise ValueError("a link has at least one listener of the gate")
        for several in (self.transparent, self.dns):
            if len({address.version for address, _ in several}) < len(several):
                raise ValueError("a link has one transparent listener and one responder of a family at most")


def table_name(device: str) -> str:
    """Return the name of a link's tables."""
    return f"tidegate-{device}"


def transaction(link: Link) -> Json:
    """Return what replaces the link's rules in one step, whether or not there were any."""
    name = table_name(link.device)
    return replacing(("inet", "netdev"), name, (*_source(link, name), *_inet(link, name)))


def _source(link: Link, table: str) -> Iterator[Json]:
    chain = Chain("netdev", table, "source")
    yield chain.made(type="filter", hook="ingress", dev=link.device, prio=-500, policy="drop")
    four = [str(address) for address in link.sandbox if address.version == 4]
    if four:
        ends = [among({"payload": {"protocol": "arp", "field": "saddr ip"}}, four)]
        gate = [str(address) for address in link.gate if address.version == 4]
        if gate:
            ends.append(among({"payload": {"protocol": "arp", "field": "daddr ip"}}, gate))
        yield chain.rule("arp", equal(meta("protocol"), "arp"), *ends, limit(100), accept())
    if any(address.version == 6 for address in link.sandbox):
        local = equal(payload("ip6", "saddr"), {"prefix": {"addr": "fe80::", "len": 10}})
        yield chain.rule("neighbour discovery", local, *_discovery(), limit(_DISCOVERIES_A_SECOND), accept())
        nobody = equal(payload("ip6", "saddr"), "::")
        yield chain.rule("duplicate address detection", nobody, *_discovery(), limit(10), accept())
    for version, protocol in ((4, "ip"), (6, "ip6")):
        own = [str(address) for address in link.sandbox if address.version == version]
        if own:
            sent = among(payload(protocol, "saddr"), own)
            plain = [] if version == 4 else [among(payload("ip6", "nexthdr"), ["tcp", "udp", "ipv6-icmp"])]
            yield chain.rule(f"own {protocol}", sent, *plain, accept())
            if plain:
                # The kernel would answer to some headers before any rule of `closed` sees them.
                yield from chain.dropped("another header", sent)
    yield from chain.dropped(ANOTHER_SOURCE)


def _inet(link: Link, table: str) -> Iterator[Json]:
    here = equal(meta("iifname"), link.device)
    capture = Chain("inet", table, "capture")
    yield capture.made(type="nat", hook="prerouting", prio=-100, policy="accept")
    for responder in link.dns:
        for protocol in ("udp", "tcp"):
            asked = equal(payload(protocol, "dport"), _DNS)
            name = f"dns {protocol} {family(responder[0])}"
            yield capture.rule(name, here, _of(responder), asked, _sent_to(responder))
    for listener in link.listeners:
        yield capture.rule(listener_name(listener), here, *at(listener), accept())
    for taker in link.transparent:
        tcp = equal(meta("l4proto"), "tcp")
        yield capture.rule(f"all tcp {family(taker[0])}", here, _of(taker), tcp, _sent_to(taker))
    yield from _closed(link, table, here)
    forward = Chain("inet", table, "forward")
    yield forward.made(type="filter", hook="forward", prio=0, policy="accept")
    yield forward.rule("nothing in", here, counter(), drop())
    yield forward.rule("nothing out", equal(meta("oifname"), link.device), counter(), drop())


def _closed(link: Link, table: str, here: Json) -> Iterator[Json]:
    closed = Chain("inet", table, "closed")
    yield closed.made(type="filter", hook="prerouting", prio=-90, policy="accept")
    yield closed.rule("other links", unequal(meta("iifname"), link.device), accept())
    if any(address.version == 6 for address in link.sandbox):
        yield closed.rule("neighbour discovery", *_discovery(), accept())
    many: Json = {"ct count": {"val": _MOST_CONNECTIONS, "inv": True}}
    new = among({"ct": {"key": "state"}}, ["new"])
    open_to = dict.fromkeys((*link.listeners, *link.transparent, *link.dns))
    tcp = equal(meta("l4proto"), "tcp")
    yield from closed.dropped("too many", tcp, new, many)
    yield closed.rule("too fast", tcp, new, limit(_NEW_A_SECOND, over=True), counter(), drop())
    # Tracked, since the answer to one that was asked of another server must seem to come from there.
    questions: Json = {"ct count": {"val": _MOST_QUESTIONS, "inv": True}}
    yield from closed.dropped("too many questions", equal(meta("l4proto"), "udp"), new, questions)
    for responder in link.dns:
        name = f"dns {listener_name(responder)}"
        yield closed.rule(name, *at(responder, "udp"), limit(_DNS_A_SECOND), accept())
    for listener in open_to:
        yield closed.rule(listener_name(listener), *at(listener), accept())
    yield from closed.dropped("everything else")


def _of(listener: Listener) -> Json:
    """Return the match of packets of the listener's family."""
    return equal(meta("nfproto"), "ipv4" if listener[0].version == 4 else "ipv6")


def _sent_to(listener: Listener) -> Json:
    # Not `redirect`, which takes whichever address of the device comes first; the port that was dialled is known later
    # all the same (SO_ORIGINAL_DST).
    return {"dnat": {"family": family(listener[0]), "addr": str(listener[0]), "port": listener[1]}}


def _discovery() -> tuple[Json, Json, Json]:
    """Return the match of neighbour discovery, and of nothing that only looks like it.

    Without another header in front (RFC 6980), and not from afar (RFC 4861 section 7.1): for a bad header the kernel
    would write to the source that the packet claims, and quote what it holds.
    """
    kinds = among(payload("icmpv6", "type"), ["nd-neighbor-solicit", "nd-neighbor-advert"])
    return equal(payload("ip6", "nexthdr"), "ipv6-icmp"), equal(payload("ip6", "hoplimit"), 255), kinds
