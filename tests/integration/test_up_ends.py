"""`tidegate up` at its two ends: what starts it, what cannot, what is left when it is gone."""

import base64
import contextlib
import copy
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.up import SECRET, children, config, every, status, until
from tests.lab.folder import open_folder
from tests.lab.gate import Gate, environment, gate, tidegate_command
from tests.lab.sockets import free_port
from tidegate.cli.client import AdminClient


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to be another user")
def test_without_root_it_runs_as_one_user_and_says_so() -> None:
    # A user namespace: the gate sees uid 1000 and has no right of root's.
    with gate(config(), env={"DEMO_TOKEN": SECRET}, prefix=["unshare", "--user", "--map-user=1000"]) as one:
        assert any("unsafe_shared_uid" in warning for warning in one.admin("GET", "/readyz")[1]["warnings"])
        assert one.stderr.count("unsafe_shared_uid") == 1
        assert "unsafe_shared_uid" in one.cli("health").stderr
        assert len(set(status(one)["uids"].values())) == 1


def test_the_second_sigterm_ends_at_once() -> None:
    with (
        gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--drain-seconds", "600"]) as one,
        socket.create_connection((one.host, one.port), timeout=10) as idle,
    ):
        idle.sendall(b"GET http://x.test/ HTTP/1.1\r\nHost: x.test\r\n")  # never finished: the drain waits for it
        until(lambda: any(worker.get("connections") for worker in status(one)["workers"]), timeout=5)
        one.process.send_signal(signal.SIGTERM)
        one.wait_line("stopping")
        begun = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(10)
        assert time.monotonic() - begun < 5


