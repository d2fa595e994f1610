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

from tidegate_launcher.rules import (
    Chain,
    Json,
    Listener,
    accept,
    at,
    counter,
    drop,
    equal,
    listener_name,
    meta,
    replacing,
)

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
    return replacing(("inet",), SHARED_TABLE, _rules(shared))


def _rules(shared: Shared) -> Iterator[Json]:
    output = Chain("inet", SHARED_TABLE, "output")
    yield output.made(type="filter", hook="output", prio=10, policy="accept")
    for uid in shared.users:
        held = equal(meta("skuid"), uid)
        for listener in (*shared.listeners, *shared.dns):
            yield output.rule(f"user {uid} to {listener_name(listener)}", held, *at(listener), accept())
        for listener in shared.dns:
            yield output.rule(f"user {uid} asks {listener_name(listener)}", held, *at(listener, "udp"), accept())
        yield output.rule(f"user {uid}", held, counter(), drop())
