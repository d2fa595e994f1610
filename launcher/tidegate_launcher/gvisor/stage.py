"""The place in which runsc starts (`tidegate_launcher.stage`), with what is for runsc alone:

- a /proc/meminfo from which runsc tells the guest how much memory there is, as it asks no control group it was not
  told of;
- with `veth` on a kernel that shows `rmem_default` in every network namespace, a /proc/sys without it: runsc takes it
  for a sign of the host's own namespace and refuses (google/gvisor#10704).

The mounts are made by the launcher, in a namespace of their own, which runsc begins in. A script joins the groups, says
`ready`, and waits for `go`.
"""

from pathlib import Path
from typing import Final

from tidegate.syscall import mount
from tidegate_launcher.job import Limits
from tidegate_launcher.mounts import BIND, REC, MountSpace
from tidegate_launcher.oci.stage import RuntimeStage
from tidegate_launcher.program import find_program
from tidegate_launcher.stage import JOIN, WAIT, Stage, check_root, joining, view_of

__all__ = ["RunscStage", "hide_sysctl", "make_stage", "place", "wrapped"]

_SCRIPT: Final = f"""{JOIN}
stage=$1
shift
{WAIT}
cd /
exec "$@"
"""
_SYSCTL: Final = Path("/proc/sys")
_SHOWN: Final = ("kernel", "vm", "user", "fs")


class RunscStage(RuntimeStage, frozen=True):
    """The folders of one launch, with what is runsc's own."""

    @property
    def panic(self) -> Path:
        """What the sandbox's kernel says when it falls."""
        return self.folder / "panic.log"


def make_stage(scratch: Path) -> RunscStage:
    """Make the folders of a launch in its scratch. Raises `LaunchError`."""
    return RunscStage.make(scratch, "gvisor")


def place(stage: Stage, root: Path, limits: Limits, *, hide: bool) -> MountSpace:
    """Make the place; `hide`: with another /proc/sys. Raises `LaunchError`."""
    check_root(root)

    def mounts() -> None:
        view_of(stage, root, limits)
        memory = stage.at / "meminfo"
        memory.write_text(f"MemTotal: {limits.memory_bytes // 1024} kB\n")
        mount(str(memory), "/proc/meminfo", flags=BIND)
        if hide:
            hide_sysctl(stage.at / "sys")

    return MountSpace.make(mounts)


def hide_sysctl(folder: Path) -> None:
    """Put a /proc/sys in the place of this mount namespace's, which is made in a folder. Raises OSError."""
    core = folder / "net" / "core"
    core.mkdir(parents=True)
    (core / "somaxconn").write_text((_SYSCTL / "net" / "core" / "somaxconn").read_text())
    for name in _SHOWN:
        (folder / name).mkdir()
        mount(str(_SYSCTL / name), str(folder / name), flags=BIND)
    mount(str(folder), str(_SYSCTL), flags=BIND | REC)


def wrapped(stage: Stage, space: MountSpace, *, groups: tuple[Path, ...], command: list[str]) -> list[str]:
    """Return what starts `command` in its place. It dies with the thread that starts it. Raises `LaunchError`."""
    return [
        find_program("setpriv"), "--pdeathsig", "KILL", "--",
        find_program("nsenter"), f"--mount={space.path}", "--",
        find_program("sh"), "-c", _SCRIPT, *joining(groups), str(stage.folder), *command,
    ]  # fmt: skip
