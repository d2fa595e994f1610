"""The second line behind a fallen gate: where the gate's own user may send, whatever runs as it.

Two faults are needed to reach metadata: one in the gate, and one here. Pure, as `wall`.

| in the order of the rules | becomes |
|---|---|
| the gate's user's packet | goes through the rules below |
| any other user's | accepted: it is not ours to judge |
| nobody's, of MPTCP, to a metadata network or an address that carries one of those | dropped, counted, logged |
| nobody's, other, the kernel's own | accepted |
| one of MPTCP, which no gate speaks | dropped, counted, logged |
| one that names further hops: a routing header of IPv6, a source route of IPv4 | dropped, counted, logged |
| a question to a server of the resolver's, wherever a container engine turns it | accepted |
| to a metadata network, or to what somebody's rule has turned it to | dropped, counted, logged |
| to what a NAT64 prefix below 96 bits has with a reserved octet that is not zero | dropped, counted, logged |
| to an IPv6 address that carries one of those (`carried`) | dropped, counted, logged |
| an answer on a connection that stands | accepted |
| to an IPv4 network that a rule of the policy names, or to what a NAT64 prefix has of it | accepted |
| to what a NAT64 prefix has of a special network, or what the site has closed of a prefix | dropped, counted, logged |
| to the rest of a NAT64 prefix | accepted |
| to an IPv6 network that a rule names, or to what somebody's rule has turned a network to that one names | accepted |
| to the machine itself, by whatever address, public ones, anycast and broadcast too | dropped, counted, logged |
| to any other special network, or one that the site has closed (`deny_cidrs`) | dropped, counted, logged |
| to another end of a tunnel, by its interface identifier (ISATAP) | dropped, counted, logged |
| to the rest of the world | accepted: the policy is the gate's |

NAT64 prefixes are the well-known one and those that are declared. What is in one is judged as the IPv4 address that it
has, as the first line does it: a rule that names such a prefix itself names none of those.

Whoever may make a socket may have it write a segment routing header (RFC 8754), and older kernels let them write a
source route (RFC 791). The destination in the packet is then the first hop, which may be anything that the rules let
through, a resolver too; the one that is meant stands where no rule looks, and any hop that takes part leads there.

The connections that MPTCP (RFC 8684) begins are the kernel's own before they are anybody's: in older kernels each, in
newer ones those to addresses that the peer announces, which a fallen gate may have chosen.

An answer goes against the direction in which its connection was begun. In that direction each packet is judged anew:
the connection may be another user's, whose port the gate's has taken since.

A container engine turns what is sent to a port that it publishes to the container's own address, and an agent what is
sent to metadata to itself. It is what the packet was sent to that a rule of the policy names, and that is metadata.

The reserved octet, bits 64 to 71, carries nothing and is zero (RFC 6052 section 2.2). The first line reads the IPv4
address around it whatever it is, and the networks here have it as zero: without a rule of its own an address with
another one would be none of those, and pass as the rest of the prefix. Before what is named, whose networks may end
ahead of that octet.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from tidegate.policy.address_table import GLOBAL_UNICAST_V6, ROWS, TRANSITION_V6
from tidegate.policy.addresses import embed
from tidegate_launcher.wall.carried import CARRIED, carried, isatap
from tidegate_launcher.wall.nflog import GATE_USER_PREFIX
from tidegate_launcher.wall.rules import (
    Chain,
    Json,
    Listener,
    Network,
    accept,
    among,
    asked,
    equal,
    extended,
    family,
    kind_of_destination,
    meant,
    meta,
    mptcp,
    payload,
    prefix,
    raw,
    replacing,
    unequal,
)

__all__ = ["LEASH_TABLE", "Leash", "leash_transaction"]

LEASH_TABLE: Final = "tidegate-the-user-of-the-gate"
"""Longer than the name of any link's table, so that no device can be called so."""
_RESERVED_BIT: Final = 24 * 8 + 64
"""Where an IPv6 header has bit 64 of the destination, which is its last 16 octets (RFC 8200 section 3)."""
_IPV6: Final = equal(meta("nfproto"), "ipv6")
_ANYBODY: Final[Json] = {"range": [0, 2**32 - 2]}
_HOPS: Final = {
    "routing header": extended("exthdr", "rt"),
    "loose source route": extended("ip option", "lsrr"),
    "strict source route": extended("ip option", "ssrr"),
}
_WELL_KNOWN: Final = next(IPv6Network(text) for text, kind, _ in TRANSITION_V6 if kind == "translated")
_ITSELF: Final = ("local", "broadcast", "anycast")
"""Kinds of destination that the machine hears itself; those of multicast are special."""
_WHOLE: Final = 96
"""Bits of a NAT64 prefix that has the reserved octet itself."""


@dataclasses.dataclass(frozen=True)
class Leash:
    """Who is held, the servers that it may ask, the special networks that rules name, and where IPv4 is translated.

    `closed` are networks that the site has closed, which are special as well.
    """

    uid: int
    servers: tuple[Listener, ...]
    named: tuple[Network, ...]
    nat64: tuple[IPv6Network, ...] = ()
    closed: tuple[Network, ...] = ()

    @property
    def prefixes(self) -> tuple[IPv6Network, ...]:
        """All NAT64 prefixes: those that are declared, and the well-known one."""
        return tuple(dict.fromkeys((*self.nat64, _WELL_KNOWN)))

    def translated(self, networks: Sequence[Network]) -> list[Network]:
        """Return where the prefixes have these networks."""
        return [embed(one, prefix) for prefix in self.prefixes for one in networks if isinstance(one, IPv4Network)]

    def closed_of_prefixes(self) -> list[IPv6Network]:
        """Return what the site has closed of the prefixes themselves, or all of them."""
        six = [one for one in self.closed if isinstance(one, IPv6Network)]
        pairs = ((one, prefix) for one in six for prefix in self.prefixes if one.overlaps(prefix))
        return [max(pair, key=lambda network: network.prefixlen) for pair in pairs]


