"""A sandbox behind the wall, IPv4 and IPv6, beside a host that has more to offer than the gate, before a bad internet.

    with walled() as place:
        place.probe("--only", "host")

What keeps the sandbox from all of it is the wall alone: `1.1.1.1` and the metadata address are there and answer, the
gate's machine has services of its own, and the sandbox has routes to everywhere.
"""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from tests.lab import inside
from tests.lab.certs import Authority
from tests.lab.dns import addresses, dns_server
from tests.lab.gate import Gate, configuration, environment, gate, rule, tidegate_command
from tests.lab.upstream import Upstream, upstream
from tests.lab.world import CLIENT, GATE, INTERNET, World, resolver_of, world

__all__ = ["API", "CLIENT6", "DEVICE", "GATE6", "PORTS", "PUBLIC", "Walled", "walled"]

API, DEVICE = "api.allowed.test", "sandbox"
HOME, PUBLIC, METADATA = "10.98.0.5", "1.1.1.1", "169.254.169.254"
CLIENT6, GATE6 = "fd77::2", "fd77::1"
PORTS = {"http": 8080, "tls": 443, "dns": 53, "transparent": 8443}


@dataclasses.dataclass
class Walled:
    """The namespaces, the gate, and the server of the one allowed name."""

    place: World
    gate: Gate
    server: Upstream
    public: Upstream

    def at_gate(self, *command: str, check: bool = True) -> str:
        """Run a command at the gate's end of the link; return what it said."""
        done = subprocess.run(
            [*self.place.gate_prefix, *command], capture_output=True, text=True, timeout=40, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def wall(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tidegate wall` at the gate's end of the link."""
        return inside.wall(self.place, *arguments)

    def wall_up(self) -> None:
        """Put up the wall, or make it whole again."""
        own = ("--sandbox", CLIENT, "--sandbox", CLIENT6)
        done = self.wall("up", "--device", DEVICE, *own, "--config", str(self.gate.config_file))
        assert done.returncode == 0, done.stderr

    def dropped(self) -> dict[str, int]:
        """Return how many packets each rule of the wall dropped."""
        counts = json.loads(self.wall("show", "--device", DEVICE, "-o", "json").stdout)
        return {rule: count["packets"] for rule, count in counts.items()}

    def probe(self, *options: str, check: bool = True) -> tuple[int, dict[str, Any]]:
        """Run `tidegate probe --in` the sandbox; return its exit code and its report."""
        command = tidegate_command("probe", "--in", self.place.client, "-o", "json", *options)
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=90, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def through_gate(self) -> list[str]:
        """Return the options that let the probe try the ways through the gate."""
        return ["--allowed", f"{API}/echo", "--proxy", f"http://{GATE}:8080"]


@contextlib.contextmanager
def walled(*, ways_in: Sequence[str] = tuple(PORTS)) -> Iterator[Walled]:
    """Run all of it, with some of the gate's ways in."""
    listen = {"http": "off", **{key: f"{GATE}:{PORTS[key]}" for key in ways_in}}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(world(addresses=[HOME, PUBLIC, METADATA]))
        stack.enter_context(resolver_of(place.client, GATE))
        ca = stack.enter_context(Authority())
        dns = stack.enter_context(
            dns_server({API: addresses(HOME)}, address=INTERNET, port=53, bind=place.bind)
        )  # fmt: skip
        one = {"address": HOME, "port": 443, "bind": place.bind}
        server = stack.enter_context(upstream(ca=ca, names=(API,), alpn=("h2", "http/1.1"), **one))
        public = stack.enter_context(upstream(address=PUBLIC, port=80, bind=place.bind))
        stack.enter_context(upstream(address=METADATA, port=80, bind=place.bind))
        _widen(place)
        config = configuration(
            allow=[rule(API, addresses=["10.98.0.0/24"])],
            policy={"budgets": {"session": {"distinct_names_per_hour": 1000}}},
            ca=ca,
            listen=listen,
            limits={"connections_per_session": 4096},  # so that the wall's own bound is what holds
            sessions={"agent": {"policy": "default", "from": f"{CLIENT}/32"}},
        )
        config["resolver"]["servers"] = [dns.address]
        running = stack.enter_context(gate(config, prefix=place.gate_prefix))
        made = Walled(place, running, server, public)
        made.wall_up()
        yield made


def _widen(place: World) -> None:
    """Give the link IPv6 and room for another address, and the sandbox routes to everywhere."""

    def ip(space: str, words: Sequence[str]) -> None:
        subprocess.run(["ip", "-n", space, *words], check=True, capture_output=True, timeout=10)

    ip(place.gate, ["address", "add", f"{GATE}/24", "dev", DEVICE])
    ip(place.gate, ["address", "add", f"{GATE6}/64", "dev", DEVICE, "nodad"])
    ip(place.client, ["address", "add", f"{CLIENT6}/64", "dev", "eth0", "nodad"])
    ip(place.client, ["route", "add", "default", "via", GATE])
    ip(place.client, ["-6", "route", "add", "default", "via", GATE6])
    # The internet knows the way back: what comes out of the sandbox is answered.
    ip(place.internet, ["route", "add", "10.77.0.0/24", "via", "10.99.0.1"])
