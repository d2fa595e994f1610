"""The fleet with real processes: a zygote, forks of it, and a worker that is small enough to break on demand."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.errors import LaunchError
from tidegate.runtime.children import clean_environment
from tidegate.runtime.control import LinkError
from tidegate.runtime.fleet import Fleet
from tidegate.runtime.identity import Identity

OWN = Identity(os.geteuid(), os.getegid())
SECRET = "xoxb-a-secret-of-the-operator"

WORKER = textwrap.dedent(
    """
    import asyncio, ctypes, os, pathlib, time
    from tidegate.errors import LaunchError
    from tidegate.runtime.control import ControlLink

    def bind(settings):
        return []

    def main(control, settings, keeper, index, bound, doors):
        asyncio.run(serve(control, settings, keeper, index))

    async def serve(control, settings, keeper, index):
        if settings == b"broken":
            raise LaunchError("the port is taken")
        state = {"now": settings, "next": b""}
        async def prepare(fields):
            if fields["settings"] == b"bad":
                raise LaunchError("rule 3 cannot be compiled")
            state["next"] = fields["settings"]
            return {}
        async def commit(fields):
            state["now"] = state["next"]
            return {}
        async def status(fields):
            return {
                "settings": state["now"], "problems": [], "index": index, "uid": os.getuid(), "groups": os.getgroups(),
                "environ": sorted(os.environ), "keeper": str(keeper), "optimize": not __debug__,
                "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
                "cores": pathlib.Path("/proc/self/limits").read_text().split("Max core file size")[1].split()[:2],
                "fds": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{fd}")),
            }
        async def drain(fields):
            asyncio.get_running_loop().call_later(0.01, os._exit, 0)
            return {}
        async with ControlLink(control, peer="supervisor",
                        handlers=dict(prepare=prepare, commit=commit, status=status, drain=drain)) as link:
            link.push("ready", unenforced=["files (no Landlock)", "signals"] if settings == b"old kernel" else [])
            if settings == b"stuck":
                await asyncio.sleep(0.1)
                time.sleep(600)
            await link.closed.wait()
    """
)


class Settings:
    """What a worker that starts now is given."""

    def __init__(self) -> None:
        self.now = (1, b"first")

    def __call__(self) -> tuple[int, bytes]:
        return self.now


@asynccontextmanager
async def running(
    folder: Path, settings: Settings, *, count: int = 1, identity: Identity = OWN
) -> AsyncIterator[tuple[Fleet, list[str]]]:
    faults: list[str] = []
    (folder / "stub_worker.py").write_text(WORKER)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    fleet = Fleet(
        count=count,
        identity=identity,
        keeper_socket=Path("/nowhere/keeper.sock"),
        environment=clean_environment({**os.environ, "PYTHONPATH": path, "SLACK_TOKEN": SECRET}),
        settings=settings,
        on_fault=lambda fault: faults.append(fault.detail),
        module="stub_worker",
    )
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(fleet.run())
        try:
            yield fleet, faults
        finally:
            await fleet.end()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 — processes end outside of the loop
        await asyncio.sleep(0.01)


async def test_workers_start_with_the_settings_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, _):
        await fleet.wait_ready()
        told = [await worker.link.call("status") for worker in fleet.workers]
    assert [status["index"] for status in told] == [0, 1]
    assert {status["settings"] for status in told} == {b"first"}
    assert {status["keeper"] for status in told} == {"/nowhere/keeper.sock"}
    assert all(status["optimize"] for status in told)
    assert all(status["cores"] == ["0", "0"] for status in told)
    assert {status["dumpable"] for status in told} == {0}
    assert fleet.problems() == ["worker 0 is not running", "worker 1 is not running"]


async def test_what_the_kernel_cannot_hold_is_known_when_all_are_ready_and_said_once(tmp_path: Path) -> None:
    settings = Settings()
    settings.now = (1, b"old kernel")
    async with running(tmp_path, settings, count=2) as (fleet, _):
        await fleet.wait_ready()
        assert fleet.unenforced() == [
            "not held back on this machine: a worker from files (no Landlock)",
            "not held back on this machine: a worker from signals",
        ]


async def test_invariant_5_the_environment_of_a_worker_holds_no_variable_of_the_operator(tmp_path: Path) -> None:
    async with running(tmp_path, Settings()) as (fleet, _):
        await fleet.wait_ready()
        status = await fleet.workers[0].link.call("status")
    names = status["environ"]
    assert isinstance(names, list)
    assert set(names) <= {"LANG", "LC_ALL", "LC_CTYPE", "PATH", "PYTHONPATH", "SSL_CERT_DIR",
                          "SSL_CERT_FILE", "TIDEGATE_LOG_FORMAT", "TIDEGATE_TRACEBACK", "TZ"}  # fmt: skip


async def test_a_worker_inherits_no_descriptor_of_its_parents(tmp_path: Path) -> None:
    with (tmp_path / "something").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        async with running(tmp_path, Settings(), count=2) as (fleet, _):
            await fleet.wait_ready()
            status = await fleet.workers[1].link.call("status")
    found = status["fds"]
    assert isinstance(found, list)
    assert str(tmp_path / "something") not in found


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can reach."""
    with open_folder() as made:
        yield made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a worker another uid")
