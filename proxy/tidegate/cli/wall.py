"""`tidegate wall`: put the rules around a sandbox's link, take them away, show them, check that they stand."""

import ipaddress
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.client import AdminClient, Refused
from tidegate.cli.place import config_option, find_config
from tidegate.cli.table import output_option, print_json, print_table, talk
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate_launcher.leash import Leash
    from tidegate_launcher.wall import Address, Link, Listener

__all__ = ["Told", "wall"]

# Narrower than the kernel's own names, which could be patterns or more to nft.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")


class Told:
    """The halves of a gate that are told: both, where they are two."""

    def __init__(self, state: Path) -> None:
        self._paths = [state / name for name in ("admin.sock", "admin-gate.sock")]
        self._taken = dict.fromkeys(self._paths, 0)
        self._state = state

    def send(self, report: Mapping[str, Any]) -> None:
        """Send a report to each that runs and has not taken it yet.

        Raises `TidegateError` when one cannot be told, or none runs. What one refuses, it would refuse again.
        """
        running = [path for path in self._paths if path.exists()]
        if not running:
            raise LaunchError("no gate is running there", where=str(self._state), hint="start it with `tidegate up`")
        for path in running:
            if self._taken[path] == report["number"]:
                continue
            try:
                AdminClient(path, seconds=2.0).post("/v1/wall", report)
            except Refused as fault:
                talk(f"a report was refused and is lost: {fault}")
            self._taken[path] = report["number"]


def _device(_: click.Context, __: click.Parameter, given: str | tuple[str, ...] | None) -> object:
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
@click.option("--device", required=True, callback=_device, help="The gate's end of the link.")
@click.option("--sandbox", "addresses", multiple=True, required=True, help="Address of the sandbox; repeat for more.")
@config_option
def up(*, device: str, addresses: tuple[str, ...], config: Path | None) -> int:
    """Put the rules in place, or replace them, in one step. They outlive the gate: gate dead means no traffic.

    Example: tidegate wall up --device sandbox --sandbox 10.77.0.2 --sandbox fd77::2
    """
    from tidegate_launcher.noted import put_up
    from tidegate_launcher.wall import table_name, transaction

    _check_machine(device)
    link = _link(device, addresses, config)
    rules = put_up(table_name(device), transaction(link), device=device)
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
    from tidegate_launcher.noted import put_up

    rules = put_up(LEASH_TABLE, leash_transaction(_leash(config)))
    talk(f"the gate's user is held: {rules} rules")
    return 0


def _whose[F: Callable[..., object]](function: F) -> F:
    own = click.option("--gate", is_flag=True, help="The rules that hold the gate's own user.")
    return own(click.option("--device", callback=_device, help="The gate's end of a link.")(function))


@wall.command("down")
@_whose
def down(*, device: str | None, gate: bool) -> int:
    """Take the rules away. A sandbox is then held by its routes alone.

    Example: tidegate wall down --device sandbox
    """
    from tidegate_launcher import nft
    from tidegate_launcher.noted import forget

    table, shown = _table(device, gate)
    stood = nft.remove(table)
    forget(table)
    talk(f"the wall is gone: {shown}" if stood else f"there was no wall: {shown}")
    return 0


@wall.command("show")
@_whose
@output_option
def show(*, device: str | None, gate: bool, output: str) -> int:
    """Show what was dropped.

    Example: tidegate wall show --device sandbox
    """
    from tidegate_launcher import nft

    counts = nft.read().counts(_table(device, gate)[0])
    if output == "json":
        print_json({rule: {"packets": packets, "bytes": size} for rule, (packets, size) in counts.items()})
    else:
        print_table(("rule", "packets", "bytes"), [(rule, *count) for rule, count in counts.items()])
    return 0 if counts else 1


@wall.command("check")
@_whose
def check(*, device: str | None, gate: bool) -> int:
    """Check that every rule stands as it was made, and that nothing is forwarded. Exits 1 when not.

    Example: tidegate wall check --device sandbox
    """
    from tidegate_launcher import nft
    from tidegate_launcher.noted import wrong

    table, shown = _table(device, gate)
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


@wall.command("watch")
@click.option("--device", "devices", multiple=True, callback=_device, help="The gate's end of a link; repeat for more.")
@click.option("--gate", is_flag=True, help="Watch the rules that hold the gate's own user as well.")
@config_option
@click.option("--state-dir", type=click.Path(path_type=Path), help="State folder of the gate that is told.")
def watch(*, devices: tuple[str, ...], gate: bool, config: Path | None, state_dir: Path | None) -> int:
    """Tell the gate what the wall drops and whether it stands, each second, until SIGTERM.

    It gives up every privilege but CAP_NET_ADMIN, writes no file from then on and reads only what it needs. While it is
    silent the gate is not ready.

    Example: tidegate wall watch --device sandbox
    """
    from tidegate.cli.place import find_state
    from tidegate_launcher.leash import LEASH_TABLE
    from tidegate_launcher.nflog import PacketLog
    from tidegate_launcher.nft import read
    from tidegate_launcher.noted import wrong
    from tidegate_launcher.privilege import keep_net_admin
    from tidegate_launcher.wall import LOG_GROUP, table_name
    from tidegate_launcher.watch import Place, Watch

    if not devices and not gate:
        raise click.UsageError("give --device, or --gate")
    places = [Place(table_name(device), device) for device in devices]
    places += [Place(LEASH_TABLE, None)] if gate else []
    standing = read()
    for place in places:
        wrong(place.table, standing, device=None)  # raises where no wall was put up
    log = PacketLog(LOG_GROUP)
    state = find_state(config=config, state_dir=state_dir)
    keep_net_admin()
    held = _read_only()
    one = Watch(log, places, Told(state).send, talk)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.end())
    talk(f"watching {', '.join(place.shown for place in places)}{held}")
    one.run()
    return 0


def _read_only() -> str:
    """Give up writing files, and reading others than programs and the kernel's own; say what cannot be given up."""
    from tidegate.runtime.landlock import EXECUTE, READ, abi, restrict
    from tidegate.runtime.lockdown import interpreter_paths

    version = abi()
    if not version:
        return ", not held back from files: this kernel has no Landlock"
    programs = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache")
    known = ("/proc", "/sys", "/run/tidegate", "/dev/null")
    paths = [*map(Path, programs), *interpreter_paths(), *map(Path, known)]
    restrict([(path, READ | EXECUTE) for path in paths if path.exists()], version=version)
    return ""


def _table(device: str | None, gate: bool) -> tuple[str, str]:
    """Return the table that is meant, and how it is spoken of."""
    from tidegate_launcher.leash import LEASH_TABLE
    from tidegate_launcher.wall import table_name

    if gate == (device is not None):
        raise click.UsageError("give either --device or --gate")
    return (LEASH_TABLE, "the gate's user") if device is None else (table_name(device), device)


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


def _link(device: str, addresses: tuple[str, ...], config: Path | None) -> "Link":
    from tidegate.config.load import load
    from tidegate.runtime.own import own_devices
    from tidegate_launcher.wall import Link

    listen = load(find_config(config), environ=os.environ, flags={}).listen
    sandbox = tuple(_sandbox(text) for text in addresses)
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

    if not Path("/sys/class/net", device).exists():
        raise LaunchError(f"there is no device {device} in this namespace", hint="ip link shows what there is")
    on = forwarding(device)
    if on:
        raise LaunchError(
            f"this namespace forwards packets ({', '.join(on)})", hint="sysctl -w net.ipv4.ip_forward=0, and for IPv6"
        )
