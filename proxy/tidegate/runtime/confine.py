"""Give up what a child does not need, for good: uid, groups, core dumps, the debugger's way in.

A child is started as root, imports its code, and only then drops its uid, so that an installation
below a private home (pyenv in /root) still works. What it imports later is found through directory
descriptors that were opened before the drop (`keep_imports`).
"""

import contextlib
import os
import resource
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from tidegate.errors import LaunchError
from tidegate.runtime.identity import Identity
from tidegate.syscall import forbid_dump_and_gain, kill_on_parent_death

__all__ = ["become", "die_with_parent", "keep_imports", "limit"]

_OPEN_FILES: Final = 65536


def limit() -> None:
    """Forbid core dumps and raise the limit of open files as far as it goes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(_OPEN_FILES, hard) if os.geteuid() == 0 else hard
    with contextlib.suppress(ValueError, OSError):  # a container may forbid raising it; the old limit then holds
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, _OPEN_FILES), wanted))


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies, so that nothing of the gate outlives its supervisor."""
    try:
        kill_on_parent_death()
    except OSError as fault:
        raise LaunchError(f"the process cannot be tied to its parent: {fault.strerror}") from fault
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def become(identity: Identity, *, parent: int) -> None:
    """Take the identity for good. Raises `LaunchError` when anything of root is left.

    Order matters: a change of uid clears the death signal and the dumpable flag's history, so those
    come last.
    """
    if os.geteuid() == 0 and identity.uid != 0:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
        raise LaunchError(f"the process did not become uid {identity.uid}, gid {identity.gid}")
    try:
        forbid_dump_and_gain()
    except OSError as fault:
        raise LaunchError(f"the process's memory cannot be hidden: {fault.strerror}") from fault
    die_with_parent(parent)


def keep_imports(identity: Identity) -> None:
    """Before the drop: make the import path reachable afterwards, where a parent folder is private.

    A folder that is itself readable, below one that is not (`/root`), is replaced on `sys.path` and in
    the search paths of loaded packages by `/proc/self/fd/N`, which needs no way through its parents.
    """
    if os.geteuid() != 0 or identity.uid == 0:
        return
    moved: dict[str, str] = {}
    for entry in sys.path:
        path = Path(entry)
        if entry and path.is_dir() and not _open_to_all(path.resolve()):
            moved[entry] = f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY)}"
    if not moved:
        return
    sys.path[:] = [moved.get(entry, entry) for entry in sys.path]
    for module in list(sys.modules.values()):
        _move_package(module, moved)
    sys.path_importer_cache.clear()


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _move_package(module: ModuleType, moved: dict[str, str]) -> None:
    places = getattr(module, "__path__", None)
    if not isinstance(places, list):
        return
    for number, place in enumerate(places):
        # The longest entry wins: site-packages lies inside the library's own folder.
        for entry in sorted(moved, key=len, reverse=True):
            if place == entry or place.startswith(entry + "/"):
                places[number] = moved[entry] + place[len(entry) :]
                break
