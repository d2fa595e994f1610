"""What every boundary is: it says what it can enforce, and runs one job. What it cannot enforce it is not asked for."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, runtime_checkable

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.job import Job
from tidegate_launcher.result import Result

__all__ = ["Boundary", "Cancelled", "Capability", "Closable", "Collect", "Early", "Ground", "Sink", "require"]

type Sink = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Takes output as it comes, within the limit; called from a thread of the boundary's, one at a time."""


type Collect = Callable[[int], None]
"""Takes a descriptor of the folder that the command had as /work."""


class Cancelled(LaunchError):
    """A launch that whoever asked for it wanted no more: its sandbox was ended, and nothing of it is left."""

    def __init__(self) -> None:
        super().__init__("the launch was cancelled")


class Capability(enum.StrEnum):
    """One thing that a boundary can enforce. The value is what an error calls it."""

    KERNEL = "a kernel of its own between the code and the host's"
    ROOT = "a root filesystem of its own, read-only"
    NET_NONE = "no network"
    NET_UDS = "a unix socket to the gate as its only way out"
    NET_VETH = "a link to the gate as its only way out"
    MEMORY = "a limit on memory"
    CPUS = "a limit on processors"
    PIDS = "a limit on processes"
    DISK = "a limit on what it writes"
    TIME = "a limit on time"
    OUTPUT = "a limit on output"
    WAITS = "a sandbox that waits for its commands"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What was made around a job before it runs, and is unmade after it by who made it.

    `namespace` is the path of the sandbox's network namespace (`veth`), `door` the folder with the gate's unix socket
    (`uds`). `scratch` is a folder of this launch alone, 0700, for what the boundary needs on disk.
    """

    scratch: Path
    namespace: Path | None = None
    door: Path | None = None

    def linked(self) -> Path:
        """Return the network namespace with the link. Raises `LaunchError` where none was made."""
        if self.namespace is None:
            raise LaunchError("no network namespace was made for this sandbox", where="net: veth")
        return self.namespace


class Boundary(Protocol):
    """One kind of boundary."""

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        ...

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce on this machine. Raises `LaunchError` when it cannot be used at all."""
        ...

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
        """Run a job to its end; nothing of it is left when this returns or raises.

        `collect` sees what was left in /work, once nothing runs any more that could change it. A descriptor `cancel`
        that becomes readable ends the sandbox, and raises `Cancelled`.

        Raises `LaunchError` for what is wrong before the start, such as a missing part of this machine; what goes wrong
        from then on is a `Result`.
        """
        ...


@runtime_checkable
class Early(Protocol):
    """A boundary that can make a sandbox's place while what goes into it is still being made."""

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
        """Run a job to its end, as `Boundary.run` does.

        `sketch` is the job without environment and binds; `complete` returns it whole, and is called once, right before
        the sandbox is let go. What it raises is raised, and nothing has run then.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """A boundary that holds something from one run to the next, such as a process that is ready."""

    def close(self) -> None:
        """Let go of it. What is run afterwards makes it anew."""
        ...


def require(boundary: Boundary, wanted: frozenset[Capability]) -> None:
    """Raise `LaunchError` that names what this boundary cannot enforce: nothing is dropped silently."""
    missing = sorted(capability.value for capability in wanted - boundary.capabilities())
    if missing:
        raise LaunchError(
            f"the boundary {boundary.name} cannot enforce {', '.join(missing)}",
            where="--boundary",
            hint="ask for less, or choose another --boundary: tidegate doctor says which this machine has",
        )
