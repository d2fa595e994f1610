"""Where credentials are tried: a real gate with one of each kind, servers that reflect, and where secrets may not be.

world = world_fixture()

def test_x(world: World) -> None:
    visitor = world.visitor()
    visitor.get(world.server, host=HEADER, headers=[bearer(visitor.session.placeholder("HEADER"))])
"""

import base64
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.lab.certs import Authority
from tests.lab.client import RawReply
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.folder import open_folder
from tests.lab.gate import Gate, GateDied, configuration, gate, rule
from tests.lab.upstream import Upstream, upstream
from tests.lab.visitor import Visitor, place

__all__ = [
    "BASIC",
    "COMMANDED",
    "FILED",
    "HEADER",
    "INSIDE",
    "OTHER",
    "QUERY",
    "RENEWED",
    "REPLACED",
    "SECRETS",
    "SHORT_LIVED",
    "World",
    "basic",
    "confined",
    "one_credential",
    "refusal_to_start",
    "refused",
    "world_fixture",
]

HEADER, BASIC, QUERY = "header.allowed.test", "basic.allowed.test", "query.allowed.test"
OTHER, REPLACED, FILED, COMMANDED = "other.allowed.test", "own.allowed.test", "file.allowed.test", "cmd.allowed.test"
SHORT_LIVED, INSIDE = "short.allowed.test", "inside.allowed.test"
SECRETS = {
    "header": "sk-Live-3xR7vQ2mZ9pL5tY8wK1nB4cD6fG0hJ",
    "basic": "ghp_Qm4zX8vR2nT6yU0pL3kJ7hG1fD5sA9wE2rT4",
    "query": "AIza/Zx9+Cv8=Bn7&Mq6?Wp5%Er4 Ty3#Ui2",
    "own": "own-Kd83mZq01xVb72nPy56tLw94cRf",
    "filed": "file-Hs82kQp37vBn64mXz19tRw50yLc",
    "commanded": "cmd-Wn57xKq92mVb38zPt61yRs04fLc",
    "short": "short-Tb61nQx84mKv29zRp73yWs05fLc",
}
RENEWED = "renew-Yc47mVq18xKn93bZt52pRw60sLf"
CHECKED = ["/echo", "/reflect", "/r/**", "/cookies", "/header", "/ws", "/sse/**", "/bytes/**", "/status/**"]


@dataclass
class World:
    gate: Gate
    server: Upstream
    two: Upstream
    dns: DnsServer
    folder: Path

    def visitor(self, policy: str = "default", **more: object) -> Visitor:
        return Visitor(self.gate, self.gate.session(policy=policy, credentials=list(SECRETS), **more))  # type: ignore[arg-type]


def _credential(name: str, host: str, where: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "source": {"env": f"{name.upper()}_KEY"},
        "for": [{"host": host, "methods": ["GET", "POST", "PUT", "OPTIONS"], "paths": CHECKED}],
        "place": where,
        "placeholder": {"shape": "generic", "env": name.upper()},
        **more,
    }


def _printed(path: Path) -> dict[str, object]:
    return {"command": ["/bin/cat", str(path)]}


@contextlib.contextmanager
def _sources() -> Iterator[Path]:
    with open_folder() as made:
        (made / "filed").write_text(SECRETS["filed"] + "\r\n")
        for name in ("commanded", "short"):
            (made / name).write_text(SECRETS[name] + "\n")
        yield made


