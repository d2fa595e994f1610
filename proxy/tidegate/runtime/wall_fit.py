"""Whether a wall that stands was made for what is in force: whole as it is, it may be for another configuration.

A wall is made of parts of the configuration, which it says in words when it is put up. What has changed since is not
let through, and nothing else would tell why.
"""

import hashlib
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidegate.config.model import ListenSettings, Settings, address_text
from tidegate.config.nameserver import parse_nameserver
from tidegate.keeper.protocol import GATE_USER, USERS
from tidegate.resolve.server import system_nameservers

__all__ = ["leash_words", "link_words", "loopback_listeners", "misfits", "named_networks", "resolvers", "shared_words"]

_MOST_WORDS: Final = 100


def resolvers(settings: Settings) -> tuple[tuple[str, int], ...]:
    """Return the servers that the gate asks, address and port."""
    resolver = settings.resolver
    given = [*resolver.servers, *(text for texts in resolver.zones.values() for text in texts)]
    servers = [parse_nameserver(text) for text in given] or list(system_nameservers())
    return tuple((one.address.partition("%")[0], one.port) for one in servers)


def named_networks(settings: Settings) -> tuple[str, ...]:
    """Return the networks that rules name."""
    rules = [rule for policy in settings.policies.values() for rule in policy.allow]
    return tuple(dict.fromkeys(text for rule in rules for text in rule.addresses))


def loopback_listeners(listen: ListenSettings) -> tuple[tuple[str, tuple[str, int]], ...]:
    """Return what is listened on for those who share the gate's namespace, each with its key."""
    return tuple(one for one in listen.named() if one[1][0] in ("127.0.0.1", "::1"))


def link_words(listen: ListenSettings, addresses: Collection[str]) -> tuple[str, ...]:
    """Return what a wall is made of, around a device that has these addresses."""
    return _words(f"{key} {address_text(one)}" for key, one in listen.named() if one[0] in addresses)


def leash_words(settings: Settings) -> tuple[str, ...]:
    """Return what the rules that hold the gate's own user are made of."""
    servers = {f"resolver {address_text(one)}" for one in resolvers(settings)}
    prefixes = {f"nat64 {one}" for one in settings.resolver.nat64_prefixes}
    named = {f"addresses {ipaddress.ip_network(one)}" for one in named_networks(settings)}
    closed = {f"deny_cidrs {ipaddress.ip_network(one)}" for one in settings.deny_cidrs}
    return _words(servers | prefixes | named | closed)


def shared_words(listen: ListenSettings) -> tuple[str, ...]:
    """Return what the rules that hold users of the gate's namespace are made of."""
    return _words(f"{key} {address_text(one)}" for key, one in loopback_listeners(listen))


def _words(several: Iterable[str]) -> tuple[str, ...]:
    """Return them in order; very many as one that stands for them, since a watch says them each second."""
    words = tuple(sorted(several))
    if len(words) <= _MOST_WORDS:
        return words
    return (f"{len(words)} parts, {hashlib.sha256(repr(words).encode()).hexdigest()[:16]}",)


def misfits(
    settings: Settings, made_for: Mapping[str, tuple[str, ...]], here: Collection[tuple[str, str]]
) -> list[str]:
    """Return what of the walls that stand is for another configuration; `here` are addresses with their devices."""
    found = []
    for name, words in made_for.items():
        wanted, command = _wanted(name, settings, here)
        if set(words) != set(wanted):
            differing = ", ".join(sorted(set(words) ^ set(wanted)))
            found.append(f"wall: {name}: put up for another configuration ({differing}): {command}, once more")
    return found


def _wanted(name: str, settings: Settings, here: Collection[tuple[str, str]]) -> tuple[tuple[str, ...], str]:
    if name == GATE_USER:
        return leash_words(settings), "tidegate wall gate"
    if name == USERS:
        return shared_words(settings.listen), "tidegate wall shared"
    addresses = {address for address, device in here if device == name}
    return link_words(settings.listen, addresses), "tidegate wall up"
