"""The namespaces: the client has one neighbour, and everything is gone afterwards."""

import subprocess
from pathlib import Path

import pytest

from tests.lab.upstream import upstream
from tests.lab.world import GATE, INTERNET, why_no_world, world

pytestmark = [
    pytest.mark.network_namespace,
    pytest.mark.skipif(why_no_world() is not None, reason=f"no network namespaces here: {why_no_world()}"),
]


def curl(prefix: list[str], url: str) -> int:
    done = subprocess.run(
        [*prefix, "curl", "-s", "-m", "3", "-o", "/dev/null", url], env={"PATH": "/usr/bin:/bin:/usr/sbin"}
    )
    return done.returncode


def test_the_client_reaches_the_gate_and_nothing_behind_it():
    with world(addresses=["169.254.169.254"]) as place, upstream(address="0.0.0.0", port=80, bind=place.bind) as server:
        assert curl(place.gate_prefix, f"http://{INTERNET}/echo") == 0
        assert curl(place.gate_prefix, "http://169.254.169.254/echo") == 0
        assert server.connections == 2
        assert curl(place.client_prefix, f"http://{INTERNET}/echo") == 7  # no route
        assert curl(place.client_prefix, "http://169.254.169.254/echo") == 7
        assert curl(place.client_prefix, f"http://{GATE}/") == 7  # refused: nothing listens there
        assert server.connections == 2
        names = (place.client, place.gate, place.internet)
    assert not any(Path("/run/netns", name).exists() for name in names)
