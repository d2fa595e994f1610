"""nftables by its JSON interface: one transaction in, the rules as they stand out (libnftables-json(5))."""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from tidegate.errors import LaunchError
from tidegate_launcher.privilege import NEEDS_NET_ADMIN
from tidegate_launcher.wall.led_away import led_away

__all__ = ["Counts", "Ruleset", "apply", "check", "read", "remove"]

_SECONDS = 20.0
_ENTRIES = ("prerouting", "input")
"""Hooks of what comes in, after the device's own."""


def apply(commands: dict[str, Any]) -> None:
    """Carry out a transaction: all of it, or nothing. Raises `LaunchError`."""
    _nft(["-j", "-f", "-"], json.dumps(commands))


def check(commands: dict[str, Any]) -> None:
    """Have the kernel check a transaction without carrying it out. Raises `LaunchError`."""
    _nft(["-c", "-j", "-f", "-"], json.dumps(commands))


def remove(table: str) -> bool:
    """Remove the tables of this name; tell whether any stood. Raises `LaunchError`."""
    commands = [{"delete": {"table": {"family": family, "name": table}}} for family in read().families(table)]
    if commands:
        apply({"nftables": commands})
    return bool(commands)


type Counts = dict[str, tuple[int, int]]
"""Packets and bytes of the rules that count, by chain and comment."""


class Ruleset:
    """All rules of this namespace, of one moment."""

    def __init__(self, listed: list[dict[str, Any]]) -> None:
        self._listed = listed

    def rules(self, table: str) -> list[dict[str, Any]]:
        """Return the tables of this name with all that is in them, without handles and counts.

        That is what two listings share. Empty when there is none.
        """
        return [_bare(one) for one in self._of(table)]

    def counts(self, table: str) -> Counts:
        """Return the counts of the rules that count."""
        found: Counts = {}
        for one in self._of(table):
            rule = one.get("rule", {})
            for expression in rule.get("expr", []):
                if isinstance(expression, dict) and isinstance(expression.get("counter"), dict):
                    counted = expression["counter"]
                    found[f"{rule['chain']}: {rule.get('comment', '')}"] = counted["packets"], counted["bytes"]
        return found

    def families(self, table: str) -> list[str]:
        """Return the families that have a table of this name."""
        tables = [one["table"] for one in self._listed if "table" in one]
        return [one["family"] for one in tables if one["name"] == table]

    def beside(self, device: str, *, ours: Callable[[str], bool]) -> list[str]:
        """Return the tables of others that take packets at the device itself, before or after ours.

        `ours` tells by its name which table we have put up. An nft that does not say of which device a chain is leaves
        it to be this one.
        """
        chains = [one for one in self._at("ingress", ours) if device in _devices(one, device)]
        return [f"table {one['family']} {one['table']}" for one in chains]

    def past(self, device: str, *, ours: Callable[[str], bool]) -> list[str]:
        """Return the tables of others that may lead what comes in by the device past our rules, and by which words."""
        tables = {(one["family"], one["table"]) for hook in _ENTRIES for one in self._at(hook, ours)}
        found = []
        for family, table in sorted(tables):
            if words := led_away(self._entered(family, table), device):
                found.append(f"table {family} {table} ({', '.join(words)})")
        return found

    def others(self, *, ours: Callable[[str], bool]) -> list[str]:
        """Return the tables of others with a chain at prerouting, where rules act before ours or beside them."""
        return sorted({f"table {one['family']} {one['table']}" for one in self._at("prerouting", ours)})

    def _at(self, hook: str, ours: Callable[[str], bool]) -> list[dict[str, Any]]:
        chains = [one["chain"] for one in self._listed if "chain" in one]
        return [one for one in chains if one.get("hook") == hook and not ours(one["table"])]

    def _entered(self, family: str, table: str) -> list[dict[str, Any]]:
        """Return the rules of a table but for those of chains where packets leave."""
        own = [one for one in self._of(table) if next(iter(one.values())).get("family") == family]
        chains = [one["chain"] for one in own if "chain" in one]
        away = {one["name"] for one in chains if "hook" in one and one["hook"] not in _ENTRIES}
        return [one["rule"] for one in own if "rule" in one and one["rule"]["chain"] not in away]

    def _of(self, table: str) -> list[dict[str, Any]]:
        found = []
        for one in self._listed:
            kind, body = next(iter(one.items()))
            if isinstance(body, dict) and table == (body.get("name") if kind == "table" else body.get("table")):
                found.append(one)
        return found


def read() -> Ruleset:
    """Read all rules of this namespace. Raises `LaunchError`."""
    # As JSON, not as arguments, which nft joins to a script in which a name could say anything.
    # Numbers, not names, which it has from files that not every reader may read.
    text = _nft(["-j", "-n", "-f", "-"], json.dumps({"nftables": [{"list": {"ruleset": None}}]}))
    return Ruleset(json.loads(text)["nftables"])


def _devices(chain: dict[str, Any], unsaid: str) -> list[str]:
    named = chain.get("dev", unsaid)
    return [named] if isinstance(named, str) else list(named)


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {key: inner for key, inner in value.items() if key not in ("handle", "index")}
    return {key: {} if key == "counter" else _bare(inner) for key, inner in kept.items()}


def _nft(arguments: list[str], given: str | None) -> str:
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        raise LaunchError("there is no nft on this machine", hint="install the package nftables")
    try:
        done = subprocess.run(
            [program, *arguments], input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"nft did not answer within {_SECONDS:g} s", hint="is another program holding its lock?"
        ) from None
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        denied = "Operation not permitted" in said
        raise LaunchError(f"nft: {said}", hint=NEEDS_NET_ADMIN if denied else "")
    return done.stdout
