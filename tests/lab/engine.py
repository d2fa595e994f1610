"""A container engine of the tests' own: a real dockerd in namespaces of its own, and its images.

    with engine() as docker:
        docker.image("base", "sandbox")          # roots that the set-up has made
        with docker.compose(folder / "compose.yaml", project="by-name") as stack:
            stack.up()
            stack.run_in("sandbox", "curl", …)

Its host is the gate's namespace of a `world`: bridges, iptables rules and sysctls are made there and nowhere else, its
only way out leads to the lab's internet, and a listener of the test stands on that host. Mounts are made in a mount
namespace of its own, its files lie in one folder below /tmp, its control groups below one of its own name. All of it
ends with the block; what an ended process left is removed by the next. `tools/engine.sh` fetches the programs.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.lab.world import INTERNET, World, why_no_world, world

__all__ = ["ROOT", "Engine", "Stack", "engine", "why_no_engine"]

ROOT = Path(__file__).resolve().parents[2]
_PREFIX = "tg-engine"
_START_SECONDS = 60


def _cache() -> Path:
    given = os.environ.get("TIDEGATE_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    return base / "engine"


def why_no_engine() -> str | None:
    """Return what keeps this process from running an engine, or None."""
    reason = why_no_world()
    if reason is None and not (_cache() / "wheels.stamp").exists():
        reason = "no engine was fetched: `make test` as root on Debian 12 or 13 does it"
    return reason


# What dockerd wants of its place: its own view of the network in /sys, the host's control groups below it, and the
# lab's DNS server as the host's.
_PLACE = """
set -e
groups=$(mktemp -d); mount --rbind /sys/fs/cgroup "$groups"; mount -t sysfs sysfs /sys
mount --rbind "$groups" /sys/fs/cgroup; umount -l "$groups"; rmdir "$groups"
mount --bind "$1" /etc/resolv.conf
mkdir -p /run/containerd; mount -t tmpfs tmpfs /run/containerd
shift
exec "$@"
"""

# runsc takes a sysctl that newer kernels show in every namespace for a sign of the host's own: hide it.
_RUNSC = """#!/bin/sh
exec unshare -m --propagation slave sh -c '
S={folder}/sys; mkdir -p $S; mount -t tmpfs -o size=64k none $S; mkdir -p $S/net/core
cat /proc/sys/net/core/somaxconn >$S/net/core/somaxconn
for d in kernel vm user fs; do mkdir $S/$d; mount --bind /proc/sys/$d $S/$d; done
mount --rbind $S /proc/sys && exec "$0" "$@"' {runsc} "$@"
"""


@dataclasses.dataclass(frozen=True)
class Engine:
    """A running engine; `host` is its machine, in the lab's internet."""

    folder: Path
    world: World

    @property
    def host(self) -> str:
        """The network namespace of the engine's host."""
        return self.world.gate

    @property
    def environment(self) -> dict[str, str]:
        """What its clients run with."""
        return {
            "PATH": f"{_cache() / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }

    def docker(
        self, *arguments: str, check: bool = True, timeout: float = 60, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker …`."""
        return self._run("docker", *arguments, check=check, timeout=timeout, stdin=stdin)

    def load(self, *names: str) -> None:
        """Make the images `lab-NAME` from roots of the set-up."""
        for name in names:
            self.docker("import", str(_cache() / f"{name}.tar"), f"lab-{name}", timeout=120)

    def builder(self) -> None:
        """Make the image `lab-builder`: the base with pip, and wheels in place of an index."""
        context = self.folder / "builder"
        shutil.copytree(_cache() / "wheels", context / "wheels")
        (context / "pip.conf").write_text(
            "[global]\nno-index = true\nfind-links = /wheels\nbreak-system-packages = true\n"
        )
        (context / "Dockerfile").write_text(
            "FROM lab-base\nCOPY wheels /wheels\nCOPY pip.conf /etc/pip.conf\n"
            "RUN python3 $(echo /wheels/pip-*.whl)/pip install -q --root-user-action=ignore pip\n"
        )
        self.docker("build", "-q", "-t", "lab-builder", str(context), timeout=120)

    def build(self, tag: str, *, target: str, base: str = "lab-base", tools: str = "lab-base") -> None:
        """Build a target of the product's Containerfile."""
        arguments = {"BASE": base, "BUILDER": "lab-builder", "TOOLS": tools}
        words = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
        file = str(ROOT / "Containerfile")
        self.docker("build", "-t", tag, "-f", file, "--target", target, *words, str(ROOT), timeout=300)

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of a container, image, network or volume."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", name).stdout)
        return found[0]

    @contextlib.contextmanager
    def compose(self, file: Path, *, project: str, variables: Mapping[str, str] | None = None) -> Iterator["Stack"]:
        """Yield the services of a file, and take them down at the end with their volumes."""
        stack = Stack(self, file, project, dict(variables or {}))
        try:
            yield stack
        finally:
            stack.compose("down", "--volumes", "--timeout", "3", "--remove-orphans", check=False)

    def _run(
        self,
        program: str,
        *arguments: str,
        check: bool,
        timeout: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(_cache() / "bin" / program), *arguments],
            env={**self.environment, **(env or {})}, input=stdin, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{program} {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done


@dataclasses.dataclass(frozen=True)
class Stack:
    """The services of one compose file."""

    engine: Engine
    file: Path
    project: str
    variables: dict[str, str]

    def compose(self, *arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `docker-compose …` on the file."""
        words = ["--project-name", self.project, "--file", str(self.file), "--ansi", "never", *arguments]
        return self.engine._run("docker-compose", *words, check=check, timeout=timeout, env=self.variables)

    def up(self, *services: str) -> None:
        """Start the services, or all, and return when all that have a health are healthy."""
        done = self.compose("up", "--detach", "--no-build", *services, check=False)
        if done.returncode:
            raise AssertionError(f"{done.stderr[-2000:]}\n{self.compose('logs', '--no-color').stdout[-4000:]}")

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self.compose("ps", "--all", "--quiet", service).stdout.strip()

    def run_in(
        self, service: str, *command: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, as the service's own user."""
        flags = ["--interactive"] if stdin is not None else []
        name = self.container(service)
        return self.engine.docker("exec", *flags, name, *command, check=False, stdin=stdin, timeout=timeout)

    def engine_command(self, *arguments: str) -> list[str]:
        """Return a command of the engine's client, for a process that goes on while others run."""
        return [str(_cache() / "bin" / "docker"), *arguments]

    def sh(self, service: str, script: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a script in a service as its entry point would: with the session's environment."""
        return self.run_in(service, "sh", "-c", f". /tidegate/env\n{script}", timeout=timeout)

    def logs(self, service: str) -> str:
        """Return what a service has said."""
        done = self.compose("logs", "--no-color", "--no-log-prefix", service)
        return done.stdout + done.stderr

    def health(self, service: str) -> str:
        """Return `healthy`, `unhealthy`, `starting`, or the state of a container without a health."""
        state = self.engine.inspect(self.container(service))["State"]
        return str(state["Health"]["Status"] if "Health" in state else state["Status"])

    def wait_healthy(self, service: str, *, seconds: float = 30) -> None:
        """Wait until a service is healthy."""
        end = time.monotonic() + seconds
        while (found := self.health(service)) != "healthy":
            if time.monotonic() > end:
                raise AssertionError(f"{service} is {found}:\n{self.logs(service)[-3000:]}")
            time.sleep(0.2)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Run an engine until the block ends."""
    _sweep()
    with world() as place:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-", dir="/tmp"))
        folder.chmod(0o755)  # secrets and configurations in it are read by users of containers
        process = _start(folder, place)
        try:
            _wait(folder, process)
            yield Engine(folder, place)
        finally:
            _end(folder, process)


def _start(folder: Path, place: World) -> subprocess.Popen[bytes]:
    wrapper = folder / "runsc"
    wrapper.write_text(_RUNSC.format(folder=folder, runsc=_cache() / "bin" / "runsc"))
    wrapper.chmod(0o755)
    settings = {"runtimes": {"runsc": {"path": str(wrapper), "runtimeArgs": ["--platform=systrap"]}}}
    (folder / "daemon.json").write_text(json.dumps(settings))
    (folder / "resolv.conf").write_text(f"nameserver {INTERNET}\n")
    command = [
        "nsenter", f"--net=/run/netns/{place.gate}", "unshare", "--mount", "--propagation", "slave",
        "sh", "-c", _PLACE, "sh", str(folder / "resolv.conf"),
        str(_cache() / "bin" / "dockerd"), "--config-file", str(folder / "daemon.json"),
        "--host", f"unix://{folder}/docker.sock", "--data-root", str(folder / "data"),
        "--exec-root", str(folder / "run"),
        "--pidfile", str(folder / "docker.pid"), "--cgroup-parent", f"/{folder.name}", "--userland-proxy=false",
        "--shutdown-timeout", "5",
    ]  # fmt: skip
    environment = {"PATH": f"{_cache() / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
    with (folder / "dockerd.log").open("wb") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    client = [str(_cache() / "bin" / "docker"), "--host", f"unix://{folder}/docker.sock", "info"]
    while subprocess.run(client, capture_output=True, env={"HOME": str(folder)}, check=False).returncode:
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the engine did not start:\n{(folder / 'dockerd.log').read_text()[-4000:]}")
        time.sleep(0.2)


def _end(folder: Path, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        pass
    _remove(folder)
    process.wait(10)


def _remove(folder: Path) -> None:
    """End what runs with this folder in its command line, and remove the folder and its control groups."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    for group in Path("/sys/fs/cgroup").glob(f"**/{folder.name}"):
        for below in sorted((*group.glob("**/"), group), reverse=True):
            for pid in _members(below):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        _remove_groups(group)
    shutil.rmtree(folder, ignore_errors=True)


def _members(group: Path) -> list[int]:
    try:
        return [int(text) for text in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _remove_groups(group: Path) -> None:
    end = time.monotonic() + 5
    while group.exists() and time.monotonic() < end:
        for below in sorted({*group.glob("**/"), group}, reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        time.sleep(0.1)


def _sweep() -> None:
    for path in Path("/tmp").glob(f"{_PREFIX}-*"):
        pid = path.name.split("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(path)
