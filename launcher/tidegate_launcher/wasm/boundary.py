"""WebAssembly as a boundary: the guest's instructions reach nothing but its own memory and a handful of our calls.

Pure computation, as `python3 -c`, or `qjs --std -e` where a call must take a millisecond. A worker with the compiled
guest is kept after its first call; the memory of a call is its own. There are no files, no processes and no network,
so there is nothing of them to limit.
"""

import importlib.util
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import BinaryIO, Final

from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, Collect, Ground, Sink
from tidegate_launcher.job import Job
from tidegate_launcher.result import Counters, Outcome, Result, classify
from tidegate_launcher.wasm.call import Answer, Call, read_frame, write_frame
from tidegate_launcher.wasm.guest import GUESTS, Guest, guest_of, guest_path

__all__ = ["Wasm"]

_CAPABILITIES: Final = frozenset(
    {
        # No system call of the host's can be made at all.
        Capability.KERNEL,
        Capability.NET_NONE, Capability.MEMORY, Capability.CPUS, Capability.PIDS, Capability.DISK, Capability.TIME,
        Capability.OUTPUT,
    }
)  # fmt: skip
_GRACE_SECONDS: Final = 0.5
"""For the engine to end a call by itself, before its process is ended."""
_COMPILE_SECONDS: Final = 60.0
_MOST_IDLE: Final = 2
_MOST_STDIN: Final = 64 * 1024 * 1024
_CHUNK: Final = 65536


