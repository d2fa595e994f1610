"""`tidegate.lock`: the package indexes that `policy lock` found, as data under review.

At run time nothing is discovered; what stands here becomes rules for GET and HEAD, and nothing else
of this file means anything.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.config.form import LockedHostForm, LockForm, RuleForm
from tidegate.config.problem import ConfigErrors
from tidegate.config.read import Reading, reader
from tidegate.config.source import compose

__all__ = ["LOCK_NAME", "lock_path", "locked_rules", "read_lock", "write_lock"]

LOCK_NAME = "tidegate.lock"
_HEAD = """\
# Written by «tidegate policy lock» from this machine's own client configuration. Review it as code:
# every host here can be read from (GET, HEAD) by sandboxes whose policy uses the preset.
"""


def lock_path(config: Path) -> Path:
    """Return the lock that belongs to a configuration: beside it."""
    return config.parent / LOCK_NAME


def read_lock(path: Path) -> LockForm | None:
    """Return the lock, None when there is none; raise `ConfigErrors` for one that cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    root = compose(data, str(path))
    if root is None:
        return None
    reading = Reading(str(path))
    form = reader(LockForm)(root, reading, None)
    if reading.problems or not isinstance(form, LockForm):
        raise ConfigErrors(reading.problems)
    return form


def write_lock(hosts: Mapping[str, Sequence[LockedHostForm]]) -> str:
    """Return the text of a lock; the same hosts give the same text."""
    lines = [_HEAD + "version: 1", "hosts:" if hosts else "hosts: {}"]
    for client in sorted(hosts):
        lines.append(f"  {client}:")
        for host in sorted(hosts[client], key=lambda host: (host.host.text, host.port)):
            found = host.found.replace("'", "''")
            where = f"host: '{host.host}', protocol: {host.protocol}, port: {host.port}"
            lines.append(f"    - {{{where}, found: '{found}'}}")
    return "\n".join(lines) + "\n"


def locked_rules(lock: LockForm, client: str, addresses: tuple[str, ...]) -> list[RuleForm]:
    """Return the client's rules: each host, its one port, GET and HEAD."""
    return [
        RuleForm(
            host=host.host,
            protocol=host.protocol,
            ports=(host.port,),
            methods=("GET", "HEAD"),
            addresses=addresses,
            line_=host.line_,
        )
        for host in lock.hosts.get(client, ())
    ]
