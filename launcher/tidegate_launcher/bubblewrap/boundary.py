"""bubblewrap as a boundary: namespaces and a filter around the code, and the host's own kernel below it.

Weaker than a kernel of its own: a fault in the host's kernel is a way out. For a machine on which nothing else runs.
Without root it runs too, and then has no control group: no limit on memory and processors, and none is claimed. It is
then the user who starts it, also on the host; as root it is a user of its own (`user`).

A process too many is refused by RLIMIT_NPROC, to the command itself. The group's limit lies above, as a second line
that is not reached; so `pids` is no outcome of this boundary's.

There is no Landlock in it: a process under Landlock may mount nothing, and inside of the sandbox no program of ours
runs. What it would deny, the mounts do.
"""

import os
import re
from pathlib import Path
from typing import BinaryIO, Final

from tidegate import seccomp
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, Collect, Ground, Sink
from tidegate_launcher.bubblewrap.driver import run_sandbox
from tidegate_launcher.job import Job
from tidegate_launcher.limits.hierarchy import Hierarchy, find_hierarchy
from tidegate_launcher.program import find_program, version_of
from tidegate_launcher.result import Result

__all__ = ["Bubblewrap", "find_bwrap", "parse_version"]

_FLOOR: Final = (0, 8)
"""The oldest taken, Debian 12's: older ones were never tried."""
_GROUPED: Final = frozenset({Capability.MEMORY, Capability.CPUS})
_ALWAYS: Final = frozenset(
    {
        Capability.ROOT, Capability.NET_NONE, Capability.NET_UDS, Capability.PIDS, Capability.DISK, Capability.TIME,
        Capability.OUTPUT,
    }
)  # fmt: skip


class Bubblewrap:
    """Runs jobs by bwrap. The machine is looked at once, at the first use."""

    def __init__(self) -> None:
        """Look at nothing yet."""
        self._program: Path | None = None
        self._hierarchy: Hierarchy | None = None

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "bubblewrap"

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce here. Raises `LaunchError` when it cannot be used at all."""
        self._look()
        return _ALWAYS | _GROUPED if self._hierarchy is not None else _ALWAYS

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
        if job.net == "veth":
            raise LaunchError(
                f"the boundary {self.name} cannot enforce {Capability.NET_VETH.value}", where="--net", hint="--net uds"
            )
        program = self._look()
        return run_sandbox(
            program, job, ground, hierarchy=self._hierarchy, stdin=stdin, sink=sink, collect=collect, cancel=cancel
        )

    def _look(self) -> Path:
        if self._program is None:
            if not seccomp.supported():
                raise LaunchError("no system call filter is known for this machine", where=os.uname().machine)
            self._program = find_bwrap()[0]
            self._hierarchy = find_hierarchy() if os.geteuid() == 0 else None
        return self._program


def find_bwrap() -> tuple[Path, str]:
    """Return the machine's bwrap and its version, in its own words. Raises `LaunchError`."""
    found = find_program("bwrap", package="bubblewrap")
    said = version_of(found, name="bwrap")
    if parse_version(said) < _FLOOR:
        raise LaunchError(f"{said.strip()} is too old", where=found, hint="0.8 at the least")
    return Path(found), said.strip()


def parse_version(text: str) -> tuple[int, int]:
    """Return the version that `bwrap --version` says. Raises `LaunchError`."""
    found = re.fullmatch(r"bubblewrap (\d+)\.(\d+)(?:\.\S+)?\s*", text)
    if found is None:
        raise LaunchError("bwrap says no version that is known", where=text[:80].strip())
    return int(found[1]), int(found[2])
