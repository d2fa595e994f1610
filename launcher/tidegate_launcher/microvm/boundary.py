"""A virtual machine as a boundary: a kernel of its own, on a processor of its own, in a process with nothing to see.

By KVM, which must have started a machine within a time before any job is taken; or, under a name of its own, by
emulation, which is many times slower, and for tests and machines without KVM.
"""

import os
from collections.abc import Mapping
from typing import BinaryIO, Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, Collect, Ground, Sink, require
from tidegate_launcher.job import Job
from tidegate_launcher.limits.hierarchy import find_hierarchy
from tidegate_launcher.microvm.driver import Means, run_machine
from tidegate_launcher.microvm.kernel import find_kernel
from tidegate_launcher.microvm.machine import Accelerator
from tidegate_launcher.microvm.qemu import find_qemu, try_machine
from tidegate_launcher.net.tap import TUN
from tidegate_launcher.order import LIMITS, NETWORK
from tidegate_launcher.result import Result

__all__ = ["Microvm"]

_CAPABILITIES: Final = LIMITS | {Capability.KERNEL, Capability.ROOT, Capability.NET_NONE}


class Microvm:
    """Runs jobs in machines of QEMU's. This machine is looked at once, at the first use."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, accelerator: Accelerator = "kvm") -> None:
        """Take the environment that says where the kernel is; without, this process' own."""
        self._environ = os.environ if environ is None else environ
        self._accelerator = accelerator
        self._means: Means | None = None

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "microvm" if self._accelerator == "kvm" else "microvm-tcg"

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce here: all but a socket and waiting. Raises `LaunchError` when it cannot."""
        self._look()
        return _CAPABILITIES | {Capability.NET_VETH} if TUN.exists() else _CAPABILITIES

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
        require(self, frozenset({NETWORK[job.net]}))
        return run_machine(self._look(), job, ground, stdin=stdin, sink=sink, collect=collect, cancel=cancel)

    def _look(self) -> Means:
        if self._means is None:
            if os.geteuid() != 0:
                raise LaunchError("a machine's limits and place need root", hint="run as root, or another --boundary")
            qemu, kernel, hierarchy = find_qemu(), find_kernel(self._environ), find_hierarchy()
            if self._accelerator == "kvm":
                try_machine(qemu, kernel, "kvm")
            self._means = Means(qemu=qemu, kernel=kernel, accelerator=self._accelerator, hierarchy=hierarchy)
        return self._means
