"""A wall inside one network namespace, around whoever shares it with the gate: weaker than a link of its own.

Nothing but its uid tells a sandbox from the gate there, so that this holds only who cannot change it: no capability, no
set-uid program, and neither root's uid nor the gate's. Everybody else is held, whatever uid they have. Pure, as `wall`.

| a packet, in the order of the rules | becomes |
|---|---|
| from or to a loopback address, on its way out by another device | dropped, counted: a socket may choose its device |
| of root's or the gate's user | accepted; its connection is known from then on |
| of anybody else, any | its connection is not known any more, whose ever it was: a port can change hands |
| of anybody else, TCP to a listener of the gate on loopback, or a question to its responder | accepted |
| of anybody else, other | dropped, counted, logged |
| of nobody's, by MPTCP | dropped, counted |
| of nobody's, other, on loopback or TCP of a known connection, or neighbour discovery | accepted |
| of nobody's, other: what a program left to send, group membership, which says what it chose | dropped, counted |
| that comes in from outside and would begin a connection, or is of none that stands | dropped, counted |

A socket that its program has left is nobody's, and still sends what it holds: so nobody's packets go on only where root
or the gate has sent before, and nobody else since. What MPTCP begins is the kernel's own as well, on loopback too: in
older kernels each connection, in newer ones those to addresses that the peer announces (RFC 8684). From outside nobody
here is to be called, not even where a connection of the gate's was begun in vain: two can open one at once (RFC 9293
section 3.5).
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
    mptcp,
    payload,
    replacing,
    unequal,
)

__all__ = ["SHARED_TABLE", "Shared", "shared_transaction"]

SHARED_TABLE: Final = "tidegate-users-of-one-namespace"
"""Longer than the name of any link's table, so that no device can be called so."""
_LAST_UID: Final = 2**32 - 2
_LOOPBACK: Final[Json] = {"prefix": {"addr": "127.0.0.0", "len": 8}}
_MARK: Final = 0x7469
"""The mark of connections in which root or the gate has sent."""
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
    out = unequal(meta("oifname"), "lo")
    for word, network in (("ip", _LOOPBACK), ("ip6", "::1")):
        for end in ("saddr", "daddr"):
            stray = equal(payload(word, end), network)
            yield output.rule(f"loopback on another device, {word} {end}", out, stray, counter(), drop())
    ours = among(meta("skuid"), sorted({0, shared.gate}))
    yield output.rule("a connection of root's or the gate's", ours, out, _known(_MARK), accept())
    yield output.rule("root's or the gate's", ours, accept())
    # Ranges, not «another than»: a packet that is nobody's matches neither way.
    others = [{"range": [1, shared.gate - 1]}, {"range": [shared.gate + 1, _LAST_UID]}]
    held = among(meta("skuid"), [one for one in others if one["range"][0] <= one["range"][1]])
    yield output.rule("no connection of theirs is known", held, _known(0))
    here = equal(meta("oifname"), "lo")
    for listener in (*shared.listeners, *shared.dns):
        yield output.rule(f"to {listener_name(listener)}", here, held, *at(listener), accept())
    for listener in shared.dns:
        yield output.rule(f"asks {listener_name(listener)}", here, held, *at(listener, "udp"), accept())
    yield from output.dropped("everybody else", held, whose=USERS_PREFIX)
    yield from _nobodys(output)


def _nobodys(output: Chain) -> Iterator[Json]:
    yield output.rule("nobody's by MPTCP", mptcp(), counter(), drop())
    yield output.rule("nobody's on loopback", equal(meta("oifname"), "lo"), accept())
    # TCP alone: what the kernel says for the gate by ICMP, a sandbox could have it say, by the ports that it takes.
    tcp = equal(meta("l4proto"), "tcp")
    yield output.rule("nobody's of a known connection", tcp, equal({"ct": {"key": "mark"}}, _MARK), accept())
    neighbours = ["nd-neighbor-solicit", "nd-neighbor-advert", "nd-router-solicit"]
    yield output.rule("neighbour discovery", among(payload("icmpv6", "type"), neighbours), accept())
    yield output.rule("nobody's", counter(), drop())


def _known(mark: int) -> Json:
    return {"mangle": {"key": {"ct": {"key": "mark"}}, "value": mark}}


def _input() -> Iterator[Json]:
    entry = Chain("inet", SHARED_TABLE, "input")
    yield entry.made(type="filter", hook="input", prio=10, policy="accept")
    yield entry.rule("loopback", equal(meta("iifname"), "lo"), accept())
    flags: Json = {"&": [payload("tcp", "flags"), ["fin", "syn", "rst", "ack"]]}
    yield entry.rule("nobody is called by TCP", equal(flags, "syn"), counter(), drop())
    yield entry.rule("an answer", among(_STANDS, ["established", "related"]), accept())
    neighbours = ["nd-neighbor-solicit", "nd-neighbor-advert", "nd-router-advert"]
    yield entry.rule("neighbour discovery", among(payload("icmpv6", "type"), neighbours), accept())
    yield entry.rule("nobody is called", counter(), drop())
