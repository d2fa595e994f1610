"""What stands behind the gate: an API, a git server, an attacker, a metadata service, a DNS that rebinds.

| name                    | what it is                                              |
|-------------------------|---------------------------------------------------------|
| api.partner.test        | an API with an open redirect and an echo of headers     |
| git.code.test           | git over https, open only to the real token             |
| rebind.partner.test     | the API at the first look-up, metadata at the second    |
| attacker.evil.test      | what no policy allows                                   |
| 169.254.169.254         | a metadata service that would answer (in a world only)  |
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.lab.certs import Authority
from tests.lab.dns import DnsServer, addresses, dns_server, sequence
from tests.lab.gitserver import git_backend, make_repository
from tests.lab.sockets import Bind, bind_loopback, free_port
from tests.lab.upstream import Upstream, upstream
from tests.lab.world import GATE, World

__all__ = [
    "API",
    "ATTACKER",
    "CODE",
    "METADATA",
    "REBIND",
    "Internet",
    "Place",
    "internet",
    "loopback_place",
    "world_place",
]

API, CODE, REBIND, ATTACKER = "api.partner.test", "git.code.test", "rebind.partner.test", "attacker.evil.test"
METADATA = "169.254.169.254"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the servers stand and how the two sides' commands are run."""

    bind: Bind
    api: str
    code: str
    attacker: str
    dns: str
    https_port: int
    dns_port: int
    network: str
    """The network to name in `addresses:` of a rule."""
    gate_host: str
    client_prefix: Sequence[str]
    gate_prefix: Sequence[str]
    walled: bool
    """Whether the client has no way but the gate."""

    def url(self, name: str, path: str = "/") -> str:
        """Return the https URL of a path of a server."""
        return f"https://{self.authority(name)}{path}"

    def authority(self, name: str) -> str:
        """Return `name`, with the port where it is not 443."""
        return name if self.https_port == 443 else f"{name}:{self.https_port}"


def world_place(world: World) -> Place:
    """Return the place of the servers in a world of namespaces."""
    hosts = [f"10.99.0.{number}" for number in (10, 20, 66, 53)]
    world.give(*hosts, METADATA)
    api, code, attacker, dns = hosts
    return Place(
        world.bind,
        api,
        code,
        attacker,
        dns,
        443,
        53,
        "10.99.0.0/24",
        GATE,
        world.client_prefix,
        world.gate_prefix,
        True,
    )


def loopback_place() -> Place:
    """Return a place on loopback, where nothing is walled off."""
    hosts = [f"127.0.7.{number}" for number in (10, 20, 66)]
    api, code, attacker = hosts
    return Place(
        bind_loopback, api, code, attacker, "127.0.0.1", free_port(api), 0, "127.0.7.0/24", "127.0.0.1", (), (), False
    )


@dataclasses.dataclass(frozen=True)
class Internet:
    """The running servers."""

    place: Place
    dns: DnsServer
    api: Upstream
    code: Upstream
    attacker: Upstream
    metadata: Upstream | None
    repository: Path


@contextlib.contextmanager
def internet(
    place: Place, ca: Authority, *, git_token: str, names: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Internet]:
    """Run the servers at `place`; `names` are further names with their addresses."""
    scripts = {
        API: addresses(place.api),
        CODE: addresses(place.code),
        ATTACKER: addresses(place.attacker),
        REBIND: sequence(addresses(place.api, ttl=0), addresses(METADATA, ttl=0)),
        **{name: addresses(*found) for name, found in (names or {}).items()},
    }
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-git-")))
        repository = make_repository(root, "acme/demo.git")

        def serve(*server_names: str, address: str) -> Upstream:
            made = upstream(ca=ca, names=server_names, address=address, port=place.https_port, bind=place.bind)
            return stack.enter_context(made)

        dns = stack.enter_context(dns_server(scripts, address=place.dns, port=place.dns_port, bind=place.bind))
        api = serve(API, REBIND, address=place.api)
        code = serve(CODE, address=place.code)
        code.route("/acme/**", git_backend(root, user="x-access-token", password=git_token))
        attacker = serve(ATTACKER, address=place.attacker)
        metadata = None
        if place.walled:
            metadata = stack.enter_context(upstream(address=METADATA, port=80, bind=place.bind))
        yield Internet(place, dns, api, code, attacker, metadata, repository)
