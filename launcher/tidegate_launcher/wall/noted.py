"""The rules as they were put up, and whether they still stand so, and hold what they were put up around."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.leash import LEASH_TABLE
from tidegate_launcher.wall.shared import SHARED_TABLE

__all__ = ["NOTES", "forget", "forwarding", "gone", "made_for", "must_stand", "ours", "put_up", "wrong"]

NOTES: Final = Path("/run/tidegate")
"""The folder of what was put up; a watch reads there."""
_DEVICES: Final = Path("/sys/class/net")
_PUTS_UP: Final = {LEASH_TABLE: "tidegate wall gate", SHARED_TABLE: "tidegate wall shared"}
"""What puts up the tables that stand around no link."""
_GONE: Final = "no rule of it stands any more: put the wall up again"
_FORWARD: Final = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")


class _Note(msgspec.Struct, frozen=True):
    """`index` is the kernel's number of the device, which a name may leave and another take.

    `made_for` is what the rules were made of, in words: what has other ones in force is not served by them.
    """

    rules: list[dict[str, Any]]
    index: int | None
    made_for: tuple[str, ...] = ()


def put_up(
    table: str, commands: dict[str, object], *, device: str | None = None, made_for: tuple[str, ...] = ()
) -> int:
    """Carry the rules out, note what stands now, and return the number of rules. Raises `LaunchError`."""
    note = _note(table)
    new = note.with_suffix(".new")
    try:
        # Before the rules: one that cannot be noted must not be put up. The note itself comes after them, whole.
        note.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.touch()
        rules = _applied(table, commands)
        new.write_bytes(msgspec.json.encode(_Note(rules, None if device is None else _index(device), made_for)))
        new.replace(note)
    except OSError as fault:
        hint = "it must be a folder that root can write"
        raise LaunchError(f"what stands cannot be noted: {fault.strerror}", where=str(note), hint=hint) from fault
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    return sum("rule" in one for one in rules)


def _applied(table: str, commands: dict[str, object]) -> list[dict[str, Any]]:
    nft.apply(commands)
    rules = nft.read().rules(table)
    if not rules:
        hint = "does another program change the rules here? stop it, and try again"
        raise LaunchError("the rules were taken and do not stand", where=table, hint=hint)
    return rules


def forget(table: str) -> None:
    """Remove the note. Raises `LaunchError`."""
    try:
        _note(table).unlink(missing_ok=True)
    except OSError as fault:
        raise LaunchError(f"the note of the wall stays: {fault.strerror}", where=str(_note(table))) from fault


def wrong(table: str, standing: nft.Ruleset, *, device: str | None) -> list[str]:
    """Return what is not as it was put up, in plain words. Raises `LaunchError` when nothing was put up here."""
    note, rules = _wanted(table), standing.rules(table)
    if not rules:
        return [_GONE]
    problems = [f"missing: {_shown(one)}" for one in note.rules if one not in rules]
    problems += [f"not ours: {_shown(one)}" for one in rules if one not in note.rules]
    if not problems and rules != note.rules:
        problems.append("the rules stand in another order")
    if device is not None:
        problems += [f"{path} is on: this machine forwards" for path in forwarding(device)]
        problems += [
            f"{other} takes packets at the device beside the wall" for other in standing.beside(device, ours=ours)
        ]
        problems += [f"{other} may lead packets past the wall" for other in standing.past(device, ours=ours)]
        problems += _carried(device, note.index)
    return problems


def ours(table: str) -> bool:
    """Tell whether we have put up a table of this name here; how a name begins anybody may choose."""
    return _note(table).exists()


def made_for(table: str) -> tuple[str, ...]:
    """Return what the rules were made of, in words. Raises `LaunchError` when nothing was put up here."""
    return _wanted(table).made_for


def must_stand(table: str, standing: nft.Ruleset) -> None:
    """Raise `LaunchError` when there is no rule, whether there was one or not."""
    if not standing.rules(table):
        _wanted(table)
        raise LaunchError(_GONE, where=table)


def gone(table: str, device: str) -> bool:
    """Tell whether there is no device that the wall could be asked about: the one that it was put up around, under
    whatever name, or another one of its name, by which packets come that no rule at the link sees.

    Where the wall was taken away, with the note, its name is all that is known.
    """
    if _index(device) is not None:
        return False
    try:
        index = _wanted(table).index
    except LaunchError:
        return True
    return index not in _indices()


def forwarding(device: str | None) -> list[str]:
    """Return the switches of forwarding that are on in this namespace, those of the device too, or of all of them."""
    found = []
    names = [name for _, name in socket.if_nameindex()] if device is None else [device]
    own = (f"net/{version}/conf/{name}/forwarding" for name in sorted(names) for version in ("ipv4", "ipv6"))
    for path in (*_FORWARD, *own):
        try:
            if Path("/proc/sys", path).read_text().strip() != "0":
                found.append(path.replace("/", "."))
        except OSError:
            continue  # without IPv6 there is nothing to forward
    return found


def _carried(device: str, index: int | None) -> Iterator[str]:
    """Yield what keeps packets from coming by the device as it was."""
    here = _index(device)
    if here is None:
        renamed = index is not None and index in _indices()
        yield "the device has another name now: its rules hold nothing" if renamed else "the device is gone"
    elif here != index:
        yield "this is another device of the same name: put the wall up again"
    master = _DEVICES / device / "master"
    part_of = master.resolve().name if master.exists() else ""
    if part_of:
        yield f"the device is part of {part_of}: its packets pass beside the rules"
    for upon in sorted(path.name.removeprefix("upper_") for path in (_DEVICES / device).glob("upper_*")):
        if upon != part_of:
            yield f"{upon} stands upon the device: what is sent to it passes beside the rules"


def _index(device: str) -> int | None:
    try:
        return socket.if_nametoindex(device)  # of this namespace; /sys may be another one's
    except OSError:
        return None


def _indices() -> set[int]:
    return {index for index, _ in socket.if_nameindex()}


def _wanted(table: str) -> _Note:
    try:
        return msgspec.json.decode(_note(table).read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        raise LaunchError(f"no wall was put up here as {table}", hint=_PUTS_UP.get(table, "tidegate wall up")) from None


def _note(table: str) -> Path:
    """Return where the rules as they were made are noted: per network namespace and table."""
    return NOTES / f"{table}-{os.stat('/proc/self/ns/net').st_ino}.json"


def _shown(one: dict[str, dict[str, object]]) -> str:
    kind, body = next(iter(one.items()))
    if kind == "rule":
        return f"rule {body.get('comment', '?')!r} of chain {body['chain']}"
    return f"{kind} {body.get('family')} {body['name']}" if kind == "table" else f"{kind} {body['name']}"
