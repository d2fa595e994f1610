"""A sandbox that stands and waits: it becomes one command, or runs one after the other."""

import os
import select
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, Protocol, runtime_checkable

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.attached import Attached, made_of
from tidegate_launcher.boundary import Cancelled, Collect, Ground, Sink
from tidegate_launcher.job import GUEST_GID, GUEST_UID, Bind, Job
from tidegate_launcher.kept import init
from tidegate_launcher.kept.control import Control, order
from tidegate_launcher.kept.exchange import Exchange, Told
from tidegate_launcher.readiness import is_readable
from tidegate_launcher.result import Counters, Result

__all__ = ["INSIDE", "Held", "Holding", "waiting"]

INSIDE: Final = "/opt/tidegate-init.py"
"""Where the first process' program is in the sandbox."""
_READY_SECONDS: Final = 20.0


@runtime_checkable
class Holding(Protocol):
    """A boundary that can hold a sandbox."""

    def hold(self, job: Job, ground: Ground, *, many: bool) -> AbstractContextManager["Held"]:
        """Hold one that waits for its command, or for `many`; nothing is left of it. Raises `LaunchError`."""
        ...


def waiting(job: Job, scratch: Path, *, many: bool) -> Job:
    """Return the job of a sandbox that waits for its command, or for `many`. `scratch` holds the program meanwhile."""
    program = scratch / "init.py"
    program.write_bytes(Path(init.__file__).read_bytes())
    program.chmod(0o444)
    argv = ("python3", "-I", "-S", INSIDE, str(GUEST_UID), str(GUEST_GID), *((init.MANY,) if many else ()))
    binds = (*job.binds, Bind(source=program, target=INSIDE))
    return msgspec.structs.replace(job, argv=argv, binds=binds, waits=True)


class Held:
    """Such a sandbox, for as long as its boundary holds it. Not for several threads at once."""

    def __init__(self, launch: Attached, control: Control, own_fault: Callable[[int | None], str]) -> None:
        self._launch, self._control, self._own_fault = launch, control, own_fault
        self._before = Counters()
        self.over = False
        """Whether it has ended, with its last command or before."""

    def wait(self, seconds: float = _READY_SECONDS) -> None:
        """Wait until it takes commands. Raises `LaunchError`."""
        poller = select.poll()
        poller.register(self._control.answers, select.POLLIN)
        poller.register(self._launch.pidfd, select.POLLIN)
        told = dict(poller.poll(seconds * 1000))
        kinds = [kind for kind, _ in self._control.heard()] if self._control.answers in told else []
        if init.READY not in kinds:
            said = self._own_fault(self._launch.code()) or self._launch.said()
            raise LaunchError(f"the sandbox did not come up: {said}", hint="its image needs a python3")

    def alive(self) -> bool:
        """Tell whether it still stands."""
        return not self.over and not is_readable(self._launch.pidfd)

    def become(
        self, job: Job, *, stdin: BinaryIO | None, sink: Sink | None, collect: Collect | None, cancel: int | None
    ) -> Result:
        """Become the job's command, and run it to its end, which is the sandbox's. Raises `Cancelled`."""
        self.over = True
        self._launch.give(stdin)
        self._control.tell(init.BECOME, order(job))
        with self._launch.alarm() as alarm:
            captured = Told(
                self._launch.pipes,
                self._control,
                pidfd=self._launch.pidfd,
                limit=job.limits.output_bytes,
                stop=self._launch.stop,
                sink=sink,
                alarm=alarm,
                cancel=cancel,
            ).run(job.limits.seconds)
        if captured.cancelled:
            raise Cancelled
        return self._launch.ended(captured, collect, lambda code: self._not_become(job) or self._own_fault(code))

    def run(
        self, job: Job, *, stdin: BinaryIO | None, sink: Sink | None, collect: Collect | None, cancel: int | None
    ) -> Result:
        """Run the job's command to its end, and to the end of all that it started. Raises `Cancelled`."""
        self._control.tell(init.RUN, order(job, has_input=stdin is not None))
        with self._launch.alarm() as alarm:
            exchange = Exchange(
                self._launch.pipes,
                self._control,
                pidfd=self._launch.pidfd,
                limit=job.limits.output_bytes,
                stop=self._launch.stop,
                stdin=stdin,
                sink=sink,
                alarm=alarm,
                cancel=cancel,
            )
            captured = exchange.run(job.limits.seconds)
        self.over = exchange.over
        code = self._launch.code() if self.over else exchange.code
        counted = self._since(self._launch.counted(captured))
        if exchange.refused is not None:
            raise exchange.refused
        if captured.cancelled:
            raise Cancelled
        self._launch.collect(collect)
        detail = _no_command(job, exchange.fault) if exchange.fault else ""
        return made_of(captured, code, counted, self._own_fault(code) if self.over else detail)

    def _not_become(self, job: Job) -> str:
        """Return why there was no such command, by the first process' word; empty when there was."""
        failed = [number for kind, number in self._control.heard() if kind == init.FAILED]
        return _no_command(job, failed[0]) if failed else ""

    def _since(self, counted: Counters) -> Counters:
        """Return what was counted since the last command; the peak of memory stays the sandbox's."""
        before, self._before = self._before, counted
        return msgspec.structs.replace(
            counted,
            pids_refused=counted.pids_refused - before.pids_refused,
            cpu_seconds=max(0.0, counted.cpu_seconds - before.cpu_seconds),
        )


def _no_command(job: Job, number: int) -> str:
    return f"{job.argv[0]}: {os.strerror(number)}"
