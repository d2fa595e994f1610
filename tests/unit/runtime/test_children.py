"""Children: what they inherit, how they are entered, how often they come back."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.runtime.children import Backoff, clean_environment, ending, interpreter, socket_pair, start, stop
from tidegate.runtime.identity import Identity


def test_invariant_5_only_named_variables_pass() -> None:
    environ = {"PATH": "/bin", "GITHUB_TOKEN": "s", "HTTP_PROXY": "p", "LD_PRELOAD": "x", "PYTHONSTARTUP": "y"}
    assert clean_environment(environ) == {"PATH": "/bin"}
    assert clean_environment(environ, ["GITHUB_TOKEN", "ABSENT"])["GITHUB_TOKEN"] == "s"


def test_a_relative_import_path_becomes_absolute_and_an_empty_entry_is_dropped() -> None:
    path = clean_environment({"PYTHONPATH": "proxy::/abs"})["PYTHONPATH"]
    assert path == f"{Path('proxy').absolute()}:/abs"


def test_the_working_directory_is_not_importable() -> None:
    assert interpreter()[1:] == ["-O", "-P", "-m"]


def test_backoff_grows_to_a_bound_and_forgets_after_good_running() -> None:
    backoff = Backoff(first=0.1, most=1.0, stable=10)
    assert [round(backoff.delay(ran=0), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.delay(ran=60) == 0.1


@pytest.mark.parametrize(
    ("status", "text"), [(0, "ended with status 0"), (-9, "was killed by SIGKILL"), (-64, "was killed by SIGRTMAX")]
)
def test_an_end_in_words(status: int, text: str) -> None:
    assert ending(status) == text


_CHILD = """
import json, os, pathlib, sys

def main():
    import wave   # a module that nothing has imported yet: the drop must not cost the library
    try:
        pathlib.Path("/root/x").touch()
        root = True
    except OSError:
        root = False
    status = pathlib.Path("/proc/self/status").read_text()
    print(json.dumps({
        "argv": sys.argv[1:], "ids": [os.getresuid(), os.getresgid()], "groups": os.getgroups(), "root": root,
        "no_new_privs": "NoNewPrivs:\\t1" in status, "wave": wave.__name__,
        "caps": status.split("CapEff:\\t")[1].split()[0],
    }))
    return 7
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can reach."""
    with open_folder() as made:
        yield made


async def test_a_child_is_entered_as_its_identity_and_can_still_import(folder: Path) -> None:
    (folder / "child_module.py").write_text(_CHILD)
    as_root = os.geteuid() == 0
    identity = Identity(64732, 64733) if as_root else Identity(os.geteuid(), os.getegid())
    ours, theirs = socket_pair()
    reader, writer = os.pipe()
    before, groups = os.dup(1), os.getgroups()
    os.dup2(writer, 1)
    if as_root:
        os.setgroups([4242])  # what root came with must not stay
    try:
        process = await start(
            "child_module",
            ["--fd", str(theirs.fileno())],
            environment=clean_environment({**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}),
            descriptors=[theirs],
            identity=identity,
        )
    finally:
        os.dup2(before, 1)
        if as_root:
            os.setgroups(groups)
        os.close(before)
        os.close(writer)
    code = await asyncio.wait_for(process.wait(), 20)
    ours.close()
    with open(reader, encoding="utf-8") as pipe:
        import json

        told = json.loads(pipe.read())
    assert code == 7
    assert told["argv"][0] == "--fd"
    assert told["wave"] == "wave"
    assert told["no_new_privs"]
    if as_root:
        assert told["ids"] == [[64732] * 3, [64733] * 3]
        assert told["groups"] == []
        assert not told["root"]
        assert told["caps"] == "0" * 16


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import signal,sys; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert await stop(process, grace=0.1) == -9
    assert await stop(process, grace=0.1) == -9
