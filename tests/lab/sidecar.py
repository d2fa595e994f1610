"""What stands around a compose recipe in tests: servers on the lab's internet, and the recipe with rules for them.

Of a recipe everything is run as it is shipped but for its `policies`, which name servers of the lab.
"""

import contextlib
import dataclasses
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server
from tests.lab.engine import ROOT, Engine, Stack
from tests.lab.gitserver import git_backend, make_repository
from tests.lab.index import serve_index
from tests.lab.sockets import in_namespace
from tests.lab.upstream import Upstream, says, upstream
from tests.lab.world import INTERNET

__all__ = [
    "API",
    "CODE",
    "HOME",
    "INDEX",
    "OTHER",
    "PROBE",
    "TOKEN",
    "Outside",
    "assert_closed",
    "host_hears",
    "outside",
    "policy",
    "probe_card",
    "recipe",
]

API, CODE, INDEX, OTHER = "api.partner.test", "git.code.test", "index.partner.test", "attacker.evil.test"
HOME, FAR = "10.98.0.5", "10.98.0.66"
TOKEN = "code-token-83a7d0be1c9f45268e7714ab"
KEEPER = 64731
PROBE = (ROOT / "launcher" / "tidegate_launcher" / "probe.py").read_text()
_ALPN = ("h2", "http/1.1")
_MOST_SECONDS = 30
_PUBLIC = ("1.1.1.1", "8.8.8.8", "9.9.9.9", "169.254.169.254", "10.0.0.1")


@dataclasses.dataclass(frozen=True)
class Outside:
    """The servers: one for what is allowed, one that no policy names, and the DNS that knows both."""

    server: Upstream
    other: Upstream
    dns: DnsServer
    ca: Authority


@contextlib.contextmanager
def outside(engine: Engine) -> Iterator[Outside]:
    """Run the servers on the lab's internet."""
    bind = engine.world.bind
    names = (API, CODE, INDEX)
    engine.world.give(HOME, FAR)
    scripts = {**{name: addresses(HOME) for name in names}, OTHER: addresses(FAR)}
    with contextlib.ExitStack() as stack:
        ca = stack.enter_context(Authority())
        server = stack.enter_context(upstream(ca=ca, names=names, alpn=_ALPN, address=HOME, port=443, bind=bind))
        other = stack.enter_context(upstream(ca=ca, names=(OTHER,), address=FAR, port=443, bind=bind))
        dns = stack.enter_context(dns_server(scripts, address=INTERNET, port=53, bind=bind))
        # What the probe looks for: whoever is let out finds somebody.
        engine.world.give(*_PUBLIC)
        for address in _PUBLIC:
            stack.enter_context(upstream(address=address, port=80, bind=bind))
        stack.enter_context(upstream(ca=ca, names=("one.one.one.one",), address=_PUBLIC[0], port=443, bind=bind))
        stack.enter_context(
            dns_server({"one.one.one.one": addresses("1.1.1.1")}, address=_PUBLIC[0], port=53, bind=bind)
        )
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-git-")))
        make_repository(root, "acme/demo.git", files=2)
        server.route("/acme/**", git_backend(root, user="x-access-token", password=TOKEN))
        server.route("/open/hi", says(b"hello"))
        serve_index(server)
        yield Outside(server, other, dns, ca)


def policy(**more: Any) -> dict[str, Any]:
    """Return the policy that every recipe's sandbox gets, unless it says another."""
    inside = {"addresses": ["10.98.0.0/24"]}
    return {
        "allow": [
            {"host": API, "paths": ["/open/**", "/sse/**"], **inside},
            {"host": CODE, "paths": ["/acme/**"], "credential": "code", **inside},
            {"host": INDEX, "methods": ["GET", "HEAD"], "paths": ["/simple/**", "/files/**"], **inside},
        ],
        **more,
    }


_CREDENTIALS = {
    "code": {
        "source": {"file": "/run/secrets/github"},
        "for": [{"host": CODE, "paths": ["/acme/**"]}],
        "place": {"basic": {"user": "x-access-token", "password": "{secret}"}},
        "placeholder": {"env": "CODE_TOKEN"},
    }
}


