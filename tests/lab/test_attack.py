"""The worked attack of `make demo`: each place gives away what it must, the last nothing, and nothing is left."""

import contextlib
import dataclasses
import os
import re
from pathlib import Path

import pytest

from tests.lab.attack import CHANNELS, COLLECTOR, METADATA, Haul, Secrets, attack, attack_credentials, why_no_attack
from tests.lab.attack_screen import EXPECTED, show_attack, wrong_with
from tests.lab.certs import Authority
from tests.lab.demo import Client, policy, task_policy
from tests.lab.gate import configuration, gate
from tests.lab.internet import internet, world_place
from tests.lab.screen import Screen
from tests.lab.world import why_no_world, world

needs_sandboxes = pytest.mark.skipif(
    (why_no_world() or why_no_attack()) is not None, reason=f"no sandboxes here: {why_no_world() or why_no_attack()}"
)


@needs_sandboxes
def test_the_attack_is_held_by_the_gate_alone_fits_one_screen_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = Secrets.made()
    credentials, env = attack_credentials(known)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(world())
        place = world_place(made)
        ca = stack.enter_context(Authority())
        net = stack.enter_context(internet(place, ca, git_token="c3d4" * 10))
        whole = configuration(ca=ca, credentials=credentials)
        open_to_pages = {"allow": [{"host": rule["host"], "addresses": rule["addresses"]} for rule in _rules(net)]}
        whole["policies"] = {"default": open_to_pages, "task": task_policy(net)}
        whole["resolver"] = {"servers": [net.dns.address]}
        running = stack.enter_context(
            gate(whole, env=env, host=place.gate_host, port=8080, prefix=place.gate_prefix, timeout=60)
        )
        ready = stack.enter_context(attack(made, net, running, known, ca=ca.pem))
        screen = Screen()
        show_attack(screen, ready, Client(net, running.session(), tmp_path).curl)
    shown = capsys.readouterr().out
    assert screen.failures == 0, shown
    assert re.findall(r"✓ (\S.*?) +done (\S.*\S)", shown) == [
        ("plain container", "READ      READ        READ     3 of 3  nothing"),
        ("gVisor", "not there READ        READ     2 of 3  no mount"),
        ("gVisor, home mounted", "READ      READ        READ     3 of 3  nothing"),
        ("gVisor + Tidegate", "not there placeholder refused  nothing the gate"),
    ]
    assert "deny POST attacker.evil.test /collect 403 0 0 not_in_allowlist" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert not [word for word in (known.file, known.env, known.metadata) if word in shown]
    assert not list(Path("/run/netns").glob(f"tglab-{os.getpid()}-*open*"))
    assert not ready.folder.exists()
    assert not ready.root.exists()


def _rules(net: object) -> list[dict[str, object]]:
    return policy(net, pip=None)["allow"]  # type: ignore[arg-type]


def _haul(place: str) -> Haul:
    """Return what a place is expected to give away."""
    expected = frozenset(EXPECTED[place])
    met = frozenset((METADATA, COLLECTOR) if expected else ())
    return Haul(place, True, expected, expected, {"task": "200 x"}, met)


@pytest.mark.parametrize("place", EXPECTED)
def test_a_place_that_gives_away_what_it_must_is_not_wrong(place: str) -> None:
    assert wrong_with(_haul(place)) == ""


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        pytest.param("gVisor + Tidegate", {"posted": frozenset({"env"})}, "posted: env", id="the gate let it out"),
        pytest.param("gVisor + Tidegate", {"read": frozenset({"file"})}, "read: file", id="a file was there"),
        pytest.param(
            "gVisor + Tidegate",
            {"met": frozenset({METADATA})},
            "reached: the metadata service",
            id="metadata was reached",
        ),
        pytest.param("gVisor + Tidegate", {"met": frozenset({COLLECTOR})}, "reached: the coll", id="the server"),
        pytest.param("gVisor + Tidegate", {"task": False}, "task was not done", id="the network is dead"),
        pytest.param("gVisor", {"posted": frozenset()}, "posted: nothing", id="the comparison proves nothing"),
        pytest.param("gVisor", {"fault": "a\nno sandbox"}, "no sandbox", id="it did not run"),
    ],
)
def test_a_place_that_is_not_as_it_must_be_is_told(place: str, change: dict[str, object], said: str) -> None:
    assert said in wrong_with(dataclasses.replace(_haul(place), **change))  # type: ignore[arg-type]


def test_a_secret_is_found_by_the_channel_that_it_came_from() -> None:
    known = Secrets.made()
    assert known.within(f"x{known.env}y") == {"env"}
    assert known.within(f"{known.file} {known.metadata}") == {"file", "metadata"}
    assert known.within("tg_71de9a7e") == frozenset()
    assert set(CHANNELS) == {"file", "env", "metadata"}
