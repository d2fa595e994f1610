"""Sandboxes that are made ahead, each for one command."""

import contextlib
import errno
import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_kept import said
from tests.integration.test_sdk import API, FETCH, folders
from tests.integration.test_sdk import running as running
from tests.integration.test_sdk import state as state
from tests.lab.box import leftovers
from tests.lab.gate import Gate
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate.sdk import Limits, Outcome, Run, Sandbox
from tidegate.sdk.command import Command
from tidegate_launcher.kept.sandbox import Kept
from tidegate_launcher.pool import Pool

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")


def test_each_is_for_one_command(running: Gate) -> None:
    with Sandbox("default", credentials=["api"], state=running.state, ahead=2) as sandbox:
        pool = sandbox._pool
        assert pool is not None
        sessions, marks = set(), set()
        for _ in range(4):
            assert pool.wait(1)
            run = sandbox.run(["sh", "-c", "ls -A /work /tmp; echo x >/work/x; cat; echo $API_TOKEN"], stdin=b"in\n")
            lines = said(run).splitlines()
            assert lines[:-1] == ["/tmp:", "", "/work:", "in"], "nothing of the one before"
            sessions.add(run.session)
            marks.add(lines[-1])
        assert (len(sessions), len(marks)) == (4, 4)
        assert pool.wait(1)
        assert said(sandbox.run(["python3", "-c", FETCH, f"https://{API}/"])) == "200\n"
    assert leftovers() == []
    assert folders() == []


def test_it_is_what_a_fresh_one_is(state: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("given")
    look = "id; pwd; umask; ulimit -a; cat /proc/self/status | grep -v -i 'pid\\|^vm\\|threads'; ls -l /proc/self/fd"
    look += "; env | sort; cat /in/given; ls -ld /work /tmp /in; echo out >/work/out; ps 2>&1"
    runs = []
    for ahead in (0, 1):
        with Sandbox(state=state, ahead=ahead) as sandbox:
            assert sandbox._pool is None or sandbox._pool.wait(1)
            out = tmp_path / str(ahead)
            run = sandbox.run(["sh", "-c", look], inputs=[tmp_path / "given"], out=out, environment={"A": "b"})
            assert (out / "out").read_text() == "out\n"
            runs.append(_plain(said(run)))
    assert runs[0] == runs[1]


def test_limits_hold(state: Path) -> None:
    with Sandbox(state=state, ahead=1, limits=Limits(memory_bytes=128 << 20)) as sandbox:
        assert sandbox._pool is not None
        for argv, outcome in (
            (["sleep", "1000"], Outcome.TIMEOUT),
            (["python3", "-c", "x = bytearray(400 << 20)"], Outcome.OOM),
            (["nothing"], Outcome.LAUNCH_ERROR),
            (["sh", "-c", "kill -9 $$"], Outcome.SIGNALED),
        ):
            assert sandbox._pool.wait(1)
            assert sandbox.run(argv, timeout=2).outcome is outcome


def test_one_whose_session_was_revoked_is_not_taken(running: Gate) -> None:
    with Sandbox("default", state=running.state, ahead=1) as sandbox:
        assert sandbox._pool is not None
        assert sandbox._pool.wait(1)
        revoked = sandbox._pool._standing[0].sandbox.session
        running.cli("session", "revoke", revoked)
        run = sandbox.run(["echo", "on"])
        assert said(run) == "on\n"
        assert run.session not in ("", revoked)


def test_one_that_fell_is_not_taken(state: Path) -> None:
    with Sandbox(state=state, ahead=1) as sandbox:
        assert sandbox._pool is not None
        assert sandbox._pool.wait(1)
        standing = sandbox._pool._standing[0].sandbox
        standing._held._launch._process.kill()
        while standing.alive():
            time.sleep(0.01)
        assert said(sandbox.run(["echo", "on"])) == "on\n"


def test_several_threads_take_one_each(state: Path) -> None:
    runs: list[Run] = []
    with Sandbox(state=state, ahead=3) as sandbox:
        assert sandbox._pool is not None
        assert sandbox._pool.wait(3)
        threads = [threading.Thread(target=lambda: runs.append(sandbox.run(["echo", "on"]))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [said(run) for run in runs] == ["on\n"] * 6
    assert len({run.id for run in runs}) == 6
    assert leftovers() == []
    assert folders() == []


def test_what_keeps_the_next_from_being_made_ends_no_command(state: Path) -> None:
    """Sandboxes end with the thread that makes them, and so it ends with nothing that goes wrong in it."""
    with Sandbox(state=state) as sandbox:
        made: list[bool] = []

        def make() -> AbstractContextManager[Kept]:
            made.append(not made)
            if not made[-1]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return sandbox._kept(many=False)

        pool = Pool(1, make, sandbox._launch)
        try:
            assert pool.wait(1)
            order = sandbox._order(Command.of(["sh", "-c", "sleep 1; echo on"]))
            assert pool.run(order).result.untrusted_stdout == b"on\n"
            assert made[:2] == [True, False]
            assert "Too many open files" in str(pool.fault)
        finally:
            pool.close()


def test_the_end_of_the_block_waits_for_what_runs(state: Path) -> None:
    begun, runs = threading.Event(), list[Run]()
    with Sandbox(state=state, ahead=1) as sandbox:
        assert sandbox._pool is not None
        assert sandbox._pool.wait(1)
        argv = ["sh", "-c", "echo one; sleep 1; echo two"]
        thread = threading.Thread(target=lambda: runs.append(sandbox.run(argv, on_output=lambda *_: begun.set())))
        thread.start()
        assert begun.wait(20)
    thread.join()
    assert said(runs[0]) == "one\ntwo\n"
    assert leftovers() == []


def test_one_is_made_whatever_the_number_of_its_descriptors(state: Path) -> None:
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull))
        most = 0
        while most < 1100:
            most = os.dup(nothing.fileno())
            stack.callback(os.close, most)
        sandbox = stack.enter_context(Sandbox(state=state, ahead=1))
        assert sandbox._pool is not None
        assert sandbox._pool.wait(1)
        assert said(sandbox.run(["echo", "on"])) == "on\n"
        kept = stack.enter_context(sandbox.keep())
        assert said(kept.run(["echo", "on"])) == "on\n"
        assert kept.alive()


def test_who_is_interrupted_as_it_takes_one_keeps_nobody_waiting(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(state=state, ahead=1) as sandbox:
        pool = sandbox._pool
        assert pool is not None
        assert pool.wait(1)

        take = Pool._take

        def interrupted(*words: Any) -> None:
            take(*words)
            raise KeyboardInterrupt

        monkeypatch.setattr(Pool, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sandbox.run(["true"])
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    assert leftovers() == []
    assert folders() == []


@pytest.mark.parametrize("ahead", [-1, 65, 1000])
def test_a_number_that_is_none_is_refused(state: Path, ahead: int) -> None:
    with pytest.raises(LaunchError, match="no number"), Sandbox(state=state, ahead=ahead):
        pass


def _plain(text: str) -> list[str]:
    """Return what a sandbox says of itself without what is another's each time: numbers of objects, times."""
    # One process less: gVisor counts the command's own as its maker's.
    return [line for line in text.splitlines() if " -> " not in line and not line.startswith("process")]
