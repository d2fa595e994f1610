"""What never goes into a sandbox, whoever asks: the machine's own doors, and folders that hold more than is meant.

| | itself | what is in it | a folder that holds it |
|---|---|---|---|
| a container engine's socket | refused | | refused |
| the launcher's and the gate's state | refused | refused | refused |
| the home folder | refused | allowed, by name | refused |
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import LaunchError

__all__ = ["Forbidden", "forbidden"]

_SOCKETS: Final = (
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/libvirt/libvirt-sock",
    "/run/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/run/dbus/system_bus_socket",
)
_OF_USER: Final = ("docker.sock", "podman/podman.sock", "containerd-rootless/api.sock", "bus")


class Forbidden(msgspec.Struct, frozen=True, kw_only=True):
    """Real paths, links resolved. `closed`: with all that is in it; `too_wide`: as a whole."""

    sockets: tuple[Path, ...] = ()
    closed: tuple[Path, ...] = ()
    too_wide: tuple[Path, ...] = ()

    def check(self, path: Path) -> None:
        """Raise `LaunchError` for a real path that must not be given to a sandbox."""
        if any(folder.is_relative_to(path) for folder in self.too_wide):
            raise LaunchError(
                "this would give the whole home folder, with every key in it",
                where=str(path),
                hint="name the files or the one folder that is needed",
            )
        if any(socket.is_relative_to(path) for socket in self.sockets):
            raise LaunchError(
                "a container engine's socket is there: who has it, has the machine",
                where=str(path),
                hint="name the files that are needed",
            )
        if any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in self.closed):
            raise LaunchError("the gate's own state is there", where=str(path), hint="name the files that are needed")


def forbidden(environ: Mapping[str, str], *, state: tuple[Path, ...] = ()) -> Forbidden:
    """Return what is forbidden for this user: engines' sockets where they are by custom, the state, the home."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    sockets = [*map(Path, _SOCKETS), *(runtime / name for name in _OF_USER)]
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        if environ.get(name, "").startswith("unix://"):
            sockets.append(Path(environ[name].removeprefix("unix://")))
    homes = [Path(environ[name]) for name in ("HOME",) if environ.get(name)]
    return Forbidden(sockets=_real(sockets), closed=_real(state), too_wide=_real(homes))


def _real(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)
