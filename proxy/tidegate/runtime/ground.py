"""The folders that a gate stands on: made once, with the right owners, before any child starts.

| folder | owner | mode | why |
|---|---|---|---|
| `STATE` | keeper | 0755 | `keeper.sock` and the public files that the keeper writes; clients read `ca.pem` |
| `STATE/keeper` | keeper | 0700 | keys and store |
| `STATE/sandbox` | keeper | 0755 | one folder a session of the file, mounted into its sandbox |
| `AUDIT` | keeper, gate's group | 1770 | the two make chains and no one else; the gate removes none of the keeper's |
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.config.model import Settings
from tidegate.errors import ConfigError
from tidegate.runtime.identity import Identities, Identity

__all__ = ["claim", "prepare_ground"]


def prepare_ground(settings: Settings, who: Identities) -> None:
    """Make what is missing and set owner and mode of what is there. Raises `ConfigError`."""
    state, audit = Path(settings.state_dir), Path(settings.audit.dir)
    _folder(state, who.keeper, 0o755, key="state_dir")
    _folder(state / "keeper", who.keeper, 0o700, key="state_dir")
    _folder(state / "sandbox", who.keeper, 0o755, key="state_dir")
    writers = Identity(who.keeper.uid, who.gate.gid)
    _folder(audit, writers, 0o700 if who.shared else 0o1770, key="audit.dir")
    if not who.shared:
        _passable(state, key="state_dir")
        _passable(audit, key="audit.dir")


def claim(state: Path, halves: Iterable[str]) -> list[int]:
    """Lock the state folder for these halves of a gate, until the descriptors are closed.

    A second gate there would share the ports (SO_REUSEPORT, one uid) and take the sockets over unseen.
    Raises `ConfigError` when one runs already.
    """
    held: list[int] = []
    for half in halves:
        path = state / f"{half}.pid"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            pid = os.read(held[-1], 32).decode("ascii", "replace").strip()
            for descriptor in held:
                os.close(descriptor)
            raise ConfigError(
                f"a {half} runs here already, as pid {pid}",
                where=f"state_dir: {state}",
                hint="end it first, or give this one another state folder",
            ) from fault
        except OSError as fault:
            raise ConfigError(f"cannot lock the state folder: {fault.strerror}", where=str(path)) from fault
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return held


def _passable(path: Path, *, key: str) -> None:
    """The keeper and the gate are not the owner of what is above: they must be let through."""
    for folder in path.resolve().parents:
        if not folder.stat().st_mode & 0o001:
            raise ConfigError(
                f"{folder} lets no other user through, so the keeper and the gate cannot reach what is in it",
                where=f"{key}: {path}",
                hint=f"choose another folder, or `chmod o+x {folder}`",
            )


def _folder(path: Path, owner: Identity, mode: int, *, key: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        # By descriptor, without following a link: a folder that someone swapped must not lead root elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.geteuid() == 0:
                os.fchown(descriptor, owner.uid, owner.gid)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    except OSError as fault:
        raise ConfigError(
            f"cannot prepare the folder: {fault.strerror}", where=str(path), hint=f"see {key} in the configuration"
        ) from fault
