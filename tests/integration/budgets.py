"""Where budgets are tried: a real gate of two workers, three servers, and sessions that share what they share.

Connections fall to either worker as the kernel likes. A policy a case, since what a policy or an owner has used up
is gone for an hour; the sessions of one case have owners of its own.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor
from tests.lab.wallclock import WallClock, wall_clock

__all__ = ["API", "RAW", "SECOND", "WILD", "Allow", "Crowd", "World", "budget_world", "fresh_owner"]

API, SECOND, WILD, RAW = "api.allowed.test", "second.allowed.test", "*.wild.allowed.test", "raw.allowed.test"
_owners = itertools.count()

Allow = Callable[[dict[str, int]], list[dict[str, Any]]]
"""Makes a policy's rules, the first one, for API, with its own `limits`."""


def fresh_owner() -> str:
    """Return an owner that nobody has used."""
    return f"owner-{next(_owners)}"


@dataclass
class World:
    gate: Gate
    server: Upstream
    two: Upstream
    raw: Upstream
    clock: WallClock

    def visitor(self, policy: str, owner: str | None = None) -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy, owner=owner or fresh_owner()))

    def crowd(self, policy: str) -> "Crowd":
        owner = fresh_owner()
        return Crowd(
            self.visitor(policy, owner), self.visitor(policy, owner), self.visitor(policy), self.visitor("free")
        )


@dataclass
class Crowd:
    """Who meets whom: a session with a neighbour of its owner, one of its policy alone, and a stranger to both."""

    flooder: Visitor
    same_owner: Visitor
    same_policy: Visitor
    victim: Visitor

    def shares(self, level: str) -> dict[str, bool]:
        """Say who must feel what the flooder has used up at a level."""
        return {
            "same_owner": level in ("policy", "owner"),
            "same_policy": level == "policy",
            "victim": False,
        }


@contextlib.contextmanager
def budget_world(policies: Callable[[Allow], dict[str, Any]]) -> Iterator[World]:
    """Run everything, with `policies` beside one, `free`, that has no budgets."""
    here = addresses("127.0.0.1")
    with (
        Authority() as ca,
        dns_server({API: here, SECOND: here, WILD: here, RAW: here}) as dns,
        upstream(ca=ca, names=(API, SECOND, WILD)) as server,
        upstream(ca=ca, names=(API,), alpn=("h2",)) as two,
        upstream(names=(RAW,)) as raw,
        wall_clock() as clock,
    ):

        def allow(limits: dict[str, int]) -> list[dict[str, Any]]:
            return [
                rule(API, ports=[server.port, two.port], websocket=True, limits=limits),
                rule(SECOND, port=server.port),
                rule(WILD, port=server.port),
                rule(RAW, port=raw.port, protocol="tcp"),
            ]

        config = configuration(dns=dns, ca=ca, workers=2)
        config["policies"] = {"free": {"allow": allow({})}, **policies(allow)}
        with gate(config, env=clock.env) as running:
            yield World(running, server, two, raw, clock)
