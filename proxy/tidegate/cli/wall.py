"""`tidegate wall`: put the rules around a sandbox's link, take them away, show them, check that they stand."""

import ipaddress
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.place import config_option, find_config
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.leash import Leash
    from tidegate_launcher.rules import Address, Listener
    from tidegate_launcher.shared import Shared
    from tidegate_launcher.wall import Link

__all__ = ["device_name", "wall"]

# Narrower than the kernel's own names, which could be patterns or more to nft.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")


def device_name(_: click.Context, __: click.Parameter, given: str | tuple[str, ...] | None) -> object:
    """Check the names of devices that an option gives."""
    for name in (given,) if isinstance(given, str) else given or ():
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f"{name!r} is no name of a device that this can hold (letters, digits, _ . -)")
    return given


@click.group(short_help="Stand a wall around a sandbox's link.")
def wall() -> None:
    """Stand a wall around a sandbox's link: nothing of it reaches anything but the gate.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2
    """


@wall.command("up")
@click.option(
    "--device", callback=device_name, help="The gate's end of the link [default: the one that the sandbox is behind]."
)
@click.option("--sandbox", "addresses", multiple=True, required=True, help="Address of the sandbox; repeat for more.")
@config_option
def up(*, device: str | None, addresses: tuple[str, ...], config: Path | None) -> int:
    """Put the rules in place, or replace them, in one step. They outlive the gate: gate dead means no traffic.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2 --sandbox fd77::2
    """
    from tidegate_launcher.noted import put_up
    from tidegate_launcher.wall import table_name, transaction

    sandbox = tuple(_sandbox(text) for text in addresses)
    device = device or _device_of(sandbox)
    _check_machine(device)
    link = _link(device, sandbox, config)
    rules = put_up(table_name(device), transaction(link), device=device)
    talk(f"the wall stands: {device}, {rules} rules")
    for address in _strangers(sandbox, config):
        talk(f"no session of the configuration is from {address}: without a token it is refused")
    return 0


@wall.command("gate")
@config_option
def gate(*, config: Path | None) -> int:
    """Hold the gate's own user back: no metadata, and no special network that no rule names.

    Do it again when the rules' `addresses` have changed.

    Example: tidegate wall gate
    """
    from tidegate_launcher.leash import LEASH_TABLE, leash_transaction
    from tidegate_launcher.noted import put_up

    rules = put_up(LEASH_TABLE, leash_transaction(_leash(config)))
    talk(f"the gate's user is held: {rules} rules")
    return 0


@wall.command("shared")
@config_option
def shared(*, config: Path | None) -> int:
    """Hold whoever shares the gate's own network namespace: they reach its listeners on loopback alone.

    All but root and the gate's own user are held, and nobody is called from outside. Weaker than a link: nothing but
    the uid tells a sandbox from the gate, so it must not be able to change it.

    Example: tidegate wall shared
    """
    from tidegate_launcher.noted import put_up
    from tidegate_launcher.shared import SHARED_TABLE, shared_transaction

    one = _shared(config)
    rules = put_up(SHARED_TABLE, shared_transaction(one))
    talk(f"the wall stands: all users but root and the gate's, {one.gate}; {rules} rules")
    return 0


def _whose[F: Callable[..., object]](function: F) -> F:
    own = click.option("--gate", is_flag=True, help="The rules that hold the gate's own user.")
    users = click.option("--shared", is_flag=True, help="The rules that hold users of the gate's namespace.")
    return own(users(click.option("--device", callback=device_name, help="The gate's end of a link.")(function)))


@wall.command("down")
@_whose
def down(*, device: str | None, gate: bool, shared: bool) -> int:
    """Take the rules away. A sandbox is then held by its routes alone.

    Example: tidegate wall down --device sandbox
    """
    from tidegate_launcher import nft
    from tidegate_launcher.noted import forget

    table, shown = _table(device, gate=gate, shared=shared)
    stood = nft.remove(table)
    forget(table)
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

    counts = nft.read().counts(_table(device, gate=gate, shared=shared)[0])
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
    from tidegate_launcher.noted import wrong

    table, shown = _table(device, gate=gate, shared=shared)
    standing = nft.read()
    problems, rules = wrong(table, standing, device=device), standing.rules(table)
    if device is not None:
        for other in standing.others():
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


def _shared(config: Path | None) -> "Shared":
    from tidegate.config.load import load
    from tidegate.runtime.identity import identities
    from tidegate_launcher.shared import Shared

    listen = load(find_config(config), environ=os.environ, flags={}).listen
    found = [(key, _listener(key, one)) for key, one in listen.named() if one[0] in ("127.0.0.1", "::1")]
    try:
        return Shared(
            gate=identities().gate.uid,
            listeners=tuple(one for key, one in found if key != "listen.dns"),
            dns=tuple(one for key, one in found if key == "listen.dns"),
        )
    except ValueError as fault:
        raise LaunchError(str(fault), where="listen", hint="give the gate a listener on 127.0.0.1") from None


def _strangers(sandbox: "tuple[Address, ...]", config: Path | None) -> "list[Address]":
    """Return the addresses that no session of the file is bound to."""
    from tidegate.config.load import load

    sessions = load(find_config(config), environ=os.environ, flags={}).sessions.values()
    homes = [ipaddress.ip_network(one.from_) for one in sessions if one.from_ is not None]
    return [one for one in sandbox if not any(one in home for home in homes if home.version == one.version)]


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
            gate=tuple(ipaddress.ip_address(address) for address in sorted(here)),
        )
    except ValueError as fault:
        shown = ", ".join(sorted(here)) or "none"
        hint = f"give the gate listeners on an address of {device} (it has: {shown})"
        raise LaunchError(str(fault), where="listen", hint=hint) from None


def _sandbox(text: str) -> "Address":
    from tidegate.runtime.own import own_addresses

    try:
        address = ipaddress.ip_address(text)
    except ValueError as fault:
        raise click.UsageError(f"--sandbox: {fault}") from None
    mapped = address.version == 6 and address.ipv4_mapped is not None
    if mapped or address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local:
        raise click.UsageError(f"--sandbox: {text} is no address that a sandbox has")
    if str(address) in own_addresses():
        raise click.UsageError(f"--sandbox: {text} is the gate's own address")
    return address


def _listener(key: str, address: tuple[str, int]) -> "Listener":
    host = ipaddress.ip_address(address[0])
    if host.is_unspecified:
        raise LaunchError("a wall needs the one address that is listened on", where=key, hint="not all addresses")
    return host, address[1]


def _check_machine(device: str) -> None:
    from tidegate_launcher.noted import forwarding

    if device not in {name for _, name in socket.if_nameindex()}:
        raise LaunchError(f"there is no device {device} in this namespace", hint="ip link shows what there is")
    on = forwarding(device)
    if on:
        raise LaunchError(
            f"this namespace forwards packets ({', '.join(on)})", hint="sysctl -w net.ipv4.ip_forward=0, and for IPv6"
        )
