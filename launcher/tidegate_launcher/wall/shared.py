"""A wall inside one network namespace, around whoever shares it with the gate: weaker than a link of its own.

Nothing but its uid tells a sandbox from the gate there, so that this holds only who cannot change it: no capability, no
set-uid program, and neither root's uid nor the gate's. Everybody else is held, whatever uid they have. Pure, as `wall`.

| a packet | becomes |
|---|---|
| of root's or the gate's user | accepted |
| of anybody else, TCP to a listener of the gate on loopback, or a question to its responder | accepted |
| of anybody else, other | dropped, counted, logged |
| of nobody's, such as group membership, which says what a sandbox chose | dropped, counted |
| that comes in from outside, of no connection that stands | dropped, counted: nobody here is to be called |

A socket that its program has left is nobody's too. What it still has to send goes on only where the connection was
accepted above, since no other can stand.
"""

import dataclasses
from collections.abc import Iterator
from typing import Final

from tidegate_launcher.wall.nflog import USERS_PREFIX
from tidegate_launcher.wall.rules import (
    Chain,
    Json,
    Listener,
    accept,
    among,
    at,
    counter,
    drop,
    equal,
    listener_name,
    meta,
    payload,
    replacing,
)

__all__ = ["SHARED_TABLE", "Shared", "shared_transaction"]

SHARED_TABLE: Final = "tidegate-users-of-one-namespace"
"""Longer than the name of any link's table, so that no device can be called so."""
_LAST_UID: Final = 2**32 - 2
_STANDS: Final[Json] = {"ct": {"key": "state"}}


@dataclasses.dataclass(frozen=True)
class Shared:
    """The gate's uid, and its listeners on loopback: `listeners` for TCP, `dns` for both."""

    gate: int
    listeners: tuple[Listener, ...]
    dns: tuple[Listener, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.gate <= _LAST_UID:
            raise ValueError("the gate has a user of its own")
        if not (self.listeners or self.dns):
            raise ValueError("the gate has no listener on loopback")


def shared_transaction(shared: Shared) -> Json:
    """Return what replaces the rules in one step."""
    return replacing(("inet",), SHARED_TABLE, (*_output(shared), *_input()))


def _output(shared: Shared) -> Iterator[Json]:
    output = Chain("inet", SHARED_TABLE, "output")
    yield output.made(type="filter", hook="output", prio=10, policy="accept")
    # Ranges, not «another than»: a packet that is nobody's matches neither way.
    others = [{"range": [1, shared.gate - 1]}, {"range": [shared.gate + 1, _LAST_UID]}]
    held = among(meta("skuid"), [one for one in others if one["range"][0] <= one["range"][1]])
    for listener in (*shared.listeners, *shared.dns):
        yield output.rule(f"to {listener_name(listener)}", held, *at(listener), accept())
    for listener in shared.dns:
        yield output.rule(f"asks {listener_name(listener)}", held, *at(listener, "udp"), accept())
    yield from output.dropped("everybody else", held, whose=USERS_PREFIX)
    yield output.rule("group membership ip", equal(meta("l4proto"), "igmp"), counter(), drop())
    reports = ["mld-listener-report", "mld-listener-done", "mld2-listener-report"]
    yield output.rule("group membership ip6", among(payload("icmpv6", "type"), reports), counter(), drop())


def _input() -> Iterator[Json]:
    entry = Chain("inet", SHARED_TABLE, "input")
    yield entry.made(type="filter", hook="input", prio=10, policy="accept")
    yield entry.rule("loopback", equal(meta("iifname"), "lo"), accept())
    yield entry.rule("an answer", among(_STANDS, ["established", "related"]), accept())
    neighbours = ["nd-neighbor-solicit", "nd-neighbor-advert", "nd-router-advert"]
    yield entry.rule("neighbour discovery", among(payload("icmpv6", "type"), neighbours), accept())
    yield entry.rule("nobody is called", counter(), drop())