@contextlib.contextmanager
def _make_world(folder: Path) -> Iterator[World]:
    """Run everything."""
    hosts = (HEADER, BASIC, QUERY, OTHER, REPLACED, FILED, COMMANDED, SHORT_LIVED)
    credentials = {
        "header": _credential("header", HEADER, place()),
        "basic": _credential("basic", BASIC, place(basic={"user": "x-access-token"})),
        "query": _credential("query", QUERY, place(query="key")),
        "own": _credential("own", REPLACED, place(header="X-Api-Key"), foreign="replace"),
        "filed": _credential("filed", FILED, place(), source={"file": str(folder / "filed")}),
        "commanded": _credential("commanded", COMMANDED, place(), source=_printed(folder / "commanded")),
        "short": _credential("short", SHORT_LIVED, place(), source=_printed(folder / "short"), ttl_seconds=10),
    }
    with (
        Authority() as ca,
        dns_server({name: addresses("127.0.0.1") for name in hosts}) as dns,
        upstream(ca=ca, names=hosts) as server,
        upstream(ca=ca, names=hosts, alpn=("h2",)) as two,
    ):
        bound = zip(hosts, ("header", "basic", "query", None, "own", "filed", "commanded", "short"), strict=True)
        dns.set(INSIDE, addresses("10.9.8.7"))
        allow = [
            rule(INSIDE, port=server.port),
            *(rule(host, ports=[server.port, two.port], websocket=True, credential=name) for host, name in bound),
        ]
        config = configuration(allow=allow, dns=dns, ca=ca, credentials=credentials)
        config["policies"]["strict"] = {**config["policies"]["default"], "placeholders": "strict"}
        env = {
            f"{name.upper()}_KEY": secret
            for name, secret in SECRETS.items()
            if name in ("header", "basic", "query", "own")
        }
        with gate(config, env=env) as running:
            yield World(running, server, two, dns, folder)


def world_fixture() -> Callable[..., Any]:
    """Return a fixture, one world for a module."""

    @pytest.fixture(scope="module", name="world")
    def world() -> Iterator[World]:
        with _sources() as folder, _make_world(folder) as made:
            yield made

    return world


def basic(user: str, password: str) -> tuple[str, str]:
    """Return the header field of Basic."""
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def refused(reply: RawReply, reason: str) -> None:
    """Assert that the reply is the denial for a reason."""
    assert reply.reason == reason, (reply.status, reply.body)


def confined(world: World) -> None:
    """Assert that no secret, in any form, stands in a file, an argument list or an environment of the gate (C-32)."""
    pids = [world.gate.process.pid]
    for pid in pids:
        task = Path(f"/proc/{pid}/task/{pid}/children")
        pids += [int(child) for child in task.read_text().split()]
    files = [path for path in world.gate.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".jsonl" for path in files)
    assert any("keeper" in str(path) for path in files), "the store is where one would look first"
    texts = {str(path): path.read_bytes() for path in files} | {"stderr": world.gate.stderr.encode()}
    for pid in pids:
        texts[f"argv of {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
        if pid not in (pids[0], _keeper(world)):  # these two are given it by their environment
            texts[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_bytes()
    for name, text in texts.items():
        for needle in _needles():
            assert needle not in text, f"a secret stands in {name}"


def _needles() -> list[bytes]:
    found = []
    for secret in (*SECRETS.values(), RENEWED):
        raw = secret.encode()
        encoded = [base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)]
        found += [raw, raw.hex().encode(), quote(secret, safe="").encode(), *encoded]
    return found


def _keeper(world: World) -> int:
    out = subprocess.run(
        ["pgrep", "-P", str(world.gate.process.pid), "-f", "tidegate.keeper.__main__"], capture_output=True
    )
    return int(out.stdout or 0)


def one_credential(changes: dict[str, object]) -> dict[str, object]:
    """Return a configuration of one credential, with some of its keys changed."""
    allow = [rule(HEADER, port=8443, credential="one")]
    one = {"source": {"env": "KEY"}, "for": [{"host": HEADER}], "place": place(), "placeholder": {"shape": "generic"}}
    return configuration(allow=allow, credentials={"one": {**one, **changes}})


def refusal_to_start(config: dict[str, object]) -> str:
    """Return what the gate says as it refuses to start with a configuration."""
    with pytest.raises(GateDied) as died, gate(config, env={"KEY": SECRETS["header"]}):
        pass
    return str(died.value)
