"""What a wall is to hold, out of the configuration and what this machine has: the rule makers' own values."""

import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.place import need_config
from tidegate.errors import LaunchError

if TYPE_CHECKING:
    from tidegate.config.model import ListenSettings
    from tidegate_launcher.wall.leash import Leash
    from tidegate_launcher.wall.link import Link
    from tidegate_launcher.wall.rules import Address, Listener
    from tidegate_launcher.wall.shared import Shared
type Words = tuple[str, ...]

__all__ = ["check_machine", "device_of", "leash_of", "link_of", "sandbox_address", "shared_of", "strangers"]


def leash_of(config: Path | None) -> "tuple[Leash, Words]":
    """Return what the gate's own user may reach, and in words what that is made of."""
    from tidegate.config.load import load
    from tidegate.runtime.identity import identities
    from tidegate.runtime.wall_fit import leash_words, named_networks, resolvers
    from tidegate_launcher.wall.leash import Leash

    settings = load(need_config(config), environ=os.environ, flags={})
    leash = Leash(
        uid=identities().gate.uid,
        servers=tuple((ipaddress.ip_address(host), port) for host, port in resolvers(settings)),
        named=tuple(map(ipaddress.ip_network, named_networks(settings))),
        nat64=tuple(map(ipaddress.IPv6Network, settings.resolver.nat64_prefixes)),
        closed=tuple(map(ipaddress.ip_network, settings.deny_cidrs)),
    )
    return leash, leash_words(settings)


def shared_of(config: Path | None) -> "tuple[Shared, Words]":
    """Return what users of the gate's namespace may reach, and in words what that is made of. Raises `LaunchError`."""
    from tidegate.config.load import load
    from tidegate.runtime.identity import identities
    from tidegate.runtime.wall_fit import loopback_listeners, shared_words
    from tidegate_launcher.wall.shared import Shared

    listen = load(need_config(config), environ=os.environ, flags={}).listen
    _no_wildcard(listen)
    found = [(key, _listener(one)) for key, one in loopback_listeners(listen)]
    try:
        shared = Shared(
            gate=identities().gate.uid,
            listeners=tuple(one for key, one in found if key != "listen.dns"),
            dns=tuple(one for key, one in found if key == "listen.dns"),
        )
    except ValueError as fault:
        raise LaunchError(str(fault), where="listen", hint="give the gate a listener on 127.0.0.1") from None
    return shared, shared_words(listen)


def strangers(sandbox: "tuple[Address, ...]", config: Path | None) -> "list[Address]":
    """Return the addresses that no session of the file is bound to."""
    from tidegate.config.load import load

    sessions = load(need_config(config), environ=os.environ, flags={}).sessions.values()
    homes = [ipaddress.ip_network(one.from_) for one in sessions if one.from_ is not None]
    return [one for one in sandbox if not any(one in home for home in homes if home.version == one.version)]


def device_of(sandbox: "tuple[Address, ...]") -> str:
    """Return the one device behind which the sandbox's addresses are neighbours. Raises `LaunchError`."""
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


def link_of(device: str, sandbox: "tuple[Address, ...]", config: Path | None) -> "tuple[Link, Words]":
    """Return the sandbox's link with the listeners at its device, and in words what it is made of.

    Raises `LaunchError`.
    """
    from tidegate.config.load import load
    from tidegate.runtime.own import own_devices
    from tidegate.runtime.wall_fit import link_words
    from tidegate_launcher.wall.link import Link

    listen = load(need_config(config), environ=os.environ, flags={}).listen
    _no_wildcard(listen)
    here = {address for address, on in own_devices() if on == device}
    found = [(key, _listener(one)) for key, one in listen.named() if one[0] in here]
    dialled = [one for key, one in found if key in ("listen.http", "listen.socks", "listen.tls")]
    try:
        link = Link(
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
    return link, link_words(listen, here)


def sandbox_address(text: str) -> "Address":
    """Return the address that `--sandbox` gives. Raises `UsageError`."""
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


def _listener(address: tuple[str, int]) -> "Listener":
    return ipaddress.ip_address(address[0]), address[1]


def _no_wildcard(listen: "ListenSettings") -> None:
    for key, (host, _) in listen.named():
        if ipaddress.ip_address(host).is_unspecified:
            raise LaunchError("a wall needs the one address that is listened on", where=key, hint="not all addresses")


def check_machine(device: str) -> None:
    """Raise `LaunchError` when no wall can stand here: no such device, or the namespace forwards."""
    from tidegate_launcher.wall.noted import forwarding

    if device not in {name for _, name in socket.if_nameindex()}:
        raise LaunchError(f"there is no device {device} in this namespace", hint="ip link shows what there is")
    on = forwarding(device)
    if on:
        raise LaunchError(
            f"this namespace forwards packets ({', '.join(on)})", hint="sysctl -w net.ipv4.ip_forward=0, and for IPv6"
        )
