"""Log budgets on a real gate of two workers: what they have written together closes both."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.budgets import Allow, World, budget_world
from tests.lab.client import RawClient
from tests.lab.visitor import Visitor

LOG = 100_000
LEVELS = ("session", "policy", "owner")


def policies(allow: Allow) -> dict[str, Any]:
    return {
        f"log_bytes_per_hour-{level}": {"allow": allow({}), "budgets": {level: {"log_bytes_per_hour": LOG}}}
        for level in LEVELS
    }


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with budget_world(policies) as made:
        yield made


def written(visitor: Visitor) -> dict[str, int]:
    """Return how many bytes of log a session has caused, by chain."""
    found: dict[str, int] = {}
    for path in (visitor.gate.state / "audit").glob("gate-*/*.jsonl"):
        own = [line for line in path.read_bytes().splitlines() if visitor.session.id.encode() in line]
        found[path.parent.name] = found.get(path.parent.name, 0) + sum(map(len, own))
    return found


def write(world: World, visitor: Visitor, raw: RawClient, *, much: int) -> bool:
    """Cause about so many bytes of log on one connection; False when the log budget stopped it."""
    host, before = visitor.authority(world.server), sum(written(visitor).values())
    ended = len(visitor.log(type="http", phase="end"))

    def send(count: int) -> bool:
        replies = (raw.request("GET", "/bytes/1", host=host) for _ in range(count))
        return all(reply.status == 200 or reply.reason != "audit_budget" for reply in replies)

    send(10)
    visitor.wait_log(lambda lines: len(lines) >= ended + 10, type="http", phase="end")
    ten = sum(written(visitor).values()) - before
    return send(much * 10 // ten - 10)


@pytest.mark.parametrize("level", LEVELS)
def test_log_bytes_per_hour(world: World, level: str) -> None:
    crowd = world.crowd(f"log_bytes_per_hour-{level}")
    flooder = crowd.flooder
    # Either worker alone stays below the budget: what they have written together is what is over it.
    whole: dict[str, bool] = {}
    while len(whole) < 2:
        with flooder.tunnel(world.server) as raw:
            if (chain := whose(flooder, raw)) not in whole:
                whole[chain] = write(world, flooder, raw, much=int(LOG * 0.53))
    assert next(iter(whole.values()))
    everywhere_over(world, flooder)
    assert max(written(flooder).values()) < LOG
    assert 1 <= len(flooder.wait_log(type="incident", reason="audit_budget")) <= 2
    for name, felt in crowd.shares(level).items():
        if felt:
            everywhere_over(world, getattr(crowd, name))
        else:
            assert {getattr(crowd, name).get(world.server, "/bytes/1").reason for _ in range(4)} == {None}, name


def whose(visitor: Visitor, raw: RawClient) -> str:
    """Return the chain of the worker that a connection fell to."""
    client = "{}:{}".format(*raw.sock.getsockname())
    lines = visitor.wait_log(lambda lines: any(line["conn"]["client"] == client for line in lines), type="conn")
    chain: str = next(line["chain"] for line in lines if line["conn"]["client"] == client)
    return chain


def everywhere_over(world: World, visitor: Visitor) -> None:
    """Wait until no worker lets the session through: each hears of it within a second or two."""
    deadline, denied = time.monotonic() + 6, 0
    while denied < 6:
        reply = visitor.get(world.server, "/bytes/1")
        denied = 0 if reply.status == 200 else denied + 1
        assert reply.reason in (None, "audit_budget")
        assert time.monotonic() < deadline, written(visitor)
        # Each try is written too, and the tries alone must not fill a worker's own account.
        time.sleep(0.1)
