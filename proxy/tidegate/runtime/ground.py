"""The folders that a gate stands on: made once, with the right owners, before any child starts.

| folder | owner | mode | why |
|---|---|---|---|
| `STATE` | keeper | 0755 | `keeper.sock` and the public files that the keeper writes; clients read `ca.pem` |
| `STATE/keeper` | keeper | 0700 | keys and store |
| `STATE/sandbox` | keeper | 0755 | one folder a session of the file, mounted into its sandbox |
| `STATE/gate` | gate | 0755 | what a gate on its own has: its lock, its sockets of the API |
| `AUDIT` | keeper, gate's group | 1770 | the two make chains and no one else; the gate removes none of the keeper's |

Root makes all of it. One half, as a user of its own, makes what it can, and checks what it cannot: it can neither give
a folder away nor mend another's.
"""

import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tidegate.config.model import Settings
from tidegate.errors import ConfigError
from tidegate.runtime.identity import Half, Identities, Identity

__all__ = ["check_ground", "claim", "clear_pids", "gate_folder", "prepare_ground"]


def gate_folder(state: Path) -> Path:
    """Return the folder of a gate's own things."""
    return state / "gate"


def prepare_ground(settings: Settings, who: Identities, only: Half | None = None) -> None:
    """Make what is missing, set owner and mode of what is there, check what is another's. Raises `ConfigError`."""
    state, audit = Path(settings.state_dir), Path(settings.audit.dir)
    root = os.geteuid() == 0
    if root or only != "gate":
        _folder(state, who.keeper, 0o755, key="state_dir")
        _folder(state / "keeper", who.keeper, 0o700, key="state_dir")
        _folder(state / "sandbox", who.keeper, 0o755, key="state_dir")
    if root or only != "keeper":
        _folder(gate_folder(state), who.gate, 0o755, key="state_dir")
    if root or only is None:
        _folder(audit, _writers(who), 0o700 if who.shared else 0o1770, key="audit.dir")
    elif only == "keeper":
        _shared_audit(audit, _writers(who))
    if not who.shared and (root or only == "keeper"):
        _passable(state, key="state_dir")
        _passable(audit, key="audit.dir")


def check_ground(settings: Settings, who: Identities) -> None:
    """Check, as the gate on its own, what the keeper has prepared by now. Raises `ConfigError`."""
    if os.geteuid() != 0:
        _shared_audit(Path(settings.audit.dir), _writers(who))


def claim(state: Path, halves: Iterable[Half]) -> list[int]:
    """Lock the state folder for these halves of a gate, until the descriptors are closed.

    A second gate there would share the ports (SO_REUSEPORT, one uid) and take the sockets over unseen.
    Raises `ConfigError` when one runs already.
    """
    held: list[int] = []
    for half in halves:
        path = (gate_folder(state) if half == "gate" else state) / f"{half}.pid"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            held.append(descriptor)
            _plain(descriptor, path)
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


def clear_pids(held: Iterable[int]) -> None:
    """Take the pid out of the files of a claim, whose locks stay: `kill $(cat …)` must not reach who has it next."""
    for descriptor in held:
        os.ftruncate(descriptor, 0)


def _plain(descriptor: int, path: Path) -> None:
    """The gate owns its folder, and root writes there: only into a file that has no other name."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise ConfigError("this is no plain file of its own", where=str(path), hint="remove it; a start makes it anew")


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
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    except OSError as fault:
        hint = f"see {key} in the configuration"
        if os.geteuid() != 0:
            hint += f", or have it made: {_as_root(path, owner, mode)}"
        raise ConfigError(f"cannot prepare the folder: {fault.strerror}", where=str(path), hint=hint) from fault


def _writers(who: Identities) -> Identity:
    return Identity(who.keeper.uid, who.gate.gid)


def _shared_audit(path: Path, owner: Identity) -> None:
    """Check the folder in which both halves write, of which one is not its owner and the other not of its group."""
    hint = f"as root, once: {_as_root(path, owner, 0o1770)}"
    try:
        found = path.stat()
        if stat.S_IMODE(found.st_mode) != 0o1770 and found.st_uid == os.geteuid():
            path.chmod(0o1770)
            found = path.stat()
    except OSError as fault:
        raise ConfigError(f"the log has no folder: {fault.strerror}", where=f"audit.dir: {path}", hint=hint) from fault
    if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (*owner, 0o1770):
        told = f"owner {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o}"
        raise ConfigError(f"keeper and gate cannot both write here ({told})", where=f"audit.dir: {path}", hint=hint)


def _as_root(path: Path, owner: Identity, mode: int) -> str:
    return f"install -d -o {owner.uid} -g {owner.gid} -m {mode:o} {path}"
