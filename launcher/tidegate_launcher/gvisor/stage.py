"""The place in which runsc starts (`tidegate_launcher.stage`), with what is for runsc alone:

- a /proc/meminfo from which runsc tells the guest how much memory there is, as it asks no control group it was not
  told of;
- with `veth` on a kernel that shows `rmem_default` in every network namespace, a /proc/sys without it: runsc takes it
  for a sign of the host's own namespace and refuses (google/gvisor#10704).
"""

from pathlib import Path
from typing import Final

from tidegate.errors import LaunchError
from tidegate_launcher import stage as _stage
from tidegate_launcher.job import Limits
from tidegate_launcher.stage import Stage, placed

__all__ = ["RunscStage", "make_stage", "wrapped"]

_SCRIPT: Final = """
kib=$1 hide=$2
shift 2
echo "MemTotal: $kib kB" >"$at/meminfo"
mount --bind "$at/meminfo" /proc/meminfo
if [ "$hide" = yes ]; then
    mkdir -p "$at/sys/net/core"
    cat /proc/sys/net/core/somaxconn >"$at/sys/net/core/somaxconn"
    for each in kernel vm user fs; do mkdir "$at/sys/$each"; mount --bind "/proc/sys/$each" "$at/sys/$each"; done
    mount --rbind "$at/sys" /proc/sys
fi
"""


class RunscStage(Stage, frozen=True):
    """The folders of one launch, with what is runsc's own."""

    @property
    def state(self) -> Path:
        """runsc's own state root."""
        return self.folder / "state"

    @property
    def bundle(self) -> Path:
        """The folder with config.json."""
        return self.folder / "bundle"

    @property
    def log(self) -> Path:
        """What runsc says of itself."""
        return self.folder / "runsc.log"

    @property
    def panic(self) -> Path:
        """What the sandbox's kernel says when it falls."""
        return self.folder / "panic.log"


def make_stage(scratch: Path) -> RunscStage:
    """Make the folders of a launch in its scratch. Raises `LaunchError`."""
    stage = RunscStage(_stage.make_stage(scratch, "gvisor").folder)
    try:
        for folder in (stage.state, stage.bundle):
            folder.mkdir(0o700)
    except OSError as fault:
        raise LaunchError(f"no place for a sandbox: {fault.strerror}", where=str(stage.folder)) from fault
    return stage


def wrapped(
    stage: Stage, root: Path, limits: Limits, *, groups: tuple[Path, ...], hide_sysctl: bool, command: list[str]
) -> list[str]:
    """Return what starts `command` in its place. It dies with the thread that starts it. Raises `LaunchError`."""
    words = [str(limits.memory_bytes // 1024), "yes" if hide_sysctl else "no", *command]
    return placed(stage, root, limits, groups=groups, script=_SCRIPT, words=words)