@contextlib.contextmanager
def recipe(
    engine: Engine,
    beyond: Outside,
    file: Path,
    *,
    project: str,
    policies: Mapping[str, Any] | None = None,
    holders: Sequence[str] = ("agent",),
) -> Iterator[Stack]:
    """Yield a recipe's services: a copy of its folder, with rules for the lab's servers in its `tidegate.yaml`.

    `holders` are the sessions that hold the one credential.
    """
    folder = engine.folder / project
    shutil.copytree(file.parent, folder, ignore=None if file.parent != ROOT else _only_compose)
    (settings,) = folder.glob("**/tidegate.yaml")
    config = yaml.safe_load(settings.read_text())
    found = policies or {name: policy() for name in config["policies"]}
    config["policies"], config["credentials"] = dict(found), _CREDENTIALS
    for name in holders:
        config["sessions"][name]["credentials"] = ["code"]
    config["upstream"] = {"extra_ca_files": ["/etc/tidegate/lab-ca.pem"]}
    if config["listen"].get("http") is False:  # YAML 1.1, which this library reads, takes «off» for a truth value
        config["listen"]["http"] = "off"
    settings.write_text(json.dumps(config))
    shutil.copy(beyond.ca.pem, settings.parent / "lab-ca.pem")
    secret = folder / "github-token"
    secret.write_text(TOKEN)
    secret.chmod(0o400)
    shutil.chown(secret, KEEPER, KEEPER)
    variables = {"GITHUB_TOKEN_FILE": str(secret), "SANDBOX_IMAGE": "lab-sandbox"}
    with engine.compose(folder / file.name, project=project, variables=variables) as stack:
        yield stack


def _only_compose(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name not in ("compose.yaml", "compose")} if Path(folder) == ROOT else set()


def probe_card(
    stack: Stack, service: str, *, allowed: str = f"{API}/open/hi", proxy: str | None = None, seconds: float = 1
) -> dict[str, Any]:
    """Run the probe inside a service, with a page that its policy allows; return its card, which came in time."""
    options = ["--json", f"--seconds={seconds}", f"--allowed={allowed}", f"--denied={OTHER}"]
    done = stack.run_in(
        service, "python3", "-", *options, *([f"--proxy={proxy}"] if proxy else []), stdin=PROBE, timeout=100
    )
    card: dict[str, Any] = json.loads(done.stdout)
    assert card["seconds"] < _MOST_SECONDS
    return card


def assert_closed(card: Mapping[str, Any], *lanes: str) -> None:
    """See to it that nothing is open, and that all was tried by these ways into the gate, and by no other."""
    assert [way for way in card["ways"] if way["state"] == "open"] == []
    untried = [way for way in card["ways"] if way["state"] == "not testable"]
    for kind in ("name", "smuggling", "h2"):
        through = {way["way"].rpartition(", ")[2] for way in card["ways"] if way["kind"] == kind}
        without = {way["way"].rpartition(", ")[2] for way in untried if way["kind"] == kind}
        assert through - without == set(lanes), [way for way in untried if way["kind"] == kind]
    if "tunnel" in lanes:
        assert [way for way in untried if way["kind"] == "proxy"] == []


_DIAL = """
import socket, sys
for address in sys.argv[2:]:
    host, _, device = address.partition("%")
    try:
        socket.create_connection((host + ("%eth0" if device else ""), int(sys.argv[1])), 1).sendall(b"x")
    except OSError:
        pass
"""


def host_hears(stack: Stack, service: str, *, python: str = "python3") -> list[str]:
    """Have a service dial every address of the engine's host; return whom the listeners there have accepted."""
    place = stack.engine.world
    shown = subprocess.run([*place.gate_prefix, "ip", "-j", "addr"], capture_output=True, check=True).stdout
    hosts = [
        f"{one['local']}%{link['ifname']}" if one["local"].startswith("fe80") else str(one["local"])
        for link in json.loads(shown) for one in link["addr_info"] if link["ifname"] != "lo"
    ]  # fmt: skip
    bind, heard = in_namespace(place.gate), []
    with bind("0.0.0.0", 9999, socket.SOCK_STREAM) as four, bind("::", 9998, socket.SOCK_STREAM) as six:
        for listener in (four, six):
            port = str(listener.getsockname()[1])
            done = stack.run_in(service, python, "-c", _DIAL, port, *hosts, timeout=90)
            assert done.returncode == 0, done.stderr
            with contextlib.suppress(BlockingIOError):
                heard.append(str(listener.accept()[1][0]))
    return heard
