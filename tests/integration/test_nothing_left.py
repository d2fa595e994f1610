"""Of two hundred launches, of which a third is killed at any point, nothing is left: counted before and after, by kind.

All of it happens on a machine of its own (`tests.lab.apart`), so that what is counted is ours and all of it.
"""

import os
import random
import subprocess
import sys

import msgspec
import pytest

from tests.lab.apart import Counts
from tests.lab.folder import open_folder
from tests.lab.gate import ROOT, environment
from tests.lab.roots import why_no_gvisor
from tests.lab.storm import Told

pytestmark = [
    pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}"),
    pytest.mark.timeout(300),
]

LAUNCHES = 200
SEED = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(10**6))
GROWTH_KIB = 8 * 1024
"""What a process of the gate may hold more after so many launches; it is some hundred KiB, of which most is once."""


@pytest.fixture(scope="module")
def told() -> Told:
    with open_folder() as folder:
        env = environment({"TMPDIR": str(folder)})
        env["PYTHONPATH"] += os.pathsep + str(ROOT)
        module = [sys.executable, "-m", "tests.lab.apart", sys.executable, "-m", "tests.lab.storm"]
        done = subprocess.run(
            [*module, str(LAUNCHES), str(SEED)], env=env, cwd=ROOT, capture_output=True, timeout=240, check=False
        )
    assert done.returncode == 0, f"STORM_SEED={SEED}: {done.stderr.decode()}"
    told = msgspec.json.decode(done.stdout, type=Told)
    print(f"STORM_SEED={SEED}: {told.launches} launches, {told.killed} killed, {told.hurt} hurt, {told.seconds:.0f} s")
    return told


def test_a_third_was_killed_or_nothing_is_shown(told: Told) -> None:
    assert told.launches >= LAUNCHES
    assert told.killed * 3 >= told.launches
    assert told.hurt >= 5
    # Whatever else ended in another way than the command does was hurt.
    assert len(told.odd) <= told.hurt, told.odd


@pytest.mark.parametrize("kind", Counts.__struct_fields__)
def test_S_19_nothing_is_left(told: Told, kind: str) -> None:
    assert told.before.processes, "nothing was counted"
    assert told.after.more_than(told.before, kind) == [], f"STORM_SEED={SEED}"


def test_no_session_is_left_and_the_log_is_whole(told: Told) -> None:
    assert (told.sessions, told.verified) == (0, "")


def test_the_gate_grows_by_nothing_that_a_launch_leaves(told: Told) -> None:
    grown = {told.before.processes[pid]: now - before for pid, (before, now) in told.kib.items()}
    assert max(grown.values()) < GROWTH_KIB, grown


def test_a_process_that_launches_over_and_over_keeps_nothing_of_them(told: Told) -> None:
    assert len(told.harness) == 3
    for kind, (first, last) in told.harness.items():
        assert first == last, kind
