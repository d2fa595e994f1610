"""The words that nftables rules are made of, as nft reads them as JSON (libnftables-json(5)). Pure."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

__all__ = [
    "LOGGED_BYTES",
    "LOG_GROUP",
    "LOG_PREFIX",
    "Address",
    "Chain",
    "Json",
    "Listener",
    "Network",
    "accept",
    "among",
    "asked",
    "at",
    "counter",
    "drop",
    "equal",
    "extended",
    "family",
    "kind_of_destination",
    "limit",
    "listener_name",
    "meant",
    "meta",
    "mptcp",
    "payload",
    "prefix",
    "raw",
    "replacing",
    "unequal",
]

LOG_GROUP: Final = 5
"""The NFLOG group of what is dropped."""
LOG_PREFIX: Final = "tidegate "
"""How the kernel's log begins what it says of our rules."""
LOGGED_BYTES: Final = 128
"""What of a packet is in the log: its headers."""
_LOGGED_A_SECOND: Final = 20

type Address = IPv4Address | IPv6Address
type Network = IPv4Network | IPv6Network
type Listener = tuple[Address, int]
type Json = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of a table, as what makes it and its rules."""

    family: str
    table: str
    name: str

    def made(self, **hook: object) -> Json:
        """Return the chain itself; without a hook it is one that others jump to."""
        return {"chain": {"family": self.family, "table": self.table, "name": self.name, **hook}}

    def rule(self, comment: str, *expressions: Json) -> Json:
        """Return a rule; the comment is its name."""
        place = {"family": self.family, "table": self.table, "chain": self.name}
        return {"rule": {**place, "comment": comment, "expr": list(expressions)}}

    def dropped(self, comment: str, *expressions: Json, whose: str = LOG_PREFIX) -> Iterator[Json]:
        """Yield the rules that log some of what they match, and count and drop all of it."""
        log: Json = {"log": {"group": LOG_GROUP, "prefix": f"{whose}{comment} ", "snaplen": LOGGED_BYTES}}
        yield self.rule(f"{comment}, logged", *expressions, limit(_LOGGED_A_SECOND), log)
        yield self.rule(comment, *expressions, counter(), drop())


def replacing(families: Sequence[str], table: str, rules: Iterable[Json]) -> Json:
    """Return the transaction that puts rules in the place of the tables of that name, if there were any."""
    commands: list[Json] = []
    for one in families:
        made = {"table": {"family": one, "name": table}}
        commands += [{"add": made}, {"delete": made}, {"add": made}]
    return {"nftables": [*commands, *({"add": rule} for rule in rules)]}


def meta(key: str) -> Json:
    """Return what is known of a packet beside its bytes."""
    return {"meta": {"key": key}}


def payload(protocol: str, field: str) -> Json:
    """Return a field of a packet's header."""
    return {"payload": {"protocol": protocol, "field": field}}


def raw(offset: int, bits: int) -> Json:
    """Return bits of a packet's network header that have no name, from bit `offset` on."""
    return {"payload": {"base": "nh", "offset": offset, "len": bits}}


def extended(kind: str, name: str) -> Json:
    """Return whether a packet has a header or an option beyond its network header's fixed part."""
    return {kind: {"name": name}}


def kind_of_destination() -> Json:
    """Return what the destination is to this namespace, by its routes: `local`, where it is its own."""
    return {"fib": {"result": "type", "flags": ["daddr"]}}


def asked(several: Sequence[Network]) -> tuple[Json, Json]:
    """Match what whoever began the connection sends to networks of one family, wherever it has been turned since."""
    address: Json = {"ct": {"key": f"{family(several[0])} daddr", "dir": "original"}}
    return equal({"ct": {"key": "direction"}}, "original"), among(address, [prefix(one) for one in several])


def mptcp() -> Json:
    """Match what MPTCP sends (RFC 8684)."""
    return equal(extended("tcp option", "mptcp"), True)


def equal(left: Json, right: object) -> Json:
    """Match what is equal."""
    return {"match": {"op": "==", "left": left, "right": right}}


def unequal(left: Json, right: object) -> Json:
    """Match what is there and not equal: a packet that has no such thing matches neither way."""
    return {"match": {"op": "!=", "left": left, "right": right}}


def among(left: Json, right: Sequence[object]) -> Json:
    """Match one of several."""
    return equal(left, {"set": list(right)}) if len(right) > 1 else equal(left, right[0])


def limit(rate: int, *, over: bool = False) -> Json:
    """Match so many a second, or what is over that."""
    return {"limit": {"rate": rate, "burst": rate, "per": "second", **({"inv": True} if over else {})}}


def counter() -> Json:
    """Count what came so far."""
    return {"counter": {"packets": 0, "bytes": 0}}


def accept() -> Json:
    """Let it go on."""
    return {"accept": None}


def drop() -> Json:
    """Drop it without a word."""
    return {"drop": None}


def family(address: Address | Network) -> str:
    """Return nft's word for the address's protocol."""
    return "ip" if address.version == 4 else "ip6"


def at(listener: Listener, protocol: str = "tcp") -> tuple[Json, Json]:
    """Match a listener's address and port."""
    address, port = listener
    return equal(payload(family(address), "daddr"), str(address)), equal(payload(protocol, "dport"), port)


def meant(listener: Listener, protocol: str) -> tuple[Json, Json, Json]:
    """Match what was sent to an address and port, wherever a rule of someone else's has turned it since.

    A container engine turns questions to its own resolver to a port of that's.
    """
    address, port = listener
    host, at_port = f"{family(address)} daddr", "proto-dst"
    return (
        equal(meta("l4proto"), protocol),
        equal({"ct": {"key": host, "dir": "original"}}, str(address)),
        equal({"ct": {"key": at_port, "dir": "original"}}, port),
    )


def prefix(network: Network) -> Json | str:
    """Return a network, or its one address."""
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}


def listener_name(listener: Listener) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    address, port = listener
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
