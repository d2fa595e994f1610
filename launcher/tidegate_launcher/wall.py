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
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final

__all__ = ["ANOTHER_SOURCE", "LOG_GROUP", "Address", "Json", "Link", "Listener", "table_name", "transaction"]

LOG_GROUP: Final = 5
"""The NFLOG group of what is dropped."""
_DNS: Final = 53
_MOST_CONNECTIONS: Final = 1024
_MOST_QUESTIONS: Final = 4096
"""Entries of UDP that a link has at a time; one lives for half a minute."""
_NEW_A_SECOND: Final = 200
_DNS_A_SECOND: Final = 500
_LOGGED_A_SECOND: Final = 20
# Each can be of another link-local source, which the kernel remembers, in a table that all namespaces share.
_DISCOVERIES_A_SECOND: Final = 10

ANOTHER_SOURCE: Final = "another source"
"""The rule of packets whose source is not the sandbox's: whose they are, they do not say."""

type Address = IPv4Address | IPv6Address
type Listener = tuple[Address, int]
type Json = dict[str, object]


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
    tables = [{"table": {"family": family, "name": name}} for family in ("inet", "netdev")]
    commands: list[Json] = []
    for table in tables:
        commands += [{"add": table}, {"delete": table}, {"add": table}]
    commands += [{"add": one} for one in (*_source(link, name), *_inet(link, name))]
    return {"nftables": commands}


def _source(link: Link, table: str) -> Iterator[Json]:
    chain = _Chain("netdev", table, "source")
    yield chain.made(type="filter", hook="ingress", dev=link.device, prio=-500, policy="drop")
    four = [str(address) for address in link.sandbox if address.version == 4]
    if four:
        ends = [_in({"payload": {"protocol": "arp", "field": "saddr ip"}}, four)]
        gate = [str(address) for address in link.gate if address.version == 4]
        if gate:
            ends.append(_in({"payload": {"protocol": "arp", "field": "daddr ip"}}, gate))
        yield chain.rule("arp", _equal(_meta("protocol"), "arp"), *ends, _limit(100), _accept())
    if any(address.version == 6 for address in link.sandbox):
        local = _equal(_payload("ip6", "saddr"), {"prefix": {"addr": "fe80::", "len": 10}})
        yield chain.rule("neighbour discovery", local, *_discovery(), _limit(_DISCOVERIES_A_SECOND), _accept())
        nobody = _equal(_payload("ip6", "saddr"), "::")
        yield chain.rule("duplicate address detection", nobody, *_discovery(), _limit(10), _accept())
    for version, protocol in ((4, "ip"), (6, "ip6")):
        own = [str(address) for address in link.sandbox if address.version == version]
        if own:
            sent = _in(_payload(protocol, "saddr"), own)
            plain = [] if version == 4 else [_in(_payload("ip6", "nexthdr"), ["tcp", "udp", "ipv6-icmp"])]
            yield chain.rule(f"own {protocol}", sent, *plain, _accept())
            if plain:
                # The kernel would answer to some headers before any rule of `closed` sees them.
                yield from chain.dropped("another header", sent)
    yield from chain.dropped(ANOTHER_SOURCE)


def _inet(link: Link, table: str) -> Iterator[Json]:
    here = _equal(_meta("iifname"), link.device)
    capture = _Chain("inet", table, "capture")
    yield capture.made(type="nat", hook="prerouting", prio=-100, policy="accept")
    for responder in link.dns:
        for protocol in ("udp", "tcp"):
            asked = _equal(_payload(protocol, "dport"), _DNS)
            name = f"dns {protocol} {_network(responder)}"
            yield capture.rule(name, here, _of(responder), asked, _sent_to(responder))
    for listener in link.listeners:
        yield capture.rule(_name(listener), here, *_at(listener), _accept())
    for taker in link.transparent:
        tcp = _equal(_meta("l4proto"), "tcp")
        yield capture.rule(f"all tcp {_network(taker)}", here, _of(taker), tcp, _sent_to(taker))
    yield from _closed(link, table, here)
    forward = _Chain("inet", table, "forward")
    yield forward.made(type="filter", hook="forward", prio=0, policy="accept")
    yield forward.rule("nothing in", here, _counter(), _drop())
    yield forward.rule("nothing out", _equal(_meta("oifname"), link.device), _counter(), _drop())


