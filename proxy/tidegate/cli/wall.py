"""`tidegate wall`: put the rules around a sandbox's link, take them away, show them, check that they stand."""

import ipaddress
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.place import config_option, find_config
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.leash import Leash
    from tidegate_launcher.shared import Shared
    from tidegate_launcher.wall import Address, Link, Listener

__all__ = ["wall"]

_STATE: Final = Path("/run/tidegate")
_FORWARD: Final = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")


@click.group(short_help="Stand a wall around a sandbox's link.")
def wall() -> None:
    """Stand a wall around a sandbox's link: nothing of it reaches anything but the gate.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2
    """


@wall.command("up")
@click.option("--device", help="The gate's end of the link [default: the one that the sandbox is behind].")
@click.option("--sandbox", "addresses", multiple=True, required=True, help="Address of the sandbox; repeat for more.")
@config_option
def up(*, device: str | None, addresses: tuple[str, ...], config: Path | None) -> int:
    """Put the rules in place, or replace them, in one step. They outlive the gate: gate dead means no traffic.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2 --sandbox fd77::2
    """
    from tidegate_launcher.wall import table_name, transaction

    sandbox = _parsed(addresses)
    device = device or _device_of(sandbox)
    _check_machine(device)
    link = _link(device, sandbox, config)
    rules = _put(table_name(device), transaction(link))
    talk(f"the wall stands: {device}, {rules} rules")
    return 0


@wall.command("gate")
@config_option
def gate(*, config: Path | None) -> int:
    """Hold the gate's own user back: no metadata, and no special network that no rule names.

    Do it again when the rules' `addresses` have changed.

    Example: tidegate wall gate
    """
    from tidegate_launcher.leash import LEASH_TABLE, leash_transaction

    rules = _put(LEASH_TABLE, leash_transaction(_leash(config)))
    talk(f"the gate's user is held: {rules} rules")
    return 0


@wall.command("shared")
@click.option("--user", "users", type=int, multiple=True, required=True, help="Uid of the sandbox; repeat for more.")
@config_option
def shared(*, users: tuple[int, ...], config: Path | None) -> int:
    """Hold users who share the gate's own network namespace: they reach its listeners on loopback alone.

    Weaker than a link: nothing but the uid tells them from the gate, so they must not be able to change it.

    Example: tidegate wall shared --user 65534
    """
    from tidegate_launcher.shared import SHARED_TABLE, shared_transaction

    rules = _put(SHARED_TABLE, shared_transaction(_shared(users, config)))
    talk(f"the wall stands: user {', '.join(map(str, users))}, {rules} rules")
    return 0


def _whose[F: Callable[..., object]](function: F) -> F:
    own = click.option("--gate", is_flag=True, help="The rules that hold the gate's own user.")
    users = click.option("--shared", is_flag=True, help="The rules that hold users of the gate's namespace.")
    return own(users(click.option("--device", help="The gate's end of a link.")(function)))


@wall.command("down")
@_whose
def down(*, device: str | None, gate: bool, shared: bool) -> int:
    """Take the rules away. A sandbox is then held by its routes alone.

    Example: tidegate wall down --device sandbox
    """
    from tidegate_launcher import nft

    table, shown = _table(device, gate=gate, shared=shared)
    stood = nft.remove(table)
    try:
        _state(table).unlink(missing_ok=True)
    except OSError as fault:
        raise LaunchError(f"the note of the wall stays: {fault.strerror}", where=str(_state(table))) from fault
    talk(f"the wall is gone: {shown}" if stood else f"there was no wall: {shown}")
    return 0


@wall.command("show")
@_whose
@output_option
def show(*, device: str | None, gate: bool, shared: bool, output: str) -> int:
    """Show what was dropped.

    Example: tidegate wall show --device sandbox
    """
    from tidegate_launcher import nft

    counts = nft.counters(_table(device, gate=gate, shared=shared)[0])
    if output == "json":
        print_json({rule: {"packets": packets, "bytes": size} for rule, (packets, size) in counts.items()})
    else:
        print_table(("rule", "packets", "bytes"), [(rule, *count) for rule, count in counts.items()])
    return 0 if counts else 1