def leash_transaction(leash: Leash) -> Json:
    """Return what replaces the leash's rules in one step."""
    return replacing(("inet",), LEASH_TABLE, _rules(leash))


def _rules(leash: Leash) -> Iterator[Json]:
    output, held = Chain("inet", LEASH_TABLE, "output"), Chain("inet", LEASH_TABLE, "held")
    yield held.made()
    yield from carried(Chain("inet", LEASH_TABLE, CARRIED), leash.nat64)
    yield output.made(type="filter", hook="output", prio=0, policy="accept")
    # What is to be judged is named, not what is not: a packet of the kernel's own has no user to compare.
    yield output.rule("the gate's user", equal(meta("skuid"), leash.uid), {"jump": {"target": "held"}})
    metadata, special = _rows("metadata"), [*_rows("special"), *leash.closed]
    yield from _nobodys(output, leash, metadata)
    yield from held.dropped("MPTCP", mptcp(), whose=GATE_USER_PREFIX)
    for name, hops in _HOPS.items():
        yield from held.dropped(name, equal(hops, True), whose=GATE_USER_PREFIX)
    for server in dict.fromkeys(leash.servers):
        for protocol in ("udp", "tcp"):
            yield held.rule(f"resolver {server[0]} {protocol}", *meant(server, protocol), accept())
    for name, match in _to("metadata", [*metadata, *leash.translated(metadata)]):
        yield from held.dropped(name, match, whose=GATE_USER_PREFIX)
    for name, matches in _asked("metadata, turned", metadata):
        yield from held.dropped(name, *matches, whose=GATE_USER_PREFIX)
    reserved = unequal(raw(_RESERVED_BIT, 8), 0)
    for name, match in _to("translated, reserved octet", [one for one in leash.nat64 if one.prefixlen < _WHOLE]):
        yield from held.dropped(name, match, reserved, whose=GATE_USER_PREFIX)
    yield held.rule("what may carry IPv4", _IPV6, {"jump": {"target": CARRIED}})
    answers = equal({"ct": {"key": "direction"}}, "reply")
    yield held.rule("an answer", answers, among({"ct": {"key": "state"}}, ["established", "related"]), accept())
    four = [one for one in leash.named if isinstance(one, IPv4Network)]
    six = [one for one in leash.named if isinstance(one, IPv6Network)]
    for name, match in (*_to("named by a rule", four), *_to("named by a rule, translated", leash.translated(four))):
        yield held.rule(name, match, accept())
    for name, match in _to("special, translated", [*leash.translated(special), *leash.closed_of_prefixes()]):
        yield from held.dropped(name, match, whose=GATE_USER_PREFIX)
    for name, match in (*_to("translated", leash.prefixes), *_to("named by a rule", six)):
        yield held.rule(name, match, accept())
    for name, matches in _asked("named by a rule, turned", leash.named):
        yield held.rule(name, *matches, accept())
    yield from held.dropped("the machine itself", among(kind_of_destination(), _ITSELF), whose=GATE_USER_PREFIX)
    for name, match in _to("special", special):
        yield from held.dropped(name, match, whose=GATE_USER_PREFIX)
    yield from held.dropped("special ip6, ISATAP", _IPV6, isatap(), whose=GATE_USER_PREFIX)
    outside = unequal(payload("ip6", "daddr"), prefix(ip_network(str(GLOBAL_UNICAST_V6))))
    yield from held.dropped("special ip6, the rest", outside, whose=GATE_USER_PREFIX)


def _nobodys(output: Chain, leash: Leash, metadata: Sequence[Network]) -> Iterator[Json]:
    yield output.rule("another user's", equal(meta("skuid"), _ANYBODY), accept())
    for name, match in _to("metadata by MPTCP", [*metadata, *leash.translated(metadata)]):
        yield from output.dropped(name, match, mptcp(), whose=GATE_USER_PREFIX)
    yield output.rule("what may carry IPv4 by MPTCP", _IPV6, mptcp(), {"jump": {"target": CARRIED}})


def _rows(kind: str) -> list[Network]:
    return [ip_network(text) for text, told, _ in ROWS if told == kind]


def _asked(name: str, networks: Sequence[Network]) -> Iterator[tuple[str, tuple[Json, Json]]]:
    """Yield name and match of what was sent to these networks, wherever it goes by now."""
    for word in ("ip", "ip6"):
        if some := [network for network in networks if family(network) == word]:
            yield f"{name} {word}", asked(some)


def _to(name: str, networks: Sequence[Network]) -> Iterator[tuple[str, Json]]:
    """Yield name and match of packets to these networks, a family at a time."""
    for word in ("ip", "ip6"):
        some = [prefix(network) for network in networks if family(network) == word]
        if some:
            yield f"{name} {word}", among(payload(word, "daddr"), some)
