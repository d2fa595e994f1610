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
from tests.lab.gate import Gate, environment, gate, tidegate_command
from tests.lab.sockets import free_port
from tests.lab.world import CLIENT, GATE, INTERNET, World

__all__ = ["Contender", "bench_configuration", "direct", "mitmdump", "tidegate", "wall"]

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
    behind: World | None = None
    """The namespaces that it stands in, its client behind a wall; None: all is on loopback."""
    captured: str | None = None
    """What a client dials that knows of no proxy: the upstream, which the wall redirects, or the gate by name."""

    @property
    def inspects(self) -> bool:
        """Whether the client must see another's certificate than the upstream's."""
        return (self.captured or self.proxy) is not None

    @property
    def client(self) -> list[str]:
        """What goes before the client's command."""
        return [] if self.behind is None else self.behind.client_prefix

    def without_proxy(self, dialled: str) -> "Contender":
        """Return the same gate as a client meets it that knows of no proxy."""
        return dataclasses.replace(self, name="captured", proxy=None, captured=dialled)

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


def bench_configuration(
    upstream: Upstream, resolver: str, secret_file: Path, *, client: str = "127.0.0.1"
) -> dict[str, Any]:
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
                        "addresses": [f"{upstream.host}/32"],
                    },
                    {
                        "host": NAME,
                        "protocol": "http",
                        "ports": [upstream.http_port],
                        "addresses": [f"{upstream.host}/32"],
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
        "sessions": {"bench": {"policy": "bench", "credentials": ["bench"], "from": f"{client}/32"}},
    }


def _listen(upstream: Upstream, place: World | None) -> dict[str, str]:
    """Return the ways in beside the proxy on loopback: all of them, on the sandbox's side, behind a wall."""
    if place is None:
        return {}
    ways = {"http": 8080, "transparent": 8443, "dns": 53, "tls": upstream.https_port}
    return {way: f"{GATE}:{port}" for way, port in ways.items()}


@contextlib.contextmanager
def tidegate(upstream: Upstream, *, core: int, place: World | None = None) -> Iterator[Contender]:
    """Run Tidegate with a session for its client's address, whose placeholder stands in its own folder."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-gate-"))
    secret_file = folder / "secret"
    secret_file.write_text(SECRET)
    # The keeper reads it under a user of its own.
    folder.chmod(0o755)
    secret_file.chmod(0o644)
    try:
        known = {NAME: addresses(upstream.host)}
        there = {} if place is None else {"address": INTERNET, "bind": place.bind}
        with dns_server(known, **there) as dns:
            config = bench_configuration(
                upstream, dns.address, secret_file, client="127.0.0.1" if place is None else CLIENT
            )
            config["listen"] = _listen(upstream, place)
            began = time.perf_counter()
            prefix = [*([] if place is None else place.gate_prefix), "taskset", "-c", str(core)]
            with gate(config, prefix=prefix) as running:
                ready = time.perf_counter() - began
                placeholder = _variable(running.state / "sandbox" / "bench" / "env", _TOKEN)
                proxy = f"{running.host}:{running.port}" if place is None else config["listen"]["http"]
                if place is not None:
                    subprocess.run(["ip", "-n", place.client, "route", "add", "default", "via", GATE], check=True)
                pids = lambda: _family(running.process.pid)  # noqa: E731 (closes over this very gate)
                yield Contender("tidegate", NAME, placeholder, proxy, pids, ready, running, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wall(contender: Contender, verb: str) -> None:
    """Put the wall around the client's link up, or down."""
    place, running = contender.behind, contender.gate
    if place is None or running is None:
        raise TypeError("its client has no link")
    up = ("--sandbox", CLIENT, "--config", str(running.config_file)) if verb == "up" else ()
    line = [*place.gate_prefix, *tidegate_command("wall", verb, "--device", "sandbox", *up)]
    subprocess.run(line, env=environment(), check=True, capture_output=True)


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
