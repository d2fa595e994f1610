"""Invariant 8: reload is atomic.

A bad file changes nothing and is reported; a good one holds at once, also for what lives.
"""

import copy
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.lab.certs import Authority
from tests.lab.client import RawReply, fetch, tunnel
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, Session, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream

A, B = "a.reload.test", "b.reload.test"


@dataclass
class World:
    gate: Gate
    session: Session
    server: Upstream
    config: dict[str, Any]

    def get(self, name: str, path: str = "/status/200") -> RawReply:
        return fetch(self.gate, name, self.server.port, path, token=self.session.token, ca=self.gate.state / "ca.pem")

    def allow(self, *names: str) -> dict[str, Any]:
        config = copy.deepcopy(self.config)
        config["policies"]["default"]["allow"] = [rule(name, port=self.server.port) for name in names]
        return config


@pytest.fixture
def world() -> Iterator[World]:
    with (
        Authority() as ca,
        dns_server({"*.reload.test": addresses("127.0.0.1")}) as dns,
        upstream(ca=ca, names=(A, B)) as server,
        gate(configuration(allow=[rule(A, port=server.port)], dns=dns, ca=ca)) as running,
    ):
        config = yaml.safe_load(running.config_file.read_text())
        yield World(running, running.session(), server, config)


def test_a_bad_file_changes_nothing_and_is_reported(world: World) -> None:
    bad: list[Any] = ["version: 1\npolicies: [", "policies: {}", {**world.config, "nonsense": 1}]
    wider = world.allow(A, B)
    wider["policies"]["default"]["allow"].append({"host": "*", "ports": [1]})
    for text in [*bad, wider]:
        status, answer = world.gate.reload(text)
        assert status >= 400, answer
        assert world.get(A).status == 200
        assert world.get(B).reason == "not_in_allowlist", "not even the good half of a bad file holds"
    assert world.gate.admin("GET", "/readyz")[1]["warnings"]


def test_a_good_file_holds_at_once_and_for_what_lives(world: World) -> None:
    ca = world.gate.state / "ca.pem"
    with tunnel(world.gate, A, world.server.port, token=world.session.token, ca=ca) as raw:
        assert raw.request("GET", "/status/200", host=world.server.authority).status == 200
        began = time.monotonic()
        assert world.gate.reload(world.allow(B))[0] < 300
        assert raw.closed(), "the live tunnel of a name that is no longer allowed"
        assert time.monotonic() - began < 5
    assert world.get(A).reason == "not_in_allowlist"
    assert world.get(B).status == 200


def test_no_request_is_dropped_and_none_sees_half_a_policy(world: World) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            seen.append(world.get(A).status)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        for names in itertools.cycle(((A, B), (A,))):
            assert world.gate.reload(world.allow(*names))[0] < 300
            if len(seen) >= 12 or time.monotonic() > deadline:
                break
    finally:
        stop.set()
        thread.join()
    assert len(seen) >= 12
    assert set(seen) == {200}