def test_sigterm_ends_everything_and_the_sockets_are_gone() -> None:
    with gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--drain-seconds", "600"]) as one:
        pids = every(one)
        assert one.terminate() == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
        assert not [name for name in ("admin.sock", "session.sock", "keeper.sock") if (one.state / name).exists()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"polices": {}}, r"tidegate\.yaml:\d+: polices: .*did you mean", id="an unknown key"),
        pytest.param(
            {}, r"listen\.http: cannot listen on 127\.0\.0\.1:\d+: Address already in use", id="a port that is taken"
        ),
        pytest.param(
            {},
            r"state_dir: /tmp/tg-\S+: /tmp/\S+ lets no other user through.*\n +choose another folder, or `chmod o\+x",
            id="a state folder below a private one",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root's gate runs as several users"),
        ),
    ],
)
def test_what_cannot_start_says_why_and_leaves_nothing(change: dict[str, Any], said: str) -> None:
    mode = 0o700 if "chmod" in said else 0o755
    with socket.create_server(("127.0.0.1", 0)) as taken, open_folder(mode=mode) as folder:
        listen = {"http": f"127.0.0.1:{taken.getsockname()[1]}"}
        (folder / "tidegate.yaml").write_text(
            yaml.safe_dump({**config(), "listen": listen, "state_dir": str(folder / "state"), **change})
        )
        done = subprocess.run(
            tidegate_command("up", "--config", str(folder / "tidegate.yaml")),
            env=environment({"DEMO_TOKEN": SECRET}), capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_detach_returns_when_ready_and_leaves_a_log() -> None:
    with open_folder() as folder:
        file = folder / "tidegate.yaml"
        whole = config() | {"listen": {"http": f"127.0.0.1:{free_port()}"}, "state_dir": str(folder / "state")}
        file.write_text(yaml.safe_dump(whole))
        env = environment({"DEMO_TOKEN": SECRET, "TIDEGATE_CONFIG": str(file)})
        pid = 0
        try:
            done = subprocess.run(
                tidegate_command("up", "--detach"), env=env, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            pid = int(re.search(r"pid (\d+)", done.stderr).group(1))  # type: ignore[union-attr]
            assert "ready" in done.stderr
            assert "ready" in (folder / "state" / "up.log").read_text()
            subprocess.run(tidegate_command("health"), env=env, check=True, timeout=30, stdout=subprocess.DEVNULL)
        finally:
            if pid:
                os.kill(pid, signal.SIGTERM)
                until(lambda: not Path(f"/proc/{pid}/exe").exists())


@contextlib.contextmanager
def the_gates_half(
    keeper: Gate, meanwhile: Callable[[AdminClient], None] = lambda _: None, **more: str
) -> Iterator[AdminClient]:
    """Run the other half beside a keeper until it is ready, and yield a client of its own admin socket.

    `meanwhile` is done before it must be ready.
    """
    half = AdminClient(keeper.state / "gate" / "admin.sock")
    log = keeper.folder / "gate.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            tidegate_command("up", "--only", "gate"),
            env={**environment(), "TIDEGATE_CONFIG": str(keeper.config_file), **more},
            stderr=said,
        )

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        return "ready (gate, " in log.read_text()  # the banner; «ready» alone is in other lines as well

    try:
        until((keeper.state / "gate" / "admin.sock").exists, timeout=20)
        meanwhile(half)
        until(is_ready, timeout=60)
        yield half
    finally:
        process.terminate()
        process.wait(15)


def test_a_gate_takes_no_configuration_that_its_keeper_refused() -> None:
    """Invariant 8, over two processes that each read the file: everywhere, or nowhere."""
    # Workers are the gate's own business: that one half is told another number is no disagreement.
    with (
        gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--only", "keeper"]) as keeper,
        the_gates_half(keeper, TIDEGATE_WORKERS="2") as half,
    ):
        assert half.ready()[0], half.ready()
        before, good = half.get("/v1/status")["hash"], yaml.safe_load(keeper.config_file.read_text())
        bad = copy.deepcopy(good)
        bad["policies"]["default"]["allow"].append({"host": "more.allowed.test"})
        bad["credentials"]["demo"]["source"] = {"file": "/nowhere/secret"}
        keeper.config_file.write_text(yaml.safe_dump(bad))
        until(lambda: "not taken this configuration" in str(half.ready()[1]["warnings"]), timeout=20)
        assert half.get("/v1/status")["hash"] == before
        bad["credentials"] = good["credentials"]
        keeper.config_file.write_text(yaml.safe_dump(bad))
        until(lambda: half.get("/v1/status")["hash"] != before, timeout=20)
        until(lambda: half.ready()[0])


def test_a_keeper_that_could_not_tell_its_gate_takes_nothing_either() -> None:
    """Invariant 8 again, with a folder in the way just when it matters, as a full disk would be."""
    with (
        gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--only", "keeper"]) as keeper,
        the_gates_half(keeper) as half,
    ):
        before = status(keeper)["hash"]
        (keeper.state / "settings.new").mkdir()
        code, answer = keeper.reload(
            yaml.safe_load(keeper.config_file.read_text()) | {"deny_cidrs": ["203.0.113.0/24"]}
        )
        assert code != 200
        assert "Is a directory" in str(answer)
        assert status(keeper)["hash"] == before
        assert "Is a directory" in str(keeper.admin("GET", "/readyz")[1]["warnings"])
        assert half.ready()[0], half.ready()
        (keeper.state / "settings.new").rmdir()
        assert keeper.reload()[0] == 200
        until(lambda: half.get("/v1/status")["hash"] != before, timeout=20)
        until(lambda: half.ready()[0])


def test_a_gate_that_starts_serves_nothing_that_its_keeper_refused() -> None:
    """Invariant 8 at the start: an engine restarts a fallen gate whatever the file says by then."""
    with gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--only", "keeper"]) as keeper:
        good = yaml.safe_load(keeper.config_file.read_text())
        bad = copy.deepcopy(good)
        bad["credentials"]["demo"]["source"] = {"file": "/nowhere/secret"}
        keeper.config_file.write_text(yaml.safe_dump(bad))
        until(lambda: keeper.admin("GET", "/readyz")[1]["warnings"], timeout=20)

        def give_in(half: AdminClient) -> None:
            """Once it waits, nothing listens; then the file says again what the keeper has."""
            until(lambda: "not taken this configuration" in str(half.ready()[1]["problems"]), timeout=20)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", keeper.port), timeout=5)
            keeper.config_file.write_text(yaml.safe_dump(good))

        with the_gates_half(keeper, give_in) as half:
            assert half.ready()[0], half.ready()
            assert half.get("/v1/status")["hash"] == status(keeper)["hash"]


def test_a_link_in_the_words_place_is_not_written_through() -> None:
    """The folder is the keeper's user's; its supervisor may be root."""
    with gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--only", "keeper"]) as keeper:
        victim = keeper.folder / "victim"
        victim.write_text("precious")
        (keeper.state / "settings.new").symlink_to(victim)
        code, answer = keeper.reload(
            yaml.safe_load(keeper.config_file.read_text()) | {"deny_cidrs": ["203.0.113.0/24"]}
        )
        assert code == 200, answer
        assert victim.read_text() == "precious"
        assert not (keeper.state / "settings.hash").is_symlink()


def test_the_two_halves_make_one_gate() -> None:
    with gate(config(), env={"DEMO_TOKEN": SECRET}, arguments=["--only", "keeper"]) as keeper:
        assert not children(keeper)["worker"]
        with the_gates_half(keeper):
            assert keeper.cli("health", "--only", "gate").stdout == "ready\n"
            assert until(lambda: status(keeper)["keeper"]["workers"]) == 1
            opened = keeper.session()
            with socket.create_connection(("127.0.0.1", keeper.port), timeout=10) as sock:
                credentials = base64.b64encode(f"s:{opened.token}".encode()).decode()
                sock.sendall(
                    f"CONNECT 169.254.169.254:443 HTTP/1.1\r\nHost: 169.254.169.254:443\r\n"
                    f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode()
                )
                assert sock.recv(4096).startswith(b"HTTP/1.1 403")
