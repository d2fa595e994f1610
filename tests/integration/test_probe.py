"""The probe from inside a walled namespace: nothing is open; with any one rule gone that matters, something is."""

import json
import subprocess
from typing import Any

import pytest

from tests.integration.test_captured import FAR, Cage, cage
from tests.lab.gate import environment, tidegate_command
from tests.lab.world import why_no_world

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")
__all__ = ["cage"]

NETWORK = ("direct", "metadata", "private", "host", "dns", "udp", "icmp", "link", "proxy")


def probed(cage: Cage) -> tuple[int, dict[str, Any]]:
    only = [word for kind in NETWORK for word in ("--only", kind)]
    done = subprocess.run(
        tidegate_command("probe", "--in", cage.place.client, "--json", *only),
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_nothing_is_open_behind_the_wall(cage: Cage) -> None:
    code, card = probed(cage)
    still_open = [way for way in card["ways"] if way["state"] == "open"]
    assert (code, still_open) == (0, [])
    assert card["count"]["closed"] > 75
    assert any("metadata" in way["evidence"] for way in card["ways"] if way["kind"] == "metadata")


def test_a_hole_is_found(cage: Cage) -> None:
    """A namespace that forwards, and rules that let it: somebody beyond answers, and the card is red."""
    beyond = [*cage.place.gate_prefix, "sh", "-c"]
    internet = ["ip", "-n", cage.place.internet]
    subprocess.run([*internet, "address", "add", "1.1.1.1/32", "dev", "cable"], check=True)
    subprocess.run([*internet, "route", "add", "10.77.0.0/30", "via", "10.99.0.1"], check=True)
    hole = "nft flush chain inet tidegate-sandbox capture; nft flush chain inet tidegate-sandbox closed; "
    hole += "nft flush chain inet tidegate-sandbox forward; sysctl -qw net.ipv4.ip_forward=1"
    subprocess.run([*beyond, hole], check=True)
    try:
        code, card = probed(cage)
    finally:
        subprocess.run([*beyond, "sysctl -qw net.ipv4.ip_forward=0"], check=True)
        subprocess.run([*internet, "address", "del", "1.1.1.1/32", "dev", "cable"], check=True)
        cage.wall_up()
    assert code == 1
    assert "echo of 1.1.1.1" in {way["way"] for way in card["ways"] if way["state"] == "open"}


def test_the_program_is_one_file_that_old_pythons_read(cage: Cage) -> None:
    emitted = subprocess.run(tidegate_command("probe", "--emit"), capture_output=True, env=environment(), check=True)
    compile(emitted.stdout, "probe.py", "exec", dont_inherit=True)
    assert b"from tidegate" not in emitted.stdout
    assert b"match " not in emitted.stdout
    assert FAR.encode() not in emitted.stdout
