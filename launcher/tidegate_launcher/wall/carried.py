"""Metadata by its IPv4 address within an IPv6 one: each form of the first line's table, as rules for the second.

A rule of the policy may name all of a form, and means no metadata by it. What is a declared NAT64 prefix is judged as
that, before; the bits between, such as the reserved octet of RFC 6052, are looked at in no form.

| form | where the IPv4 address is |
|---|---|
| mapped, NAT64 well known, IPv4-translated, IPv4-compatible | the last 32 bits |
| local-use NAT64, cut to any length | the last 32 bits; from bit 48 or 56, around the reserved octet; from bit 72 |
| 6to4 | from bit 16 |
| Teredo | the server from bit 32; the client, inverted, the last 32 bits |
| ISATAP, by its interface identifier | the last 32 bits |
"""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, NamedTuple

from tidegate.policy.address_table import ROWS, TRANSITION_V6
from tidegate_launcher.wall.nflog import GATE_USER_PREFIX
from tidegate_launcher.wall.rules import Chain, Json, among, equal, payload, prefix, raw

__all__ = ["CARRIED", "carried", "isatap"]

CARRIED: Final = "carried"
_DESTINATION: Final = 24 * 8
"""Where the destination is in an IPv6 header (RFC 8200 section 3)."""
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
_ALL: Final = 32


class _Place(NamedTuple):
    """The bits of an address that hold an IPv4 address, in one piece or two; inverted or not."""

    pieces: tuple[tuple[int, int], ...]
    inverted: bool = False

    @property
    def shown(self) -> str:
        """How it is told from another place of the form."""
        return f"bit {self.pieces[0][0]}{', inverted' if self.inverted else ''}"


_LAST: Final = _Place(((96, 32),))
_PLACES: Final[dict[str, tuple[_Place, ...]]] = {
    "::ffff:0:0/96": (_LAST,),
    "64:ff9b::/96": (_LAST,),
    "::ffff:0:0:0/96": (_LAST,),
    "64:ff9b:1::/48": (_LAST, _Place(((48, 16), (72, 16))), _Place(((56, 8), (72, 24))), _Place(((72, 32),))),
    "2002::/16": (_Place(((16, 32),)),),
    "2001::/32": (_Place(((32, 32),)), _Place(((96, 32),), inverted=True)),
    "::/96": (_LAST,),
}
"""By the networks of `TRANSITION_V6`."""


def carried(chain: Chain, declared: Sequence[IPv6Network]) -> Iterator[Json]:
    """Yield the chain, for packets of IPv6."""
    yield chain.made()
    if declared:
        ours = among(payload("ip6", "daddr"), [prefix(one) for one in declared])
        yield chain.rule("a declared prefix", ours, {"return": None})
    for network, _, why in TRANSITION_V6:
        form = equal(payload("ip6", "daddr"), prefix(ip_network(network)))
        for place in _PLACES[network]:
            yield from _metadata(chain, why, place, form)
    yield from _metadata(chain, "ISATAP", _LAST, isatap())


def isatap() -> Json:
    """Match an interface identifier of ISATAP (RFC 5214 section 6.1), of a packet of IPv6."""
    return among(_destination(64, 32), list(_ISATAP))


def _destination(at: int, bits: int) -> Json:
    return raw(_DESTINATION + at, bits)


def _metadata(chain: Chain, name: str, place: _Place, form: Json) -> Iterator[Json]:
    for text, kind, _ in ROWS:
        if kind == "metadata" and ":" not in text:
            held = _held_by(place, IPv4Network(text))
            yield from chain.dropped(f"{text} in {name}, {place.shown}", form, *held, whose=GATE_USER_PREFIX)


def _held_by(place: _Place, network: IPv4Network) -> Iterator[Json]:
    """Yield a match for each piece of the place that the network says something of."""
    number = int(network.network_address)
    number = number ^ (2**_ALL - 1) if place.inverted else number
    left, gone = network.prefixlen, 0
    for at, bits in place.pieces:
        if (told := min(bits, left)) > 0:
            yield equal(_destination(at, told), number >> (_ALL - gone - told) & (2**told - 1))
        left, gone = left - told, gone + told
