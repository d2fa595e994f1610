"""The engine of the tests: nothing of the machine's changes, and nothing is left."""

import subprocess
from pathlib import Path

import pytest

from tests.lab.engine import engine, why_no_engine

pytestmark = pytest.mark.skipif(why_no_engine() is not None, reason=f"no container engine: {why_no_engine()}")


def _machine() -> dict[str, str]:
    """Return what an engine would change on the machine that it runs on."""
    rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    bridges = [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("docker", "br-"))]
    return {
        "rules": rules,
        "bridges": " ".join(sorted(bridges)),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    }


def test_it_changes_nothing_of_the_machine_and_leaves_nothing() -> None:
    before = _machine()
    with engine() as running:
        folder = running.folder
        running.docker("network", "create", "one")
        assert _machine() == before
    assert not folder.exists()
    assert not [path for path in Path("/sys/fs/cgroup").glob(f"**/{folder.name}")]
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert _machine() == before
