"""Who is measured: no proxy at all, stock mitmdump, Tidegate with everything on."""

import contextlib
import dataclasses
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.upstream import NAME, SECRET, Upstream, wait_for_port
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, gate
from tests.lab.sockets import free_port

__all__ = ["Contender", "bench_configuration", "direct", "mitmdump", "tidegate"]

_TOKEN = "BENCH_TOKEN"


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to the upstream. `credential` is what its client sends: the secret, or a placeholder for it."""

    name: str
    host: str
    credential: str
    proxy: str | None = None
    pids: Callable[[], list[int]] = list
    ready_seconds: float = 0.0
    gate: Gate | None = None

    def headers(self, with_credential: bool) -> list[str]:
        """Return the request headers of a client of this contender."""
        return [f"Authorization: Bearer {self.credential}"] if with_credential else []


def direct() -> Contender:
    """Return the yardstick: TCP to the upstream itself."""
    return Contender("direct", NAME, SECRET)


@contextlib.contextmanager
def mitmdump(upstream: Upstream, *, core: int) -> Iterator[Contender]:
    """Run stock `mitmdump -q`: inspecting, upstream verified, no add-on of anybody's."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-mitm-"))
    port = free_port()
    program = str(Path(sys.executable).with_name("mitmdump"))
    options = [f"confdir={folder}", f"ssl_verify_upstream_trusted_ca={upstream.ca_file}"]
    line = ["taskset", "-c", str(core), program, "-q", "--listen-host", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen([*line, *(part for option in options for part in ("--set", option))])
    try:
        wait_for_port(process, port)
        # It looks names up in the system; «localhost» is the one name that is there on every machine.
        yield Contender("mitmdump", "localhost", SECRET, f"127.0.0.1:{port}", lambda: _family(process.pid))
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def bench_configuration(upstream: Upstream, resolver: str, secret_file: Path) -> dict[str, Any]:
    """Return the gate's configuration: policy, audit and scrubbing on, one worker as the rival has one."""
    return {
        "version": 1,
        "workers": 1,
        "resolver": {"servers": [resolver]},
        "upstream": {"ca_file": str(upstream.ca_file)},
        "limits": {"connections_per_session": 4096},
        "policies": {
            "bench": {
                "allow": [
                    {
                        "host": NAME,
                        "ports": [upstream.https_port, upstream.events_port],
                        "credential": "bench",
                        "addresses": ["127.0.0.0/8"],
                    },
                    {
                        "host": NAME,
                        "protocol": "http",
                        "ports": [upstream.http_port],
                        "addresses": ["127.0.0.0/8"],
                    },
                ]
            }
        },
        "credentials": {
            "bench": {
                "source": {"file": str(secret_file)},
                "for": [{"host": NAME}],
                "place": {"header": "Authorization", "format": "Bearer {secret}"},
                "placeholder": {"env": _TOKEN},
            }
        },
        "sessions": {"bench": {"policy": "bench", "credentials": ["bench"], "from": "127.0.0.1/32"}},
    }


@contextlib.contextmanager
def tidegate(upstream: Upstream, *, core: int) -> Iterator[Contender]:
    """Run Tidegate with a session for 127.0.0.1 whose placeholder stands in its own folder."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-gate-"))
    secret_file = folder / "secret"
    secret_file.write_text(SECRET)
    # The keeper reads it under a user of its own.
    folder.chmod(0o755)
    secret_file.chmod(0o644)
    try:
        with dns_server({NAME: addresses("127.0.0.1")}) as dns:
            config = bench_configuration(upstream, dns.address, secret_file)
            began = time.perf_counter()
            with gate(config, prefix=("taskset", "-c", str(core))) as running:
                ready = time.perf_counter() - began
                placeholder = _variable(running.state / "sandbox" / "bench" / "env", _TOKEN)
                proxy = f"{running.host}:{running.port}"
                pids = lambda: _family(running.process.pid)  # noqa: E731 (closes over this very gate)
                yield Contender("tidegate", NAME, placeholder, proxy, pids, ready, running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _variable(env_file: Path, name: str) -> str:
    for line in env_file.read_text().splitlines():
        key, _, value = line.removeprefix("export ").partition("=")
        if key == name:
            return value.strip("'\"")
    raise RuntimeError(f"{env_file} has no {name}")


def _family(pid: int) -> list[int]:
    """Return `pid` and all that descend from it: every worker and every keeper counts."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found
