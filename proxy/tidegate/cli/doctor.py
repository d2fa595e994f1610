"""`tidegate doctor`: what this machine has, and what gate and launcher would miss. It changes nothing."""

import importlib.metadata
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.doctor_launcher import launcher_checks
from tidegate.cli.doctor_wall import Check, engine, wall_checks
from tidegate.cli.image import store_folder
from tidegate.cli.place import find_config, state_options
from tidegate.cli.table import output_option, print_json, print_table
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.config.nameserver import Nameserver

__all__ = ["Check", "checks", "doctor"]

_REPLY_SECONDS: Final = 1.0


@click.command(short_help="Check this machine for what the gate and its sandboxes need.")
@state_options
@output_option
def doctor(*, config: Path | None, state_dir: Path | None, output: str) -> int:
    """Check this machine for what the gate needs, and the sandboxes of `tidegate run`. Exits 1 when something would
    keep the gate from running.

    Example: tidegate doctor
    """
    found = checks(config=config, state_dir=state_dir)
    if output == "json":
        print_json([check._asdict() for check in found])
    else:
        print_table(("check", "state", "found"), [check[:3] for check in found])
        for check in found:
            if check.state != "ok" and check.hint:
                click.echo(f"tidegate: {check.name}: {check.hint}", err=True)
    return 1 if any(check.state == "fail" for check in found) else 0


def checks(*, config: Path | None, state_dir: Path | None) -> list[Check]:
    """Look at everything, in the order that a reader wants."""
    found = [_python(), _kernel(), _mitmproxy(), _uids(), _landlock(), _seccomp(), _open_files()]
    found += [*(_tool(name, use) for name, use in _TOOLS), engine()]
    found += launcher_checks(_images(config, state_dir), os.environ)
    return found + _configured(config, state_dir)


_TOOLS: Final = (
    ("ip", "makes the sandbox's network"),
    ("nft", "builds the wall"),
)


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", version)


def _kernel() -> Check:
    return Check("kernel", "ok", os.uname().release)


def _mitmproxy() -> Check:
    from tidegate.runtime.pinned import MITMPROXY

    try:
        version = importlib.metadata.version("mitmproxy")
    except importlib.metadata.PackageNotFoundError:
        return Check("mitmproxy", "fail", "not installed", f"install mitmproxy {MITMPROXY}")
    if version != MITMPROXY:
        return Check("mitmproxy", "fail", version, f"exactly {MITMPROXY} is needed; its hooks were measured")
    return Check("mitmproxy", "ok", version)


def _uids() -> Check:
    from tidegate.runtime.identity import identities, own_half

    who = identities(own_half())
    if who.shared:
        return Check(
            "uids",
            "warn",
            f"one for all: {who.gate.uid}",
            "unsafe_shared_uid: start the gate as root, or its halves as two users, and a fallen worker cannot "
            "read the keeper's memory",
        )
    return Check("uids", "ok", f"keeper {who.keeper.uid}, gate {who.gate.uid}, minter {who.minter.uid}")


def _landlock() -> Check:
    from tidegate.landlock import abi

    if version := abi():
        return Check("landlock", "ok", f"ABI {version}")
    return Check("landlock", "warn", "not available", "a kernel from 5.13 on with landlock in its `lsm=` list")


def _seccomp() -> Check:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text("ascii")
    except OSError:
        return Check("seccomp", "warn", "not available", "the kernel was built without CONFIG_SECCOMP_FILTER")
    return Check("seccomp", "ok" if "errno" in actions else "warn", "filter" if "errno" in actions else actions.strip())


def _open_files() -> Check:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < 4096 and os.geteuid() != 0:
        return Check("open files", "warn", shown, "raise `ulimit -Hn` to 65536 for many connections")
    return Check("open files", "ok", shown)


def _tool(name: str, use: str) -> Check:
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        return Check(name, "warn", "not found", f"{use}; not needed for the gate alone")
    return Check(name, "ok", path)


def _images(config: Path | None, state_dir: Path | None) -> Path | None:
    """Return where the images are; None where the configuration does not say, which is a check of its own."""
    try:
        return store_folder(config=config, state_dir=state_dir)
    except TidegateError:
        return None


