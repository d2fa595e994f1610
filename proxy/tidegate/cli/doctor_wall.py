"""`tidegate doctor`, what a wall needs: rights, rules that this kernel takes, no forwarding; and a container engine."""

import ipaddress
import re
import shutil
import subprocess
from typing import Final, Literal, NamedTuple

from tidegate.errors import LaunchError
from tidegate_launcher.privilege import CAP_NET_ADMIN, holds

__all__ = ["Check", "engine", "wall_checks"]

_SECONDS: Final = 10.0
# From 20.10 on a container may listen below 1024 without a capability; from 2.20 on Compose waits for health by itself.
_ENGINE, _COMPOSE = (20, 10), (2, 20)
_INSTALL: Final = "install Docker Engine and its Compose plugin (docs/how-to/run-as-a-sidecar.md); only that needs them"
_START: Final = "start it, or run this as a user that may use it; only the compose sidecar needs one"


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""


def wall_checks(*, needed: bool) -> list[Check]:
    """Look at what `tidegate wall` needs; `needed`: the configuration has a way in that only a wall leads to."""
    return [_rules(needed=needed), _forwarding()]


def _rules(*, needed: bool) -> Check:
    """Have the kernel check a wall's rules, without making one of them."""
    from tidegate_launcher.wall import nft
    from tidegate_launcher.wall.link import Link, transaction

    worse: Literal["warn", "fail"] = "fail" if needed else "warn"
    four, six = ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("fd00::1")
    link = Link("lo", (four + 1, six + 1), ((four, 443), (six, 443)), ((four, 8443), (six, 8443)), ((four, 53),))
    if not holds(CAP_NET_ADMIN):
        hint = "run this and `tidegate wall` as root (CAP_NET_ADMIN); the gate itself needs none"
        return Check("wall rules", worse, "no CAP_NET_ADMIN", hint)
    try:
        nft.check(transaction(link))
    except LaunchError as fault:
        hint = fault.hint or "the kernel needs nf_tables with nat, ct, limit, connlimit, log and the netdev family"
        return Check("wall rules", worse, fault.what.strip().splitlines()[0], hint)
    return Check("wall rules", "ok", "this kernel takes them")


def _forwarding() -> Check:
    """Look whether this machine would carry a sandbox's packets past the gate."""
    from tidegate_launcher.wall.noted import forwarding

    on = forwarding(None)
    if on:
        return Check(
            "forwarding", "warn", ", ".join(on), "`tidegate wall up` refuses that: turn it off in this namespace"
        )
    return Check("forwarding", "ok", "off")


def engine() -> Check:
    """Look for a container engine and Compose, which the sidecar runs on."""
    docker = shutil.which("docker")
    if docker is None:
        return Check("container engine", "warn", "not found", _INSTALL)
    server = _said([docker, "version", "--format", "{{.Server.Version}}"])
    if server is None:
        return Check("container engine", "warn", "it does not answer", _START)
    compose = _said([docker, "compose", "version", "--short"])
    found = f"{server}, compose {compose or 'not found'}"
    if _version(server) < _ENGINE or _version(compose or "") < _COMPOSE:
        wanted = ["{}.{}".format(*version) for version in (_ENGINE, _COMPOSE)]
        return Check("container engine", "warn", found, f"the sidecar needs {wanted[0]}, and compose {wanted[1]}")
    return Check("container engine", "ok", found)


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
