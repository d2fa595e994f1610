"""The second line behind a fallen gate: where the gate's own user may send, whatever runs as it.

Two faults are needed to reach metadata: one in the gate, and one here. Pure, as `wall`.

| in the order of the rules | becomes |
|---|---|
| the gate's user's packet | goes through the rules below |
| any other, the kernel's own too, which is nobody's | accepted: it is not ours to judge |
| an answer on a connection that stands | accepted |
| a question to a server of the resolver's | accepted |
| to a metadata network | dropped, counted, logged |
| to a network that a rule of the policy names | accepted |
| to any other special network | dropped, counted, logged |
| to the rest of the world | accepted: the policy is the gate's |
"""

import dataclasses
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

from tidegate.policy.address_table import GLOBAL_UNICAST_V6, ROWS
from tidegate_launcher.nflog import GATE_USER_PREFIX
from tidegate_launcher.wall import LOG_GROUP, Json

__all__ = ["LEASH_TABLE", "Leash", "leash_transaction"]

LEASH_TABLE: Final = "tidegate-the-user-of-the-gate"
"""Longer than the name of any link's table, so that no device can be called so."""

type Network = IPv4Network | IPv6Network


@dataclasses.dataclass(frozen=True)
class Leash:
    """Who is held, the servers that it may ask, and the special networks that rules name."""

    uid: int
    servers: tuple[tuple[IPv4Address | IPv6Address, int], ...]
    named: tuple[Network, ...]


def leash_transaction(leash: Leash) -> Json:
    """Return what replaces the leash's rules in one step."""
    table = {"table": {"family": "inet", "name": LEASH_TABLE}}
    return {"nftables": [{"add": table}, {"delete": table}, {"add": table}, *({"add": one} for one in _rules(leash))]}


def _rules(leash: Leash) -> Iterator[Json]:
    place = {"family": "inet", "table": LEASH_TABLE}
    yield {"chain": {**place, "name": "held"}}
    hook = {"type": "filter", "hook": "output", "prio": 0, "policy": "accept"}
    yield {"chain": {**place, "name": "output", **hook}}
    # What is to be judged is named, not what is not: a packet of the kernel's own has no user to compare.
    own: Json = {"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": leash.uid}}
    whose = {**place, "chain": "output", "comment": "the gate's user", "expr": [own, {"jump": {"target": "held"}}]}
    yield {"rule": whose}
    stands: Json = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}
    yield _rule("an answer", stands, {"accept": None})
    for address, port in dict.fromkeys(leash.servers):
        for protocol in ("udp", "tcp"):
            to_port: Json = {"payload": {"protocol": protocol, "field": "dport"}}
            asked: Json = {"match": {"op": "==", "left": to_port, "right": port}}
            host = ip_network(f"{address}/{address.max_prefixlen}")
            yield _rule(f"resolver {address} {protocol}", *_to([host]), asked, {"accept": None})
    yield from _dropped("metadata", _rows("metadata"))
    yield from _each("named by a rule", leash.named, {"accept": None})
    yield from _dropped("special", _rows("special"))
    outside: Json = {"match": {"op": "!=", "left": _daddr(6), "right": _prefix(ip_network(str(GLOBAL_UNICAST_V6)))}}
    yield from _drop("special ip6, the rest", outside)


def _rows(kind: str) -> list[Network]:
    return [ip_network(text) for text, told, _ in ROWS if told == kind]


def _dropped(comment: str, networks: Sequence[Network]) -> Iterator[Json]:
    for version in (4, 6):
        some = [network for network in networks if network.version == version]
        if some:
            yield from _drop(f"{comment} {'ip' if version == 4 else 'ip6'}", *_to(some))


def _drop(name: str, *match: Json) -> Iterator[Json]:
    limit: Json = {"limit": {"rate": 20, "burst": 20, "per": "second"}}
    log: Json = {"log": {"group": LOG_GROUP, "prefix": f"{GATE_USER_PREFIX}{name} ", "snaplen": 128}}
    yield _rule(f"{name}, logged", *match, limit, log)
    yield _rule(name, *match, _counter(), {"drop": None})


def _each(comment: str, networks: Sequence[Network], *then: Json) -> Iterator[Json]:
    for version in (4, 6):
        some = [network for network in networks if network.version == version]
        if some:
            yield _rule(f"{comment} {'ip' if version == 4 else 'ip6'}", *_to(some), *then)


def _to(networks: Sequence[Network]) -> tuple[Json]:
    right = _prefix(networks[0]) if len(networks) == 1 else {"set": [_prefix(network) for network in networks]}
    return ({"match": {"op": "==", "left": _daddr(networks[0].version), "right": right}},)


def _daddr(version: int) -> Json:
    return {"payload": {"protocol": "ip" if version == 4 else "ip6", "field": "daddr"}}


def _prefix(network: Network) -> Json | str:
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}


def _counter() -> Json:
    return {"counter": {"packets": 0, "bytes": 0}}


def _rule(comment: str, *expressions: Json) -> Json:
    place = {"family": "inet", "table": LEASH_TABLE, "chain": "held"}
    return {"rule": {**place, "comment": comment, "expr": list(expressions)}}