class Wasm:
    """Runs jobs in WebAssembly. `close` ends its workers."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, fuel: int | None = None) -> None:
        """Take the environment that says where the guests are, and how many instructions a call has, if not any."""
        self._environ = os.environ if environ is None else environ
        self._fuel = fuel
        self._idle: dict[str, list[_Worker]] = {guest.file: [] for guest in GUESTS}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What `--boundary` calls it."""
        return "wasm"

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can enforce. Raises `LaunchError` when it cannot be used at all."""
        if importlib.util.find_spec("wasmtime") is None:
            raise LaunchError("wasmtime is not installed", hint="pip install '.[wasm]' in a checkout of Tidegate")
        for guest in GUESTS:
            guest_path(guest, self._environ)
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
        """Run a job to its end; `sink` is given the output when it is over. See `Boundary.run`.

        The memory that a guest asks for in vain is its own affair: it goes on or fails, and is never `oom`.
        """
        if collect is not None:
            raise LaunchError(f"the boundary {self.name} cannot enforce a folder to copy out", where="--out")
        guest, argv = guest_of(job.argv)
        _refuse(job)
        call = Call(
            argv=argv,
            environment=job.environment,
            stdin=_all_of(stdin, cancel),
            seconds=job.limits.seconds,
            memory_bytes=job.limits.memory_bytes,
            output_bytes=job.limits.output_bytes,
            fuel=self._fuel,
        )
        worker = self._take(guest)
        answer = worker.ask(call, cancel)
        self._give_back(guest, worker)
        result = _result(answer, call)
        if sink is not None:
            for name, text in (("stdout", result.untrusted_stdout), ("stderr", result.untrusted_stderr)):
                if text:
                    sink("stdout" if name == "stdout" else "stderr", text)
        return result

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            workers = [worker for idle in self._idle.values() for worker in idle]
            for idle in self._idle.values():
                idle.clear()
        for worker in workers:
            worker.end()

    def _take(self, guest: Guest) -> "_Worker":
        with self._lock:
            if self._idle[guest.file]:
                return self._idle[guest.file].pop()
        self.capabilities()
        return _Worker(guest, self._environ)

    def _give_back(self, guest: Guest, worker: "_Worker") -> None:
        with self._lock:
            if worker.alive and len(self._idle[guest.file]) < _MOST_IDLE:
                self._idle[guest.file].append(worker)
                return
        worker.end()


class _Worker:
    """A process with a compiled guest. One call at a time."""

    def __init__(self, guest: Guest, environ: Mapping[str, str]) -> None:
        names = ("TIDEGATE_CACHE", "XDG_CACHE_HOME", "HOME")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "tidegate_launcher.wasm.worker", guest.file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: environ[name] for name in names if name in environ},
            cwd="/",
            bufsize=0,
        )
        asks, answers = self._process.stdin, self._process.stdout
        if asks is None or answers is None:
            raise LaunchError("the engine has no pipes", where="wasm")
        self._asks, self._answers = asks, answers
        self._fresh = True
        self.alive = True

    def ask(self, call: Call, cancel: int | None) -> Answer | None:
        """Return the answer; None when there was none in time: the process is ended then.

        Raises `LaunchError`, and `Cancelled` once `cancel` is readable: the process is ended then too.
        """
        try:
            if self._fresh and self._answer(_COMPILE_SECONDS, cancel) is None:
                raise LaunchError("the guest could not be compiled", hint="python -m tidegate_launcher.wasm.worker")
            self._fresh = False
            write_frame(self._asks, call)
            answer = self._answer(call.seconds + _GRACE_SECONDS, cancel)
        except BaseException:
            self.end()
            raise
        if answer is None:
            self.end()
        return answer

    def _answer(self, seconds: float, cancel: int | None) -> Answer | None:
        if not _readable(self._answers.fileno(), cancel, seconds):
            return None
        answer = read_frame(self._answers, Answer)
        if answer is None:
            raise LaunchError("the engine fell", where="wasm")
        return answer

    def end(self) -> None:
        """End the process."""
        self.alive = False
        self._process.kill()
        self._process.communicate()


def _refuse(job: Job) -> None:
    """Raise `LaunchError` for what this boundary has not."""
    missing = ""
    if job.net != "none":
        missing = Capability.NET_UDS.value if job.net == "uds" else Capability.NET_VETH.value
    elif job.binds:
        missing = "files that are bound"
    elif job.limits.cpus < 1:
        missing = "a part of a processor"
    if missing:
        raise LaunchError(f"the boundary wasm cannot enforce {missing}", where="--boundary", hint="choose another")


def _all_of(stdin: BinaryIO | None, cancel: int | None) -> bytes:
    """Return all of standard input. Raises `LaunchError` for too much of it, and `Cancelled`."""
    if stdin is None:
        return b""
    try:
        descriptor = stdin.fileno()
    except OSError:  # in memory, which never waits
        found = stdin.read(_MOST_STDIN + 1)
    else:
        found = _read(descriptor, cancel)
    if len(found) > _MOST_STDIN:
        raise LaunchError("standard input is over 64 MiB", where="stdin")
    return found


def _read(descriptor: int, cancel: int | None) -> bytes:
    found = bytearray()
    while len(found) <= _MOST_STDIN:
        _readable(descriptor, cancel, None)
        piece = os.read(descriptor, _CHUNK)
        if not piece:
            break
        found += piece
    return bytes(found)


def _readable(descriptor: int, cancel: int | None, seconds: float | None) -> bool:
    """Tell whether there is something to read within the time. Raises `Cancelled` once `cancel` is readable."""
    # poll, which takes regular files too, as standard input may be.
    poller = select.poll()
    for one in (descriptor, cancel):
        if one is not None:
            poller.register(one, select.POLLIN)
    ready = {one for one, _ in poller.poll(None if seconds is None else seconds * 1000)}
    if cancel in ready:
        raise Cancelled
    return descriptor in ready


def _result(answer: Answer | None, call: Call) -> Result:
    if answer is None:
        return Result(
            outcome=Outcome.TIMEOUT, seconds=call.seconds, detail="the engine did not end it; its process was"
        )
    ended = answer.limit != ""
    outcome = classify(
        answer.code,
        timed_out=answer.limit in ("time", "fuel"),
        flooded=answer.limit == "output",
        failed=False,
        counters=Counters(),
    )
    return Result(
        outcome=outcome,
        untrusted_exit_code=None if ended else answer.code,
        untrusted_stdout=answer.stdout,
        untrusted_stderr=answer.stderr,
        truncated=answer.limit == "output",
        seconds=answer.seconds,
        detail="its instructions are used up" if answer.limit == "fuel" else "",
    )
