"""The recipes of docs/recipes/compose, each run as it is shipped: what works in it, and what the probe finds open."""

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.engine import ROOT, Engine, Stack, why_no_engine
from tests.lab.sidecar import API, CODE, HOME, INDEX, OTHER, Outside, assert_closed, host_hears, probe_card, recipe

pytestmark = [
    pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}"),
    pytest.mark.timeout(300),
]

RECIPES = ROOT / "docs" / "recipes" / "compose"
GATE = "172.30.9.2"
HALVES = ("gate", "keeper")


@pytest.fixture(scope="module")
def wall_image(docker: Engine) -> None:
    docker.build("tidegate-wall", target="wall", tools="lab-sandbox")


@pytest.fixture(scope="module", params=["explicit", "gvisor", "shared", "transparent"])
def stack(request: pytest.FixtureRequest, docker: Engine, beyond: Outside, wall_image: None) -> Iterator[Stack]:
    with recipe(docker, beyond, RECIPES / request.param / "compose.yaml", project=request.param) as made:
        if request.param == "shared":  # the first thing that it does: to try another way
            text = made.file.read_text()
            made.file.write_text(text.replace(". /tidegate/env && exec sleep infinity", _SHARED_WORK))
        made.up()
        yield made


def test_every_recipe_is_listed_and_run() -> None:
    """All but «several», which has tests of its own."""
    found = {path.parent.name for path in RECIPES.glob("*/compose.yaml")}
    assert found == {"explicit", "gvisor", "several", "shared", "transparent"}
    index = (RECIPES / "README.md").read_text()
    assert all(f"]({name}/compose.yaml)" in index for name in found)


def test_git_pip_and_curl_work(stack: Stack) -> None:
    script = (
        f"set -e; curl -sS -m 20 https://{API}/open/hi; git clone -q https://{CODE}/acme/demo.git; ls demo\n"
        f"pip install -q --no-cache-dir --index-url https://{INDEX}/simple tidy-demo\n"
        "python3 -c 'import tidy_demo; print(tidy_demo.__file__)'"
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


_WAYS_IN = {
    "explicit": (f"http://{GATE}:8080", ["tunnel"]),
    "gvisor": (None, ["by name"]),
    "shared": ("http://127.0.0.1:8080", ["tunnel"]),
    "transparent": (None, ["by name", "any address"]),
}
"""Of each recipe the proxy that its sandbox has, and the ways into its gate."""


def test_the_probe_finds_nothing_open(stack: Stack) -> None:
    proxy, lanes = _WAYS_IN[stack.project]
    assert_closed(probe_card(stack, "sandbox", proxy=proxy), *lanes)


def test_it_dials_nobody_itself(stack: Stack, beyond: Outside) -> None:
    """Whatever it dials either fails or is the gate's answer."""
    before = beyond.server.connections
    for url in (f"http://{HOME}/", "http://1.1.1.1/", "http://169.254.169.254/"):
        done = stack.run_in("sandbox", "curl", "-sS", "-m", "1", "--noproxy", "*", url)
        assert done.returncode in (7, 28) or "urn:tidegate:reason" in done.stdout, (url, done)
    assert beyond.server.connections == before
    assert host_hears(stack, "sandbox") == []


def test_the_kind_of_sandbox(stack: Stack, request: pytest.FixtureRequest) -> None:
    """What makes the recipe what it is, is there."""
    match stack.project:
        case "gvisor":
            assert "gVisor" in stack.run_in("sandbox", "dmesg").stdout
        case "explicit":
            assert f"http://{GATE}:8080" in stack.sh("sandbox", "printf %s $HTTPS_PROXY").stdout
            assert stack.run_in("sandbox", "curl", "-sS", "-m", "5", f"https://{API}/open/hi").returncode == 6
        case "transparent":
            _is_transparent(stack)
        case "shared":
            _holds_who_shares(stack)


def _is_transparent(stack: Stack) -> None:
    """An address of its own choice is not dialled, another server's DNS is the gate's, the wall is held and watched."""
    done = stack.sh("sandbox", f"curl -sS -m 10 --resolve {API}:443:198.51.100.7 https://{API}/open/hi")
    assert done.stdout == "hello", done.stderr
    done = stack.sh("sandbox", "curl -sS -m 10 http://1.1.1.1/")
    assert json.loads(done.stdout)["reason"] == "ip_literal"
    helper = stack.engine.inspect(stack.container("route"))["State"]
    assert (helper["ExitCode"], helper["Running"]) == (0, False)
    for whose in (["--device", _device(stack)], ["--gate"]):
        checked = stack.run_in("wall", "tidegate", "wall", "check", *whose)
        assert "whole" in checked.stdout + checked.stderr
    assert re.search(r"CapEff:\s0+\n", stack.run_in("sandbox", "cat", "/proc/self/status").stdout)
    flush = (
        "exec",
        wall := stack.container("wall"),
        "nft",
        "flush",
        "chain",
        "inet",
        f"tidegate-{_device(stack)}",
        "closed",
    )
    _is_watched(stack, "wall", flush, ("restart", "--time", "1", wall))
    _outlives_restarts(stack)


def _is_watched(stack: Stack, watch: str, damage: tuple[str, ...], mend: tuple[str, ...]) -> None:
    """What is dropped comes into the log; without the watch neither half is ready, nor with a rule taken away."""
    stack.run_in("sandbox", "python3", "-c", _DATAGRAM)
    _until(stack, lambda: "wall_dropped" in stack.run_in("keeper", "tidegate", "log", "-o", "json").stdout)
    container = stack.container(watch)
    for broken, mended in ((("pause", container), ("unpause", container)), (damage, mend)):
        stack.engine.docker(*broken)
        for half in HALVES:
            _until(stack, lambda half=half: stack.run_in(half, "tidegate", "health").returncode == 1)
        stack.engine.docker(*mended)
        for half in HALVES:
            _until(stack, lambda half=half: stack.run_in(half, "tidegate", "health").returncode == 0)


_DATAGRAM = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'secret', ('1.1.1.1', 443))"