@wall.command("check")
@_whose
def check(*, device: str | None, gate: bool, shared: bool) -> int:
    """Check that every rule stands as it was made, and that nothing is forwarded. Exits 1 when not.

    Example: tidegate wall check --device sandbox
    """
    from tidegate_launcher import nft

    table, shown = _table(device, gate=gate, shared=shared)
    try:
        wanted = json.loads(_state(table).read_text())
    except (OSError, ValueError):
        wanted = []
    if not wanted:
        raise LaunchError(f"no wall was put up around {shown} here", hint="tidegate wall up, or tidegate wall gate")
    rules = nft.standing(table)
    problems = [f"missing: {_shown(one)}" for one in wanted if one not in rules]
    problems += [f"not ours: {_shown(one)}" for one in rules if one not in wanted]
    if not problems and rules != wanted:
        problems.append("the rules stand in another order")
    if device is not None:
        problems += _link_problems(device)
        for other in nft.other_tables(table):
            talk(f"{shown}: {other} sees packets before they are through; it is not judged here")
    for problem in problems:
        talk(f"{shown}: {problem}")
    if not problems:
        talk(f"{shown}: whole, {sum('rule' in one for one in rules)} rules")
    return 1 if problems else 0


def _table(device: str | None, *, gate: bool, shared: bool) -> tuple[str, str]:
    """Return the table that is meant, and how it is spoken of."""
    from tidegate_launcher.leash import LEASH_TABLE
    from tidegate_launcher.shared import SHARED_TABLE
    from tidegate_launcher.wall import table_name

    if gate + shared + (device is not None) != 1:
        raise click.UsageError("give one of --device, --gate and --shared")
    if device is not None:
        return table_name(device), device
    return (LEASH_TABLE, "the gate's user") if gate else (SHARED_TABLE, "who shares the gate's namespace")


def _put(table: str, commands: dict[str, object]) -> int:
    """Carry the rules out, note what stands now, and return the number of rules."""
    from tidegate_launcher import nft

    state = _state(table)
    try:
        state.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        state.touch()
    except OSError as fault:
        raise LaunchError(f"what stands cannot be noted: {fault.strerror}", where=str(state)) from fault
    nft.apply(commands)
    rules = nft.standing(table)
    state.write_text(json.dumps(rules))
    return sum("rule" in one for one in rules)


def _link_problems(device: str) -> list[str]:
    problems = [f"{path} is on: this machine forwards" for path in _forwarding(device)]
    if not _there(device):
        problems.append("the device is gone, or has another name now: its rules hold nothing")
    return problems


def _leash(config: Path | None) -> "Leash":
    from tidegate.config.load import load
    from tidegate.config.nameserver import parse_nameserver
    from tidegate.resolve.server import system_nameservers
    from tidegate.runtime.identity import identities
    from tidegate_launcher.leash import Leash

    settings = load(find_config(config), environ=os.environ, flags={})
    resolver = settings.resolver
    given = [*resolver.servers, *(text for texts in resolver.zones.values() for text in texts)]
    servers = [parse_nameserver(text) for text in given] or list(system_nameservers())
    rules = [rule for policy in settings.policies.values() for rule in policy.allow]
    return Leash(
        uid=identities().gate.uid,
        servers=tuple((ipaddress.ip_address(one.address.partition("%")[0]), one.port) for one in servers),
        named=tuple(dict.fromkeys(ipaddress.ip_network(text) for rule in rules for text in rule.addresses)),
    )


