"""Nothing is open behind a wall whose gate has fewer ways in, and what can be tried is tried."""

import time

import pytest

from tests.lab.walled import walled
from tests.lab.world import why_no_world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

MOST_SECONDS = 30.0


@pytest.mark.parametrize(
    ("ways_in", "lanes"),
    [
        pytest.param(("http",), {"tunnel"}, id="a proxy alone"),
        pytest.param(("tls", "dns"), {"by name"}, id="names alone"),
        pytest.param(("transparent", "dns"), {"any address", "by name"}, id="captured alone"),
    ],
)
def test_nothing_is_open_behind_a_wall_with_fewer_ways_in(ways_in: tuple[str, ...], lanes: set[str]) -> None:
    with walled(ways_in=ways_in) as place:
        begun = time.monotonic()
        code, report = place.probe("--flood", *place.through_gate())
        assert time.monotonic() - begun < MOST_SECONDS
    assert (code, report["count"]["open"]) == (0, 0), report
    smuggled = [way for way in report["ways"] if way["kind"] == "smuggling" and way["state"] == "closed"]
    assert {way["way"].rpartition(", ")[2] for way in smuggled} == lanes, "what could be tried was"
