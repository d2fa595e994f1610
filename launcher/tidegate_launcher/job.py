"""What is to be run, in which root, within which limits: the same words for every boundary."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from tidegate.errors import LaunchError

__all__ = ["DOOR", "GUEST_GID", "GUEST_UID", "WORK", "Bind", "Job", "Limits", "Net"]

type Net = Literal["none", "uds", "veth"]
"""`none`: no network. `uds`: a unix socket to the gate. `veth`: a link whose only neighbour is the gate."""

DOOR: Final = "/run/tidegate"
"""Where a sandbox with `uds` finds the folder with the gate's sockets."""
WORK: Final = "/work"
"""The folder that a command starts in unless told, and its HOME unless the environment has one."""
GUEST_UID: Final = 65534
GUEST_GID: Final = 65534
_MIB: Final = 1024 * 1024
_LEAST_MEMORY: Final = 32 * _MIB
_MOST_PIDS: Final = 4096
_MOST_ARGUMENT_BYTES: Final = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox may use. All of it is enforced, or the launch is refused.

    `pids` is RLIMIT_NPROC inside; the cgroup around the sandbox has twice that and 128 more, since a guest's process
    costs several threads of the host's. `disk_bytes` is the one writable place, a tmpfs, which counts as memory.
    `output_bytes` is each of stdout and stderr.
    """

    seconds: float = 30.0
    memory_bytes: int = 512 * _MIB
    cpus: float = 1.0
    pids: int = 128
    disk_bytes: int = 64 * _MIB
    output_bytes: int = 8 * _MIB
    open_files: int = 1024
    file_bytes: int = 64 * _MIB

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 7 * 86400:
            raise LaunchError("the time limit is no time", where="--time", hint="seconds, up to a week")
        if self.memory_bytes < _LEAST_MEMORY:
            raise LaunchError("no sandbox starts in so little memory", where="--memory", hint="32M at the least")
        if not 0 < self.disk_bytes < self.memory_bytes:
            raise LaunchError(
                f"{self.disk_bytes} bytes of disk are part of the memory, which has {self.memory_bytes}",
                where="--disk",
                hint="less than --memory: a smaller disk, or more memory",
            )
        if not 0.01 <= self.cpus <= 1024:
            raise LaunchError("that is no share of a processor", where="--cpus", hint="such as 0.5 or 2")
        if not 4 <= self.pids <= _MOST_PIDS:
            raise LaunchError("that is no number of processes", where="--pids", hint=f"4 to {_MOST_PIDS}")
        if self.output_bytes < 0 or self.open_files < 16 or self.file_bytes < 0:
            raise LaunchError("a limit is out of its range", where="limits")

    @property
    def cgroup_pids(self) -> int:
        """Tasks of the host's that the whole sandbox may have."""
        return 2 * self.pids + 128


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of ours that the sandbox sees, read-only: `source` on the host, `target` inside."""

    source: Path
    target: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One command for one fresh sandbox. `root` is a folder with a root filesystem, shared and read-only.

    `environment` is all that the command sees; nothing of the launcher's own is added. `binds` are of the launcher's
    making (inputs copied, `/tidegate`), never a path that a user or a model gave.
    """

    id: str
    argv: tuple[str, ...]
    root: Path
    environment: tuple[tuple[str, str], ...] = ()
    cwd: str = WORK
    limits: Limits = Limits()
    binds: tuple[Bind, ...] = ()
    net: Net = "none"
    hostname: str = "sandbox"
    waits: bool = False
    """Whether `argv` is the first process of a sandbox that waits for its commands, which is the sandbox' root."""

    @property
    def variables(self) -> dict[str, str]:
        """All that the command sees: with a HOME, or the root's own passwd file would say one."""
        return {"HOME": WORK, **dict(self.environment)}

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise LaunchError("there is no command", hint="tidegate run -- COMMAND")
        words = [*self.argv, *(word for pair in self.environment for word in pair), self.cwd]
        if any("\0" in word for word in words):
            raise LaunchError("a command or its environment holds a NUL byte", where="argv")
        try:
            size = sum(len(word.encode()) + 1 for word in words)
        except UnicodeEncodeError:
            # An OCI bundle is JSON, which has no word for other bytes.
            raise LaunchError(
                "a command or its environment is no UTF-8", where="argv", hint="give it as an input file: --in"
            ) from None
        if size > _MOST_ARGUMENT_BYTES:
            raise LaunchError("command and environment are over 1 MiB", hint="give it as an input file: --in")
        if not self.cwd.startswith("/"):
            raise LaunchError("the working directory is a path inside the sandbox, from /", where="cwd")