def _configured(config: Path | None, state_dir: Path | None) -> list[Check]:
    """Look at what the configuration asks for."""
    from tidegate.config.load import load
    from tidegate.config.model import FileSource
    from tidegate.runtime.ground import gate_folder
    from tidegate.runtime.identity import own_half

    path = find_config(config)
    try:
        settings = load(path, environ=os.environ, flags={})
    except TidegateError as fault:
        return [Check("configuration", "fail", str(path), f"{fault}; see `tidegate policy check`")]
    shown = Check("configuration", "ok" if path else "warn", str(path or "none"), "write tidegate.yaml (docs/tutorial)")
    state, half = state_dir or Path(settings.state_dir), own_half()
    secrets = [
        _secret(name, source.path) for name, source in settings.sources.items() if isinstance(source, FileSource)
    ]
    if half == "keeper":  # the network is the other half's affair
        return [shown, _state(state), *secrets]
    if half == "gate":  # and the secrets are not its own
        found = [shown, _state(gate_folder(state)), *_resolvers(settings.resolver.servers)]
    else:
        found = [shown, _state(state), *secrets, *_resolvers(settings.resolver.servers)]
    if half is None:
        found += [_port(key, address, state) for key, address in settings.listen.named()]
    if any(key in ("listen.transparent", "listen.dns", "listen.tls") for key, _ in settings.listen.named()):
        found += wall_checks(needed=bool(settings.listen.transparent))
    return found


def _state(state: Path) -> Check:
    place = next(folder for folder in (state, *state.parents) if folder.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return Check("state folder", "fail", str(state), f"{place} is not writable for this user; give --state-dir")
    free = shutil.disk_usage(place).free
    if free < 256 * 1024 * 1024:
        return Check("state folder", "warn", f"{state}, {free >> 20} MiB free", "the audit log lives there")
    return Check("state folder", "ok", f"{state}, {free >> 20} MiB free")


def _secret(name: str, path: str) -> Check:
    """Look at a secret's file without reading it: is it there, and whose is it?"""
    key = f"credentials.{name}.source.file"
    try:
        found = os.stat(path)
    except OSError as fault:
        return Check(f"secret {name}", "fail", f"{path}: {fault.strerror}", f"write it, or mend {key}")
    if not stat.S_ISREG(found.st_mode):
        return Check(f"secret {name}", "fail", f"{path} is no regular file", f"mend {key}")
    mode = stat.S_IMODE(found.st_mode)
    shown = f"{path}, mode {mode:04o}, uid {found.st_uid}"
    if mode & 0o007:
        return Check(
            f"secret {name}", "warn", shown, f"others can read {path}: let the keeper's user own it, mode 0400"
        )
    return Check(f"secret {name}", "ok", shown)


def _port(key: str, listener: tuple[str, int], state: Path) -> Check:
    from tidegate.config.model import address_text
    from tidegate.runtime.address_claim import address_holder

    host, port = listener
    shown = address_text(listener)
    if (holder := address_holder(listener)) is not None:
        if _gate_pid(state) == holder.pid:
            return Check("port", "ok", f"{shown} (the gate of {state} has it, pid {holder.pid})")
        told = f"another gate has it, pid {holder.pid}, with a state folder other than {state}"
        return Check("port", "fail", shown, f"{told}; end it, or see {key}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as fault:
            return Check("port", "fail", shown, f"cannot listen there: {fault.strerror}; see {key}")
    return Check("port", "ok", shown)


def _gate_pid(state: Path) -> int | None:
    """Return the pid that the supervisor has written into its lock file; it is readable by all."""
    try:
        return int((state / "gate" / "gate.pid").read_text("ascii"))
    except (OSError, ValueError):
        return None


def _resolvers(texts: tuple[str, ...]) -> list[Check]:
    """Ask each server for the root's name servers: any answer at all will do."""
    from tidegate.config.nameserver import parse_nameserver
    from tidegate.resolve.server import system_nameservers

    return [_attempt(server) for server in ([parse_nameserver(text) for text in texts] or system_nameservers())]


def _attempt(server: "Nameserver") -> Check:
    import dns.exception
    import dns.message
    import dns.query

    query = dns.message.make_query(".", "NS")
    ask: Callable[..., dns.message.Message] = dns.query.udp
    try:
        ask(query, server.address, port=server.port, timeout=_REPLY_SECONDS, ignore_unexpected=True)
    except (dns.exception.DNSException, OSError, ValueError) as fault:
        told = f"no answer within {_REPLY_SECONDS:g} s ({type(fault).__name__})"
        return Check("resolver", "warn", str(server), f"{told}; see resolver.servers, else /etc/resolv.conf")
    return Check("resolver", "ok", str(server))
