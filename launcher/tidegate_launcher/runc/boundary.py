"""runc as a boundary: the host's own kernel, shared as a container engine shares it. Only for who says `unsafe`.

It holds all limits, has no network but the gate, and leaves nothing. It is no boundary against an attacker: the first
fault of the host's kernel that the filter lets through is the last, and the runtime itself is root beside the code, as
which it has been turned against its host before (CVE-2019-5736, CVE-2024-21626, CVE-2025-31133). It is for code that
needs what gVisor has not, and that somebody vouches for; and to compare with.
"""

import os
import re
from pathlib import Path
from typing import BinaryIO, Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, Collect, Ground, Sink
from tidegate_launcher.job import Job
from tidegate_launcher.limits.hierarchy import DEVICES, Hierarchy, find_hierarchy
from tidegate_launcher.oci.seccomp import architectures
from tidegate_launcher.program import find_program, version_of
from tidegate_launcher.result import Result
from tidegate_launcher.runc.driver import run_sandbox
from tidegate_launcher.unsafe import must_be_wanted, warn

__all__ = ["Runc", "find_runc", "parse_version"]

_CAPABILITIES: Final = frozenset(Capability) - {Capability.KERNEL, Capability.WAITS}
_FLOOR: Final = (1, 1, 5)
"""The oldest taken, Debian 12's: older ones were never tried, and have no `defaultErrnoRet`."""


class Runc:
    """Runs jobs by runc. The machine is looked at once, at the first use."""

    def __init__(self, *, unsafe: bool = False) -> None:
        """Take the word of who asks that this is wanted. Raises `LaunchError` without."""
        must_be_wanted(self.name, unsafe=unsafe)
        self._found: tuple[Path, Hierarchy] | None = None

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "runc"

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce: all limits, all ways out. Raises `LaunchError` when it cannot be used at all."""
        self._look()
        return _CAPABILITIES

    def run(
        self,
        job: Job,
        ground: Ground,
        *,
        stdin: BinaryIO | None = None,
        sink: Sink | None = None,
        collect: Collect | None = None,
        cancel: int | None = None,
    ) -> Result:
        """Run a job to its end; `collect` sees what it left in /work. See `Boundary.run`."""
        program, hierarchy = self._look()
        warn(self.name)
        return run_sandbox(
            program, job, ground, hierarchy=hierarchy, stdin=stdin, sink=sink, collect=collect, cancel=cancel
        )

    def _look(self) -> tuple[Path, Hierarchy]:
        if self._found is None:
            if os.geteuid() != 0:
                raise LaunchError(
                    "runc's limits and mounts need root", hint="run as root, or choose another --boundary"
                )
            if not architectures():
                raise LaunchError("no system call filter is known for this machine", where=os.uname().machine)
            hierarchy = find_hierarchy(also=(DEVICES,))
            if hierarchy.version == 1 and DEVICES not in hierarchy.trees:
                raise LaunchError("control groups lack devices: runc does not start", where="/sys/fs/cgroup")
            self._found = find_runc()[0], hierarchy
        return self._found


def find_runc() -> tuple[Path, str]:
    """Return the machine's runc and its version, in its own words. Raises `LaunchError`."""
    found = find_program("runc", package="runc")
    version = parse_version(version_of(found, name="runc"))
    shown = ".".join(map(str, version))
    if version < _FLOOR:
        raise LaunchError(f"runc {shown} is too old", where=found, hint="1.1.5 at the least")
    return Path(found), shown


def parse_version(text: str) -> tuple[int, int, int]:
    """Return the version that `runc --version` says. Raises `LaunchError`."""
    found = re.match(r"runc version (\d+)\.(\d+)\.(\d+)\b", text)
    if found is None:
        raise LaunchError("runc says no version that is known", where=text[:80].strip())
    return int(found[1]), int(found[2]), int(found[3])
