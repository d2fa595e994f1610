"""`tidegate audit verify` over a gate's life: right after `up`, while it serves, after deaths and after its end."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.up import children, ready, until
from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream

NAME = "api.allowed.test"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[dict[str, Any], Upstream]]:
    """A configuration, and the server that it lets through."""
    with Authority() as ca, dns_server({NAME: addresses("127.0.0.1")}) as dns, upstream(ca=ca, names=(NAME,)) as server:
        yield configuration(allow=[rule(NAME, port=server.port)], dns=dns, ca=ca), server


def verified(one: Gate) -> dict[str, dict[str, Any]]:
    """Have the log verified, by the public key alone; return its chains."""
    done = one.cli("audit", "verify", "--state-dir", str(one.state), "-o", "json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {chain["chain"]: chain for chain in json.loads(done.stdout)["chains"]}


def get(one: Gate, server: Upstream) -> bool:
    """Send one request through the gate; return whether the server answered it."""
    command = ["curl", "-sSf", "-m", "20", "--cacert", str(one.state / "ca.pem"), "-x", one.session().proxy_url]
    done = subprocess.run([*command, f"https://{NAME}:{server.port}/echo"], capture_output=True, timeout=30)
    return done.returncode == 0


def test_the_log_is_whole_at_every_moment(servers: tuple[dict[str, Any], Upstream]) -> None:
    config, server = servers
    with gate(config) as one:
        born = verified(one)
        assert sorted(chain["role"] for chain in born.values()) == ["gate", "keeper"]
        assert all(chain["signed"] > 0 for chain in born.values()), "each is signed at birth"
        assert get(one, server)
        verified(one)

        worker = children(one)["worker"][0]
        chain = next(name for name, found in born.items() if found["role"] == "gate")
        os.kill(worker, signal.SIGKILL)
        until(lambda: worker not in children(one)["worker"] and ready(one))
        verified(one)
        one.wait_audit(lambda found: chain in dead(found), type="writer")
        assert verified(one)[chain]["state"] == "ended"
        assert get(one, server)

        keeper = children(one)["keeper"][0]
        os.kill(keeper, signal.SIGKILL)
        until(lambda: keeper not in children(one)["keeper"] and ready(one))
        until(lambda: get(one, server))  # the worker finds the new keeper by itself
        verified(one)

        assert one.terminate() == 0
        ended = verified(one)
        assert len(ended) == 4
        assert [found["state"] for found in ended.values() if found["role"] == "gate"] == ["ended", "ended"]
        (last,) = [found for name, found in ended.items() if found["role"] == "gate" and name != chain]
        assert last["signed"] == last["lines"], "to its very last line"


def dead(lines: list[dict[str, Any]]) -> set[str]:
    """Return the chains that the keeper has booked as dead."""
    return {line["writer"]["chain"] for line in lines if line["writer"]["act"] == "dead"}