def _shared(users: tuple[int, ...], config: Path | None) -> "Shared":
    from tidegate.config.load import load
    from tidegate.runtime.identity import identities
    from tidegate_launcher.shared import Shared

    listen = load(find_config(config), environ=os.environ, flags={}).listen
    who = identities()
    if taken := {who.gate.uid, who.keeper.uid, who.minter.uid} & set(users):
        raise LaunchError(f"{taken.pop()} is a user of Tidegate's own", where="--user", hint="give the sandbox another")
    found = [(key, _listener(key, one)) for key, one in listen.named() if one[0] in ("127.0.0.1", "::1")]
    try:
        return Shared(
            users=tuple(dict.fromkeys(users)),
            listeners=tuple(one for key, one in found if key != "listen.dns"),
            dns=tuple(one for key, one in found if key == "listen.dns"),
        )
    except ValueError as fault:
        raise LaunchError(str(fault), where="--user", hint="see listen in the configuration, and `user:`") from None


def _parsed(addresses: tuple[str, ...]) -> "tuple[Address, ...]":
    try:
        return tuple(ipaddress.ip_address(text) for text in addresses)
    except ValueError as fault:
        raise click.UsageError(f"--sandbox: {fault}") from None


def _device_of(sandbox: "tuple[Address, ...]") -> str:
    """Return the one device behind which the sandbox's addresses are neighbours."""
    from tidegate.runtime.own import device_beside

    found = {str(address): device_beside(address) for address in sandbox}
    devices = set(found.values())
    device = devices.pop()
    if device is None or devices:
        told = ", ".join(f"{address}: {name or 'no device'}" for address, name in found.items())
        raise LaunchError(
            f"the sandbox is not behind one device of this namespace ({told})",
            where="--sandbox",
            hint="run this in the gate's network namespace, or name the device: --device",
        )
    return device


def _link(device: str, sandbox: "tuple[Address, ...]", config: Path | None) -> "Link":
    from tidegate.config.load import load
    from tidegate.runtime.own import own_devices
    from tidegate_launcher.wall import Link

    listen = load(find_config(config), environ=os.environ, flags={}).listen
    here = {address for address, on in own_devices() if on == device}
    found = [(key, _listener(key, one)) for key, one in listen.named() if one[0] in here]
    dialled = [one for key, one in found if key in ("listen.http", "listen.socks", "listen.tls")]
    try:
        return Link(
            device=device,
            sandbox=sandbox,
            listeners=tuple(dialled),
            transparent=tuple(one for key, one in found if key == "listen.transparent"),
            dns=tuple(one for key, one in found if key == "listen.dns"),
        )
    except ValueError as fault:
        shown = ", ".join(sorted(here)) or "none"
        hint = f"give the gate listeners on an address of {device} (it has: {shown})"
        raise LaunchError(str(fault), where="listen", hint=hint) from None


def _listener(key: str, address: tuple[str, int]) -> "Listener":
    host = ipaddress.ip_address(address[0])
    if host.is_unspecified:
        raise LaunchError("a wall needs the one address that is listened on", where=key, hint="not all addresses")
    return host, address[1]


def _check_machine(device: str) -> None:
    if not _there(device):
        raise LaunchError(f"there is no device {device} in this namespace", hint="ip link shows what there is")
    on = _forwarding(device)
    if on:
        raise LaunchError(
            f"this namespace forwards packets ({', '.join(on)})", hint="sysctl -w net.ipv4.ip_forward=0, and for IPv6"
        )


def _there(device: str) -> bool:
    return Path("/sys/class/net", device).exists()


def _forwarding(device: str) -> list[str]:
    found = []
    for path in (*_FORWARD, *(f"net/{version}/conf/{device}/forwarding" for version in ("ipv4", "ipv6"))):
        try:
            if Path("/proc/sys", path).read_text().strip() != "0":
                found.append(path.replace("/", "."))
        except OSError:
            continue  # without IPv6 there is nothing to forward
    return found


def _state(table: str) -> Path:
    """Return where the rules as they were made are noted: per network namespace and table."""
    return _STATE / f"{table}-{os.stat('/proc/self/ns/net').st_ino}.json"


def _shown(one: dict[str, dict[str, object]]) -> str:
    kind, body = next(iter(one.items()))
    if kind == "rule":
        return f"rule {body.get('comment', '?')!r} of chain {body['chain']}"
    return f"{kind} {body['name']}"
