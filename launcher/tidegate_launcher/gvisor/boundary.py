"""gVisor as a boundary: a kernel of its own, in user space, between the code and the host's."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, Collect, Ground, Sink
from tidegate_launcher.gvisor.driver import hold_sandbox, run_sandbox
from tidegate_launcher.gvisor.runsc import Runtime, find_runsc, inspect_runsc
from tidegate_launcher.job import Job
from tidegate_launcher.kept.held import Held
from tidegate_launcher.limits.hierarchy import Hierarchy, find_hierarchy
from tidegate_launcher.result import Result

__all__ = ["GVisor"]

_ALL: Final = frozenset(Capability)


class GVisor:
    """Runs jobs by runsc. The machine is looked at when first used."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Take the environment that says which runsc; without, this process' own."""
        self._environ = os.environ if environ is None else environ
        self._runtime: Runtime | None = None
        self._hierarchy: Hierarchy | None = None

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "gvisor"

    def runtime(self) -> Runtime:
        """Return the runsc that is used, looked at anew when it is another file. Raises `LaunchError`."""
        path = find_runsc(self._environ)
        if self._runtime is None or not self._runtime.is_still(path):
            self._runtime = inspect_runsc(path, self._environ)
        return self._runtime

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce here, which is all there is. Raises `LaunchError` when it cannot be used."""
        if os.geteuid() != 0:
            raise LaunchError("gVisor's limits and mounts need root", hint="run as root, or choose another --boundary")
        self.runtime()
        self._limits()
        return _ALL

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
        return self.run_early(job, ground, lambda: job, stdin=stdin, sink=sink, collect=collect, cancel=cancel)

    def run_early(
        self,
        sketch: Job,
        ground: Ground,
        complete: Callable[[], Job],
        *,
        stdin: BinaryIO | None = None,
        sink: Sink | None = None,
        collect: Collect | None = None,
        cancel: int | None = None,
    ) -> Result:
        """Run a job whose sketch is there, to its end. See `Early.run_early`."""
        self.capabilities()
        return run_sandbox(
            self.runtime(),
            sketch,
            ground,
            hierarchy=self._limits(),
            complete=complete,
            stdin=stdin,
            sink=sink,
            collect=collect,
            cancel=cancel,
        )

    def hold(self, job: Job, ground: Ground, *, many: bool) -> contextlib.AbstractContextManager[Held]:
        """Hold a sandbox that waits for its command, or for `many`. See `Holding.hold`."""
        self.capabilities()
        return hold_sandbox(self.runtime(), job, ground, hierarchy=self._limits(), many=many)

    def _limits(self) -> Hierarchy:
        if self._hierarchy is None:
            self._hierarchy = find_hierarchy()
        return self._hierarchy
