"""The rules as they were put up, and whether they still stand so."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidegate.errors import LaunchError
from tidegate_launcher import nft

__all__ = ["forget", "forwarding", "put_up", "wrong"]

_STATE: Final = Path("/run/tidegate")
_FORWARD: Final = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")


def put_up(table: str, commands: dict[str, object]) -> int:
    """Carry the rules out, note what stands now, and return the number of rules. Raises `LaunchError`."""
    note = _note(table)
    try:
        note.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        note.touch()
    except OSError as fault:
        raise LaunchError(f"what stands cannot be noted: {fault.strerror}", where=str(note)) from fault
    nft.apply(commands)
    rules = nft.standing(table)
    note.write_text(json.dumps(rules))
    return sum("rule" in one for one in rules)


def forget(table: str) -> None:
    """Remove the note. Raises `LaunchError`."""
    try:
        _note(table).unlink(missing_ok=True)
    except OSError as fault:
        raise LaunchError(f"the note of the wall stays: {fault.strerror}", where=str(_note(table))) from fault


def wrong(table: str, rules: Sequence[dict[str, Any]], *, device: str | None) -> list[str]:
    """Return what is not as it was put up, in plain words; `rules` are those that stand.

    Raises `LaunchError` when nothing was put up here.
    """
    wanted = _wanted(table)
    problems = [f"missing: {_shown(one)}" for one in wanted if one not in rules]
    problems += [f"not ours: {_shown(one)}" for one in rules if one not in wanted]
    if not problems and list(rules) != wanted:
        problems.append("the rules stand in another order")
    if device is not None:
        problems += [f"{path} is on: this machine forwards" for path in forwarding(device)]
        if not Path("/sys/class/net", device).exists():
            problems.append("the device is gone, or has another name now: its rules hold nothing")
    return problems


def forwarding(device: str) -> list[str]:
    """Return the switches of forwarding that are on in this namespace."""
    found = []
    for path in (*_FORWARD, *(f"net/{version}/conf/{device}/forwarding" for version in ("ipv4", "ipv6"))):
        try:
            if Path("/proc/sys", path).read_text().strip() != "0":
                found.append(path.replace("/", "."))
        except OSError:
            continue  # without IPv6 there is nothing to forward
    return found


def _wanted(table: str) -> list[dict[str, Any]]:
    try:
        wanted: list[dict[str, Any]] = json.loads(_note(table).read_text())
    except (OSError, ValueError):
        wanted = []
    if not wanted:
        raise LaunchError(f"no wall was put up here as {table}", hint="tidegate wall up, or tidegate wall gate")
    return wanted


def _note(table: str) -> Path:
    """Return where the rules as they were made are noted: per network namespace and table."""
    return _STATE / f"{table}-{os.stat('/proc/self/ns/net').st_ino}.json"


def _shown(one: dict[str, dict[str, object]]) -> str:
    kind, body = next(iter(one.items()))
    if kind == "rule":
        return f"rule {body.get('comment', '?')!r} of chain {body['chain']}"
    return f"{kind} {body['name']}"
