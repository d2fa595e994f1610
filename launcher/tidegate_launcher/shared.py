"""A wall inside one network namespace, around the users who share it with the gate: weaker than a link of their own.

Nothing but their uid tells them from the gate there, so that this holds only who cannot change it: no capability, no
set-uid program, and neither root's uid nor the gate's. Pure, as `wall`.

| of a user who is held | becomes |
|---|---|
| TCP to a listener of the gate on loopback | accepted |
| anything else, loopback too | dropped and counted; nobody watches it |
"""

import dataclasses
from collections.abc import Iterator
from typing import Final

from tidegate_launcher.wall import Json, Listener

__all__ = ["SHARED_TABLE", "Shared", "shared_transaction"]

SHARED_TABLE: Final = "tidegate-users-of-one-namespace"
"""Longer than the name of any link's table, so that no device can be called so."""


@dataclasses.dataclass(frozen=True)
class Shared:
    """Who is held, and the gate's listeners on loopback: `listeners` for TCP, `dns` for both."""

    users: tuple[int, ...]
    listeners: tuple[Listener, ...]
    dns: tuple[Listener, ...] = ()

    def __post_init__(self) -> None:
        if not self.users or 0 in self.users:
            raise ValueError("a user who is held by uid is there, and is not root")
        if not (self.listeners or self.dns):
            raise ValueError("the gate has no listener on loopback")


def shared_transaction(shared: Shared) -> Json:
    """Return what replaces the rules in one step."""
    table = {"table": {"family": "inet", "name": SHARED_TABLE}}
    return {"nftables": [{"add": table}, {"delete": table}, {"add": table}, *({"add": one} for one in _rules(shared))]}


def _rules(shared: Shared) -> Iterator[Json]:
    yield {
        "chain": {
            "family": "inet", "table": SHARED_TABLE, "name": "output",
            "type": "filter", "hook": "output", "prio": 10, "policy": "accept",
        }
    }  # fmt: skip
    for uid in shared.users:
        held = _equal({"meta": {"key": "skuid"}}, uid)
        for listener in (*shared.listeners, *shared.dns):
            yield _rule(f"user {uid} to {_name(listener)}", held, *_to(listener, "tcp"), {"accept": None})
        for listener in shared.dns:
            yield _rule(f"user {uid} asks {_name(listener)}", held, *_to(listener, "udp"), {"accept": None})
        yield _rule(f"user {uid}", held, {"counter": {"packets": 0, "bytes": 0}}, {"drop": None})


def _to(listener: Listener, protocol: str) -> tuple[Json, Json]:
    address, port = listener
    network = "ip" if address.version == 4 else "ip6"
    to_address: Json = {"payload": {"protocol": network, "field": "daddr"}}
    return _equal(to_address, str(address)), _equal({"payload": {"protocol": protocol, "field": "dport"}}, port)


def _equal(left: Json, right: object) -> Json:
    return {"match": {"op": "==", "left": left, "right": right}}


def _name(listener: Listener) -> str:
    address, port = listener
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _rule(comment: str, *expressions: Json) -> Json:
    place = {"family": "inet", "table": SHARED_TABLE, "chain": "output"}
    return {"rule": {**place, "comment": comment, "expr": list(expressions)}}
