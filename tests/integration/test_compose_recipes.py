"""The recipes of docs/recipes/compose, each run as it is shipped: what works in it, and what the probe finds open."""

import json
from collections.abc import Iterator

import pytest

from tests.lab.engine import ROOT, Engine, Stack, why_no_engine
from tests.lab.sidecar import API, CODE, INDEX, OTHER, Outside, probe_card, recipe

pytestmark = [
    pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}"),
    pytest.mark.timeout(300),
]

RECIPES = ROOT / "docs" / "recipes" / "compose"
GATE = "172.30.9.2"


@pytest.fixture(scope="module")
def wall_image(docker: Engine) -> None:
    docker.build("tidegate-wall", target="wall", tools="lab-sandbox")


@pytest.fixture(scope="module", params=["explicit", "gvisor", "shared", "transparent"])
def stack(request: pytest.FixtureRequest, docker: Engine, beyond: Outside, wall_image: None) -> Iterator[Stack]:
    with recipe(docker, beyond, RECIPES / request.param / "compose.yaml", project=request.param) as made:
        made.up()
        yield made


def test_git_pip_and_curl_work(stack: Stack) -> None:
    script = (
        f"set -e; curl -sS -m 20 https://{API}/open/hi; cd /tmp; git clone -q https://{CODE}/acme/demo.git; ls demo\n"
        f"pip install -q --target /tmp/lib --no-cache-dir --index-url https://{INDEX}/simple tidy-demo; ls /tmp/lib"
    )
    done = stack.sh("sandbox", script, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello")
    assert "file1.txt" in done.stdout
    assert "tidy_demo.py" in done.stdout


def test_another_name_leads_nowhere(stack: Stack, beyond: Outside) -> None:
    done = stack.sh("sandbox", f"curl -sS -m 20 https://{OTHER}/")
    assert done.returncode == 6 or json.loads(done.stdout)["reason"] == "not_in_allowlist", done
    assert beyond.other.connections == 0
    assert beyond.dns.count(OTHER) == 0


def test_the_probe_finds_nothing_open(stack: Stack) -> None:
    card = probe_card(stack, "sandbox")
    assert [way for way in card["ways"] if way["state"] == "open"] == []
    assert card["count"]["closed"] > 90
