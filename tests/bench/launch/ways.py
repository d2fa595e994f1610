"""The launcher's ways: in a process that has it loaded, as the SDK does, and as a program that somebody types."""

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from tests.bench.launch.contender import LaunchContender, Task, Unusable, timed
from tests.bench.launch.yard import CREDENTIAL, POLICY, Yard
from tests.bench.memory import resident_mb
from tests.lab.gate import environment
from tidegate_launcher.boundary import Boundary, Sink
from tidegate_launcher.gvisor.boundary import GVisor
from tidegate_launcher.job import Net
from tidegate_launcher.order import Launched, Order
from tidegate_launcher.pool import Pool
from tidegate_launcher.result import Outcome
from tidegate_launcher.wasm.boundary import Wasm

__all__ = ["Claimed", "ColdWasm", "InProcess", "Live", "Typed", "checked"]

_LOOK_SECONDS: Final = 0.002


def checked(launched: Launched, task: Task) -> None:
    """Raise `Unusable` for a launch that was no success."""
    result = launched.result
    good = result.outcome is Outcome.EXITED and result.untrusted_exit_code == 0 and result.untrusted_stdout == task.says
    if not good or launched.faults:
        told = [result.detail, result.untrusted_stderr[-200:].decode("utf-8", "replace"), *launched.faults]
        raise Unusable(f"{result.outcome.value} {result.untrusted_exit_code}: {'; '.join(filter(None, told))}")


@dataclasses.dataclass(kw_only=True)
class _Here(LaunchContender):
    """A launch in this very process, which has the launcher loaded."""

    yard: Yard
    net: Net = "none"

    @property
    def order(self) -> Order:
        """What is launched."""
        return self.yard.order(self.task, net=self.net)

    def by(self, way: Callable[[Order, Sink], Launched]) -> float:
        """Launch this way to its end, and return the seconds."""
        firsts: list[float] = []

        def heard(stream: Literal["stdout", "stderr"], _: bytes) -> None:
            if stream == "stdout":
                firsts.append(time.perf_counter())

        order = self.order
        began = time.perf_counter()
        launched = way(order, heard)
        ended = time.perf_counter()
        checked(launched, self.task)
        return self.task.seconds(began, firsts[0] if firsts else None, ended)


@dataclasses.dataclass(kw_only=True)
class InProcess(_Here):
    """A fresh sandbox of a boundary that is kept."""

    boundary: Boundary

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Look at the machine, as `Sandbox` does when it is opened."""
        self.boundary.capabilities()

    def once(self) -> float:
        """Launch to the end."""
        return self.by(lambda order, sink: self.yard.launch(order, self.boundary, sink))


@dataclasses.dataclass(kw_only=True)
class ColdWasm(_Here):
    """WebAssembly with nothing kept: a worker is started, and takes the compiled guest from its file."""

    def once(self) -> float:
        """Launch by a boundary that was never used."""
        fresh = Wasm()
        try:
            return self.by(lambda order, sink: self.yard.launch(order, fresh, sink))
        finally:
            fresh.close()


@dataclasses.dataclass(kw_only=True)
class Claimed(_Here):
    """One sandbox of a pool, for one command. What fills the pool anew runs beside it, as it does for everybody."""

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Open a pool with one sandbox."""
        boundary = GVisor()
        self._pool = Pool(1, lambda: self.yard.kept(self.order, boundary, many=False), _never)
        stack.callback(self._pool.close)
        self._filled()

    def once(self) -> float:
        """Claim it, run the command, and have the sandbox gone. The next one stands before another contender's turn."""
        try:
            return self.by(lambda order, sink: self._pool.run(order, sink=sink))
        finally:
            self._filled()

    def _filled(self) -> None:
        if not self._pool.wait(1):
            raise Unusable(f"the pool is not filled: {self._pool.fault}")


def _never(*_: object, **__: object) -> Launched:
    """Be no way to launch: a fresh sandbox is what the pool is compared with."""
    raise Unusable("the pool was empty")


@dataclasses.dataclass(kw_only=True)
class Live(_Here):
    """One command of many in a sandbox that stays: its end is that of all that it started."""

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Make the sandbox."""
        self._sandbox = stack.enter_context(self.yard.kept(self.order, GVisor(), many=True))

    def once(self) -> float:
        """Run the command."""
        return self.by(lambda order, sink: self._sandbox.run(order, sink=sink))


@dataclasses.dataclass(kw_only=True)
class Typed(LaunchContender):
    """`tidegate run` with a policy and a credential: the whole process, from the shell's point of view."""

    yard: Yard

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Run it once: its byte code is kept from then on."""
        self.once()

    def once(self) -> float:
        """Run it to its end."""
        return timed(self._line, self.task, env=self._environment, cwd=self.yard.gate.folder)

    def peak_mb(self) -> float:
        """Run it, and return the most memory that the program itself had."""
        peak = 0.0
        with subprocess.Popen(
            self._line, env=self._environment, cwd=self.yard.gate.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            # The kernel keeps the peak, but for as long as the process has memory: the last look counts.
            while process.poll() is None:
                peak = max(peak, resident_mb(process.pid, "VmHWM") or 0.0)
                time.sleep(_LOOK_SECONDS)
            told = b"" if process.stderr is None else process.stderr.read()
        if process.returncode:
            raise Unusable(f"tidegate run ended with {process.returncode}: {told.decode('utf-8', 'replace')[-500:]}")
        return peak

    @property
    def _line(self) -> list[str]:
        program = str(Path(sys.executable).with_name("tidegate"))
        return [program, "run", "--policy", POLICY, "--credential", CREDENTIAL, "--", *self.task.argv]

    @property
    def _environment(self) -> dict[str, str]:
        # As an installed program has it, whatever this machine does.
        known = environment({"TIDEGATE_CONFIG": str(self.yard.gate.config_file)})
        return {name: value for name, value in known.items() if name != "PYTHONDONTWRITEBYTECODE"}