def _closed(link: Link, table: str, here: Json) -> Iterator[Json]:
    closed = _Chain("inet", table, "closed")
    yield closed.made(type="filter", hook="prerouting", prio=-90, policy="accept")
    yield closed.rule("other links", _unequal(_meta("iifname"), link.device), _accept())
    if any(address.version == 6 for address in link.sandbox):
        yield closed.rule("neighbour discovery", *_discovery(), _accept())
    many: Json = {"ct count": {"val": _MOST_CONNECTIONS, "inv": True}}
    new = _in({"ct": {"key": "state"}}, ["new"])
    open_to = dict.fromkeys((*link.listeners, *link.transparent, *link.dns))
    tcp = _equal(_meta("l4proto"), "tcp")
    yield from closed.dropped("too many", tcp, new, many)
    yield closed.rule("too fast", tcp, new, _limit(_NEW_A_SECOND, over=True), _counter(), _drop())
    # Tracked, since the answer to one that was asked of another server must seem to come from there.
    questions: Json = {"ct count": {"val": _MOST_QUESTIONS, "inv": True}}
    yield from closed.dropped("too many questions", _equal(_meta("l4proto"), "udp"), new, questions)
    for responder in link.dns:
        at = _at(responder, protocol="udp")
        yield closed.rule(f"dns {_name(responder)}", *at, _limit(_DNS_A_SECOND), _accept())
    for listener in open_to:
        yield closed.rule(_name(listener), *_at(listener), _accept())
    yield from closed.dropped("everything else")


def _at(listener: Listener, *, protocol: str = "tcp") -> tuple[Json, Json]:
    """Return the match of a listener's address and port."""
    address, port = listener
    return _equal(_payload(_network(listener), "daddr"), str(address)), _equal(_payload(protocol, "dport"), port)


def _network(listener: Listener) -> str:
    return "ip" if listener[0].version == 4 else "ip6"


def _of(listener: Listener) -> Json:
    """Return the match of packets of the listener's family."""
    return _equal(_meta("nfproto"), "ipv4" if listener[0].version == 4 else "ipv6")


def _sent_to(listener: Listener) -> Json:
    # Not `redirect`, which takes whichever address of the device comes first; the port that was dialled is known later
    # all the same (SO_ORIGINAL_DST).
    return {"dnat": {"family": _network(listener), "addr": str(listener[0]), "port": listener[1]}}


def _discovery() -> tuple[Json, Json, Json]:
    """Return the match of neighbour discovery, and of nothing that only looks like it.

    Without another header in front (RFC 6980), and not from afar (RFC 4861 section 7.1): for a bad header the kernel
    would write to the source that the packet claims, and quote what it holds.
    """
    kinds = _in(_payload("icmpv6", "type"), ["nd-neighbor-solicit", "nd-neighbor-advert"])
    return _equal(_payload("ip6", "nexthdr"), "ipv6-icmp"), _equal(_payload("ip6", "hoplimit"), 255), kinds


def _name(listener: Listener) -> str:
    address, port = listener
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@dataclasses.dataclass(frozen=True)
class _Chain:
    family: str
    table: str
    name: str

    def made(self, **hook: object) -> Json:
        return {"chain": {"family": self.family, "table": self.table, "name": self.name, **hook}}

    def rule(self, comment: str, *expressions: Json) -> Json:
        place = {"family": self.family, "table": self.table, "chain": self.name}
        return {"rule": {**place, "comment": comment, "expr": list(expressions)}}

    def dropped(self, comment: str, *expressions: Json) -> Iterator[Json]:
        """Yield the rules that log some of what they match, and count and drop all of it."""
        log: Json = {"log": {"group": LOG_GROUP, "prefix": f"tidegate {comment} ", "snaplen": 128}}
        yield self.rule(f"{comment}, logged", *expressions, _limit(_LOGGED_A_SECOND), log)
        yield self.rule(comment, *expressions, _counter(), _drop())


def _meta(key: str) -> Json:
    return {"meta": {"key": key}}


def _payload(protocol: str, field: str) -> Json:
    return {"payload": {"protocol": protocol, "field": field}}


def _equal(left: Json, right: object) -> Json:
    return {"match": {"op": "==", "left": left, "right": right}}


def _unequal(left: Json, right: object) -> Json:
    return {"match": {"op": "!=", "left": left, "right": right}}


def _in(left: Json, right: Sequence[object]) -> Json:
    return _equal(left, {"set": list(right)}) if len(right) > 1 else _equal(left, right[0])


def _limit(rate: int, *, over: bool = False) -> Json:
    return {"limit": {"rate": rate, "burst": rate, "per": "second", **({"inv": True} if over else {})}}


def _counter() -> Json:
    return {"counter": {"packets": 0, "bytes": 0}}


def _accept() -> Json:
    return {"accept": None}


def _drop() -> Json:
    return {"drop": None}
