"""Several sandboxes beside one gate: what one may, no other may; none reaches, relays through or speaks as another."""

import contextlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.engine import ROOT, Engine, Stack, why_no_engine
from tests.lab.gate import environment, tidegate_command
from tests.lab.sidecar import API, CODE, INDEX, Outside, assert_closed, policy, probe_card, recipe

pytestmark = [
    pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}"),
    pytest.mark.timeout(300),
]

SEVERAL = ROOT / "docs" / "recipes" / "compose" / "several"
NAMES = ("agent-1", "agent-2", "agent-3")
PAIRS = [pytest.param(one, other, id=f"{one} to {other}") for one, other in itertools.permutations(NAMES, 2)]
ADDRESS = {name: f"172.30.0.{3 + 8 * number}" for number, name in enumerate(NAMES)}
LEG = {name: f"172.30.0.{2 + 8 * number}" for number, name in enumerate(NAMES)}
ALLOWED = dict(zip(NAMES, (API, CODE, INDEX), strict=True))
PATH = {"agent-1": "/open/hi", "agent-2": "/acme/demo.git/info/refs?service=git-upload-pack", "agent-3": "/simple/x/"}


def _only(name: str) -> dict[str, Any]:
    whole = policy()
    return {"allow": [rule for rule in whole["allow"] if rule["host"] == ALLOWED[name] or rule["host"] == CODE]}


@pytest.fixture(scope="module")
def stack(docker: Engine, beyond: Outside) -> Iterator[Stack]:
    # Every one may clone, with a placeholder of its own; each has one more name, or none, that is its alone.
    policies = {kind: _only(name) for kind, name in zip(("read", "clone", "nothing"), NAMES, strict=True)}
    with recipe(docker, beyond, SEVERAL / "compose.yaml", project="several", policies=policies, holders=NAMES) as made:
        made.up()
        yield made


def test_the_recipe_is_what_the_generator_writes(tmp_path: Path) -> None:
    command = tidegate_command("compose", "gen", "3", "--output", str(tmp_path))
    subprocess.run(command, check=True, env=environment(), capture_output=True, timeout=30)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "tidegate.yaml":
            assert path.read_text() == (SEVERAL / path.relative_to(tmp_path)).read_text()
    written, shipped = (
        yaml.safe_load((folder / "gate" / "tidegate.yaml").read_text()) for folder in (tmp_path, SEVERAL)
    )
    assert written["listen"] == shipped["listen"]


@pytest.mark.parametrize("name", NAMES)
def test_each_has_what_its_policy_gives(stack: Stack, name: str) -> None:
    for other in NAMES:
        done = stack.sh(
            name, f"curl -sS -m 10 -o /dev/null -w '%{{http_code}}' 'https://{ALLOWED[other]}{PATH[other]}'"
        )
        may = other in (name, "agent-2")
        assert done.returncode == (0 if may else 6), (other, done)


@pytest.mark.parametrize("name", NAMES)
def test_the_probe_finds_nothing_open(stack: Stack, name: str) -> None:
    assert_closed(probe_card(stack, name, allowed=f"{ALLOWED[name]}{PATH[name]}"), "by name")


_LISTEN = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as listener:
    listener.settimeout(6)
    listener.accept()
    print("REACHED")
"""


@contextlib.contextmanager
def _listener(stack: Stack, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a sandbox listen, and say so once it was reached."""
    command = [*stack.engine_command("exec", stack.container(name)), "python3", "-c", _LISTEN]
    with subprocess.Popen(command, env=stack.engine.environment, stdout=subprocess.PIPE) as far:
        stack.run_in(name, "sh", "-c", "until grep -q :1B58 /proc/net/tcp; do sleep 0.05; done")
        yield far
        far.kill()


def test_a_listener_in_a_sandbox_is_there_to_be_reached(stack: Stack) -> None:
    with _listener(stack, "agent-1") as far:
        dial = f"import socket; socket.create_connection(('{ADDRESS['agent-1']}', 7000), 3)"
        assert stack.run_in("gate", "/opt/tidegate/bin/python3", "-c", dial).returncode == 0
        assert far.communicate(timeout=10)[0] == b"REACHED\n"


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_none_reaches_another(stack: Stack, one: str, other: str) -> None:
    with _listener(stack, other) as far:
        for where in (f"{ADDRESS[other]}:7000", f"{LEG[other]}:443", f"{LEG[other]}:80"):
            done = stack.run_in(one, "curl", "-sS", "-m", "1", f"http://{where}/")
            assert done.returncode in (7, 28), (where, done)
        far.kill()
        assert far.communicate()[0] == b""


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_none_relays_through_the_gate_to_another(stack: Stack, one: str, other: str) -> None:
    """Neither to another's address, nor by the leg that it shares to a name that is another's."""
    done = stack.sh(one, f"curl -sS -m 5 --connect-to ::{LEG[one]}:80 http://{ADDRESS[other]}:7000/")
    assert json.loads(done.stdout)["reason"] in ("ip_literal", "blocked_address", "port_not_allowed"), done
    if other != "agent-2":
        reached = f"--connect-to ::{LEG[one]}:443 https://{ALLOWED[other]}{PATH[other]}"
        assert json.loads(stack.sh(one, f"curl -sS -m 5 {reached}").stdout)["reason"] == "not_in_allowlist"


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_none_speaks_as_another(stack: Stack, one: str, other: str) -> None:
    """Not from its address, which is no address of its own; not with its placeholder, which is nobody's here."""
    done = stack.sh(one, f"curl -sS -m 5 --interface {ADDRESS[other]} http://{LEG[one]}/")
    assert done.returncode == 45, done
    placeholder = stack.sh(other, "printf %s $CODE_TOKEN").stdout
    assert placeholder
    assert placeholder != stack.sh(one, "printf %s $CODE_TOKEN").stdout
    login = f"-u x-access-token:{placeholder} https://{CODE}{PATH['agent-2']}"
    assert json.loads(stack.sh(one, f"curl -sS -m 5 {login}").stdout)["reason"] == "unknown_placeholder"


def test_the_log_tells_them_apart(stack: Stack) -> None:
    done = stack.run_in("keeper", "tidegate", "log", "-o", "json")
    seen = {json.loads(line)["session"] for line in done.stdout.splitlines() if line.startswith("{")}
    assert set(NAMES) <= seen
    assert stack.run_in("keeper", "tidegate", "audit", "verify").returncode == 0
