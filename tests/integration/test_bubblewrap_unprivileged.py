"""bubblewrap without root: in a forked process that gave it up, with no control group to be held or ended by."""

import contextlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.test_bubblewrap import MIB, NOBODY, WHY
from tests.integration.test_bubblewrap import nothing_left as nothing_left
from tests.lab.doors import within
from tidegate.cli.run import _wanted
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, Ground
from tidegate_launcher.bubblewrap.boundary import Bubblewrap
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.order import Order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.run import launch

pytestmark = pytest.mark.skipif(WHY is not None, reason=f"no bubblewrap: {WHY}")


def _as_nobody[T](work: Callable[[], T]) -> T:
    """Return what `work` returns to one who is nobody. What this process has imported it need not read again."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with open(writing, "wb") as file:
                pickle.dump(work(), file)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    found: T = pickle.loads(answer)
    return found


@pytest.fixture(scope="module")
def own() -> Iterator[Path]:
    """A root of nobody's own: a shell and what it needs. Not below pytest's folder, into which nobody may look."""
    with tempfile.TemporaryDirectory(prefix="tg-nobody-", dir="/tmp") as name:
        folder = Path(name)
        programs = [shutil.which(name) or name for name in ("dash", "cat", "sleep", "id", "dd")]
        said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
        libraries = {word for word in said.split() if word.startswith("/") and not word.endswith(":")}
        for source in {*programs, *libraries}:
            target = folder / "root" / source.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        (folder / "scratch").mkdir(0o700)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield folder


def _run(own: Path, code: str, **limits: float) -> Result:
    shell = shutil.which("dash") or "sh"
    job = Job(
        id="test", argv=(shell, "-c", code), root=own / "root", environment=(("PATH", "/usr/bin:/bin"),),
        limits=Limits(**{"seconds": 10, **limits}),  # type: ignore[arg-type]
    )  # fmt: skip
    return _as_nobody(lambda: Bubblewrap().run(job, Ground(scratch=own / "scratch")))


def test_without_root_it_runs_and_claims_no_limit_of_a_control_groups() -> None:
    missing = set(Capability) - _as_nobody(Bubblewrap().capabilities)
    lacking = {Capability.KERNEL, Capability.NET_VETH, Capability.WAITS}
    assert missing == lacking | {Capability.MEMORY, Capability.CPUS}


def test_without_root_a_command_runs_as_it_does_with(own: Path) -> None:
    result = _run(own, "id -u; cat /proc/net/dev | while read -r l; do echo line; done; echo 1 >/x; exit 3")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 3), (result.detail, result.untrusted_stderr)
    assert result.untrusted_stdout == b"65534\nline\nline\nline\n"
    assert b"Read-only" in result.untrusted_stderr


def test_without_root_time_and_disk_end_too(own: Path) -> None:
    slow = _run(own, "sleep 600 & sleep 600", seconds=0.7)
    assert slow.outcome is Outcome.TIMEOUT, slow
    full = _run(own, "dd if=/dev/zero of=/work/x bs=1M count=40; exit 3", disk_bytes=16 * MIB)
    assert full.outcome is Outcome.DISK, full


@pytest.mark.parametrize("wanted", [None, frozenset({Capability.MEMORY})], ids=["all", "memory"])
def test_without_root_a_limit_that_cannot_be_held_is_a_refusal(own: Path, wanted: frozenset[Capability] | None) -> None:
    """And nothing of the launch is made."""

    def refused() -> str:
        order = Order(argv=("sh", "-c", "true"), root=own / "root", wanted=wanted)
        with pytest.raises(LaunchError) as told:
            launch(order, Bubblewrap(), place=LaunchPlace(own / "place"))
        return str(told.value)

    assert "bubblewrap cannot enforce a limit on memory" in _as_nobody(refused)
    assert not (own / "place").exists()


def test_without_root_what_was_asked_for_is_wanted_and_the_rest_is_said(own: Path) -> None:
    def wanted() -> tuple[set[Capability], str]:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            return set(_wanted(Bubblewrap(), "none", {"memory", "pids"}) or ()), said.getvalue()

    found, said = _as_nobody(wanted)
    assert found == {Capability.MEMORY, Capability.PIDS, Capability.NET_NONE}
    assert "it does not have a kernel of its own between the code and the host's, a limit on memory" in said
    assert "a limit on processors" in said


def test_S_19_without_root_it_ends_with_its_launcher(own: Path) -> None:
    """Which has no control group to be ended by: each process on the way is tied to the one before it."""
    mark = f"marks-{os.getpid()}"
    launcher = os.fork()
    if launcher == 0:
        os._exit(int(_run(own, f"sleep 600 & sleep 600; : {mark}", seconds=60).exit_code))
    try:
        shell = shutil.which("dash") or "sh"
        assert within(20, lambda: any(words.startswith(f"{shell}\0-c") for words in _named(mark)))
    finally:
        for pid in (launcher, *_children(launcher)):  # the second is nobody, who launches
            os.kill(pid, signal.SIGKILL)
        os.waitpid(launcher, 0)
    assert within(5, lambda: _named(mark) == []), _named(mark)


def _named(mark: str) -> list[str]:
    """Return the commands of all processes with a word in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text()
            found += [words] if mark in words else []
    return found


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