def _until(stack: Stack, holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, {half: _health(stack, half) for half in HALVES}
        time.sleep(0.2)


def _outlives_restarts(stack: Stack) -> None:
    """The gate may fall and come back: its wall stands. The namespace itself may, and all of it comes back."""

    def walled() -> bool:
        told = stack.sh("sandbox", "curl -sS -m 5 http://1.1.1.1/").stdout
        return bool(told) and json.loads(told)["reason"] == "ip_literal"

    stack.engine.docker("kill", stack.container("gate"))
    assert stack.run_in("sandbox", "curl", "-sS", "-m", "2", "http://1.1.1.1/").returncode in (7, 28)
    stack.engine.docker("start", stack.container("gate"))
    stack.wait_healthy("gate")
    assert walled()
    assert stack.sh("sandbox", f"curl -sS -m 10 https://{API}/open/hi").stdout == "hello"
    # By the engine alone: the gate is left in a namespace that has no link any more, and says so.
    stack.engine.docker("restart", "--time", "1", stack.container("net"))
    _until(stack, lambda: f"no device has {GATE} any more" in _health(stack, "gate"))
    assert stack.run_in("sandbox", "curl", "-sS", "-m", "2", "http://1.1.1.1/").returncode in (7, 28)
    stack.engine.docker("restart", "--time", "1", stack.container("gate"))
    _until(stack, lambda: stack.run_in("gate", "tidegate", "health").returncode == 0 and walled())


def _health(stack: Stack, half: str) -> str:
    done = stack.run_in(half, "tidegate", "health")
    return done.stdout + done.stderr


def _device(stack: Stack) -> str:
    return stack.logs("wall").partition("the wall stands: ")[2].partition(",")[0]


def _holds_who_shares(stack: Stack) -> None:
    """Not the engine's resolver either; and when everything starts anew, in whatever order, the rule stands first."""
    question = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); "
    question += "s.sendto(bytes.fromhex('00070100000100000000000003617069077061727472657204746573740000010001'), "
    question += "('127.0.0.11', 53)); print(s.recv(99))"
    assert "PermissionError" in stack.run_in("sandbox", "python3", "-c", question).stderr
    told = "users of the gate's namespace: everybody else"
    _until(stack, lambda: told in stack.run_in("keeper", "tidegate", "log", "-o", "json").stdout)
    flush = (
        "exec",
        net := stack.container("net"),
        "nft",
        "flush",
        "chain",
        "inet",
        "tidegate-users-of-one-namespace",
        "output",
    )
    _is_watched(stack, "watch", flush, ("exec", net, "tidegate", "wall", "shared"))
    for uid in ("1000", "64731", "65534"):  # whatever user it is given: all are held but the gate's and root
        dial = (
            "exec",
            "--user",
            uid,
            stack.container("sandbox"),
            "curl",
            "-sS",
            "-m",
            "2",
            "--noproxy",
            "*",
            "1.1.1.1",
        )
        assert stack.engine.docker(*dial, check=False).returncode in (7, 28), uid
    for service in ("net", "sandbox", "sandbox"):
        stack.engine.docker("restart", "--time", "1", stack.container(service))
        if service == "sandbox":  # its scratch, and the word of its first attempt, are new with it
            first = "until [ -s /tmp/first ]; do sleep 0.1; done; cat /tmp/first"
            assert stack.run_in("sandbox", "sh", "-c", first).stdout in ("7\n", "28\n")
    # The gate follows into the new network; the watch, left in the old one, does not speak for it.
    stack.engine.docker("restart", "--time", "1", stack.container("gate"))
    _until(stack, lambda: "looks at another network namespace" in _health(stack, "gate"))
    stack.engine.docker("restart", "--time", "1", stack.container("watch"))
    _until(stack, lambda: stack.run_in("gate", "tidegate", "health").returncode == 0)


_SHARED_WORK = """curl -sS -m 1 -o /dev/null --noproxy '*' http://1.1.1.1/; echo $$? >/tmp/first; exec sleep infinity"""
