"""`tidegate compose`: write compose files for sandboxes that share a gate and nothing else."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from tidegate.cli.table import talk
from tidegate.errors import LaunchError

__all__ = ["compose"]

_PREFIX: Final = 29
"""The smallest network in which an engine that keeps a gateway's address still has one for gate and sandbox each."""
_MOST: Final = 200
"""A gate has one leg a sandbox; an engine's bridge driver makes no more than some hundreds of networks."""


class _Cage(NamedTuple):
    """One sandbox and its network."""

    name: str
    subnet: ipaddress.IPv4Network

    @property
    def gate(self) -> ipaddress.IPv4Address:
        return self.subnet[2]

    @property
    def sandbox(self) -> ipaddress.IPv4Address:
        return self.subnet[3]


@click.group(short_help="Write compose files for sandboxes beside one gate.")
def compose() -> None:
    """Write compose files for sandboxes beside one gate.

    Example: tidegate compose gen 3 --output sandboxes
    """


@compose.command("gen")
@click.argument("count", type=click.IntRange(1, _MOST), metavar="N")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=".", help="Folder [default: .].")
@click.option("--subnet", default="172.30.0.0/16", show_default=True, help="Where the networks are taken from.")
@click.option("--name", default="agent", show_default=True, help="Sandboxes are NAME-1 to NAME-N.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def gen(count: int, *, output: Path, subnet: str, name: str, force: bool) -> int:
    """Write N sandboxes, each with its own network, session and folder, and one gate with a leg in every network.

    They share neither network nor volume. The policies are yours to write: gate/tidegate.yaml begins with one for all.

    Example: tidegate compose gen 3 --output sandboxes
    """
    if not name.replace("-", "").isalnum() or not name.isascii() or name != name.lower() or name.startswith("-"):
        raise click.BadParameter("small letters, digits and dashes", param_hint="--name")
    cages = _cages(count, subnet, name)
    files = {"compose.yaml": _services(cages), "gate/tidegate.yaml": _settings(cages)}
    files |= {f"resolv/{cage.name}.conf": f"nameserver {cage.gate}\noptions timeout:5 attempts:1\n" for cage in cages}
    there = [path for path in files if (output / path).exists()]
    if there and not force:
        raise LaunchError("files are there already", where=", ".join(there), hint="choose another --output, or --force")
    try:
        for path, text in files.items():
            (output / path).parent.mkdir(parents=True, exist_ok=True)
            (output / path).write_text(text)
    except OSError as fault:
        raise LaunchError(f"cannot write: {fault.strerror}", where=str(fault.filename or output)) from fault
    talk(f"{len(files)} files in {output}; next: write the policies in {output / 'gate' / 'tidegate.yaml'}")
    return 0


def _cages(count: int, subnet: str, name: str) -> list[_Cage]:
    try:
        whole = ipaddress.IPv4Network(subnet)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--subnet") from None
    if whole.prefixlen > _PREFIX or 1 << (_PREFIX - whole.prefixlen) < count:
        raise click.BadParameter(f"{subnet} has no room for {count} networks of /{_PREFIX}", param_hint="--subnet")
    nets = whole.subnets(new_prefix=_PREFIX)
    return [_Cage(f"{name}-{number}", net) for number, net in zip(range(1, count + 1), nets, strict=False)]


_HEAD: Final = """\
# Written by `tidegate compose gen`: one gate, sandboxes that share nothing. Each has a network of its own whose only
# other member is a leg of the gate, and the folder of its own session, read-only.

x-tidegate: &tidegate
  image: tidegate
  pull_policy: never
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  restart: unless-stopped
  pids_limit: 256
  healthcheck: {test: [CMD, tidegate, health], interval: 2s, timeout: 5s, retries: 3, start_period: 60s}

x-sandbox: &sandbox
  image: ${SANDBOX_IMAGE:-tidegate-sandbox}
  command: [sh, -c, ". /tidegate/env && exec sleep infinity"]
  stop_signal: SIGKILL
  user: "65534:65534"
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  pids_limit: 256
  mem_limit: 1g
  tmpfs: ["/tmp:size=256m,mode=1777"]
  working_dir: /tmp
  environment: {HOME: /tmp, PIP_BREAK_SYSTEM_PACKAGES: "1"}
  depends_on:
    gate: {condition: service_healthy}

services:
  keeper:
    <<: *tidegate
    command: [up, --only, keeper]
    user: "64731:64731"
    group_add: ["64732"]
    network_mode: none
    secrets: [github]
    volumes:
      - ./gate:/etc/tidegate:ro
      - state:/var/lib/tidegate
      - vault:/var/lib/tidegate/keeper
      - audit:/var/lib/tidegate/audit
"""

_GATE: Final = """
  gate:
    <<: *tidegate
    command: [up, --only, gate]
    user: "64732:64732"
    depends_on: [keeper]
    sysctls: {net.ipv4.ip_unprivileged_port_start: "0", net.ipv4.ip_forward: "0"}
    volumes:
      - ./gate:/etc/tidegate:ro
      - state:/var/lib/tidegate:ro,nocopy
      - audit:/var/lib/tidegate/audit:nocopy
    tmpfs: ["/var/lib/tidegate/gate:size=1m,mode=0755,uid=64732,gid=64732"]
    networks:
      out: {}
"""

_SECRETS: Final = """
secrets:
  github: {file: "${GITHUB_TOKEN_FILE:-/dev/null}"}

volumes:
  state: {}
  vault: {}
  audit: {}
"""


def _services(cages: list[_Cage]) -> str:
    return "".join(_lines(cages))


def _lines(cages: list[_Cage]) -> Iterator[str]:
    yield _HEAD
    for cage in cages:
        yield f"      - {cage.name}:/var/lib/tidegate/sandbox/{cage.name}\n"
    yield _GATE
    for cage in cages:
        yield f"      {cage.name}: {{ipv4_address: {cage.gate}}}\n"
    for cage in cages:
        yield f"\n  {cage.name}:\n    <<: *sandbox\n    networks:\n"
        yield f"      {cage.name}: {{ipv4_address: {cage.sandbox}}}\n    dns: [{cage.gate}]\n    volumes:\n"
        yield f"      - ./resolv/{cage.name}.conf:/etc/resolv.conf:ro\n      - {cage.name}:/tidegate:ro\n"
    yield "\nnetworks:\n  out: {}\n"
    for cage in cages:
        yield f"  {cage.name}:\n    internal: true\n"
        yield '    driver_opts: {com.docker.network.bridge.inhibit_ipv4: "true"}\n'
        yield f"    ipam: {{config: [{{subnet: {cage.subnet}}}]}}\n"
    yield _SECRETS
    for cage in cages:
        yield f"  {cage.name}:\n    driver_opts: "
        yield '{type: tmpfs, device: tmpfs, o: "size=1m,uid=64731,gid=64731,mode=0755"}\n'


def _settings(cages: list[_Cage]) -> str:
    tls = "".join(f'    - "{cage.gate}:443"\n' for cage in cages)
    dns = "".join(f'    - "{cage.gate}:53"\n' for cage in cages)
    sessions = "".join(f"  {cage.name}: {{policy: triage, from: {cage.sandbox}/32}}\n" for cage in cages)
    return f"""\
# One session a sandbox: it is known by its address, and has the policy that is named here.
version: 1
state_dir: /var/lib/tidegate
listen:
  http: off
  tls:
{tls}  dns:
{dns}policies:
  triage:
    use: [{{preset: github-read, tenant: {{owner: python}}}}]
sessions:
{sessions}"""
