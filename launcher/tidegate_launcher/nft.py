"""nftables by its JSON interface: one transaction in, the rules as they stand out (libnftables-json(5))."""

import json
import shutil
import subprocess
from typing import Any

from tidegate.errors import LaunchError

__all__ = ["Counts", "apply", "check", "counters", "other_tables", "read", "remove", "standing"]

_SECONDS = 20.0


def apply(commands: dict[str, Any]) -> None:
    """Carry out a transaction: all of it, or nothing. Raises `LaunchError`."""
    _nft(["-j", "-f", "-"], json.dumps(commands))


def check(commands: dict[str, Any]) -> None:
    """Have the kernel check a transaction without carrying it out. Raises `LaunchError`."""
    _nft(["-c", "-j", "-f", "-"], json.dumps(commands))


def remove(table: str) -> bool:
    """Remove a link's tables; tell whether any stood. Raises `LaunchError`."""
    found = [family for family in ("inet", "netdev") if _listed(family, table) is not None]
    commands = [{"delete": {"table": {"family": family, "name": table}}} for family in found]
    if commands:
        apply({"nftables": commands})
    return bool(commands)


type Counts = dict[str, tuple[int, int]]
"""Packets and bytes of the rules that count, by chain and comment."""


def read(table: str) -> tuple[list[dict[str, Any]], Counts]:
    """Return the rules of tables of this name as they stand, and their counts, of one moment.

    The rules are without handles and counts: what two listings share. Empty when there is none. Raises `LaunchError`.
    """
    listed = [one for family in ("inet", "netdev") for one in _listed(family, table) or []]
    counts: Counts = {}
    for one in listed:
        rule = one.get("rule", {})
        for expression in rule.get("expr", []):
            if isinstance(expression, dict) and isinstance(expression.get("counter"), dict):
                counted = expression["counter"]
                counts[f"{rule['chain']}: {rule.get('comment', '')}"] = counted["packets"], counted["bytes"]
    return [_bare(one) for one in listed if "metainfo" not in one], counts


def standing(table: str) -> list[dict[str, Any]]:
    """Return the rules alone. Raises `LaunchError`."""
    return read(table)[0]


def counters(table: str) -> Counts:
    """Return the counts alone. Raises `LaunchError`."""
    return read(table)[1]


def other_tables(own: str) -> list[str]:
    """Return the tables of others with a chain at ingress or prerouting, where rules act before ours or beside them."""
    listed = json.loads(_nft(["-j", "list", "ruleset"], None))["nftables"]
    chains = [one["chain"] for one in listed if one.get("chain", {}).get("hook") in ("ingress", "prerouting")]
    return sorted({f"table {one['family']} {one['table']}" for one in chains if one["table"] != own})


def _listed(family: str, table: str) -> list[dict[str, Any]] | None:
    try:
        text = _nft(["-j", "list", "table", family, table], None)
    except LaunchError as fault:
        if "No such file or directory" in fault.what:
            return None
        raise
    listed: list[dict[str, Any]] = json.loads(text)["nftables"]
    return listed


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
        raise LaunchError(f"nft: {said}", hint="this needs root, or CAP_NET_ADMIN in this namespace" if denied else "")
    return done.stdout