async def test_as_root_a_worker_has_another_uid_no_groups_and_no_readable_memory(folder: Path) -> None:
    async with running(folder, Settings(), identity=Identity(64732, 64732)) as (fleet, _):
        await fleet.wait_ready()
        status = await fleet.workers[0].link.call("status")
        assert status["uid"] == 64732
        assert status["groups"] == []
        assert Path(f"/proc/{fleet.workers[0].pid}/status").stat().st_uid == 0  # not dumpable: not even its own


async def test_a_killed_worker_comes_back_and_the_other_stays(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, faults):
        await fleet.wait_ready()
        before = [worker.pid for worker in fleet.workers]
        os.kill(before[0], signal.SIGKILL)
        await until(
            lambda: len(fleet.workers) == 2 and fleet.workers[0].pid not in (0, before[0]) and not fleet.problems()
        )
        assert fleet.workers[1].pid == before[1]
    assert any("worker 0" in fault and "SIGKILL" in fault for fault in faults)


async def test_a_killed_zygote_takes_its_workers_along_and_all_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, faults):
        await fleet.wait_ready()
        before = {worker.pid for worker in fleet.workers}
        zygote = int(Path(f"/proc/{fleet.workers[0].pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(zygote, signal.SIGKILL)
        await until(
            lambda: (
                len(fleet.workers) == 2
                and not before & {worker.pid for worker in fleet.workers}
                and not fleet.problems()
            )
        )
        assert not [pid for pid in before if Path(f"/proc/{pid}/exe").exists()]
    assert any("zygote" in fault for fault in faults)


async def test_a_worker_that_cannot_start_is_final_and_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings()
    settings.now = (1, b"broken")
    async with running(tmp_path, settings) as (fleet, _):
        with pytest.raises(LaunchError, match="worker 0 could not start"):
            await fleet.wait_ready()
    assert "the port is taken" in capfd.readouterr().err


async def test_reload_reaches_every_worker(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, _):
        await fleet.wait_ready()
        await fleet.prepare(2, b"second")
        assert [(await worker.link.call("status"))["settings"] for worker in fleet.workers] == [b"first"] * 2
        await fleet.commit(2)
        assert [(await worker.link.call("status"))["settings"] for worker in fleet.workers] == [b"second"] * 2
        assert [worker.epoch for worker in fleet.workers] == [2, 2]


async def test_a_worker_that_hangs_is_not_ready_long_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.fleet._SILENT_SECONDS", 0.5)
    monkeypatch.setattr("tidegate.runtime.fleet._WATCH_SECONDS", 0.1)
    async with running(tmp_path, Settings()) as (fleet, faults):
        await fleet.wait_ready()
        assert fleet.problems() == []
        os.kill(fleet.workers[0].pid, signal.SIGSTOP)
        await until(lambda: any("has not answered" in text for text in fleet.problems()))
        os.kill(fleet.workers[0].pid, signal.SIGCONT)
        await until(lambda: fleet.problems() == [])
        assert faults == []


async def test_what_a_worker_cannot_prepare_changes_no_worker(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, _):
        await fleet.wait_ready()
        with pytest.raises(LinkError, match="rule 3 cannot be compiled"):
            await fleet.prepare(2, b"bad")
        assert [(await worker.link.call("status"))["settings"] for worker in fleet.workers] == [b"first"] * 2


async def test_a_worker_that_missed_the_prepare_never_serves_the_old_policy(tmp_path: Path) -> None:
    settings = Settings()
    async with running(tmp_path, settings, count=2) as (fleet, _):
        await fleet.wait_ready()
        await fleet.prepare(2, b"second")
        old = fleet.workers[1].pid
        os.kill(old, signal.SIGKILL)
        await until(lambda: len(fleet.workers) == 2 and fleet.workers[1].pid not in (0, old) and not fleet.problems())
        settings.now = (2, b"second")
        await fleet.commit(2)
        await until(lambda: len(fleet.workers) == 2 and all(w.ready and w.epoch == 2 for w in fleet.workers))
        assert [(await worker.link.call("status"))["settings"] for worker in fleet.workers] == [b"second"] * 2


async def test_drain_lets_workers_end_by_themselves_and_none_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path, Settings(), count=2) as (fleet, faults):
        await fleet.wait_ready()
        await fleet.drain(5)
        assert fleet.workers == ()
    assert faults == []


async def test_V_14_workers_die_with_their_supervisor(tmp_path: Path) -> None:
    """Nothing of the gate outlives the supervisor, not even a worker that no longer listens to anyone."""
    (tmp_path / "stub_worker.py").write_text(WORKER)
    script = tmp_path / "supervise.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, os
            from pathlib import Path
            from tidegate.runtime.children import clean_environment
            from tidegate.runtime.fleet import Fleet
            from tidegate.runtime.identity import Identity
            async def main():
                fleet = Fleet(count=1, identity=Identity(os.geteuid(), os.getegid()), keeper_socket=Path("/x"),
                              environment=clean_environment(os.environ), settings=lambda: (1, b"stuck"),
                              on_fault=print, module="stub_worker")
                async with asyncio.TaskGroup() as group:
                    group.create_task(fleet.run())
                    await fleet.wait_ready()
                    print(fleet.workers[0].pid, flush=True)
            asyncio.run(main())
            """
        )
    )

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    async with asyncio.timeout(5):
        await until(lambda: not Path(f"/proc/{pid}/exe").exists() or _zombie(pid))


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
