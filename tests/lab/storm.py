"""Very many launches of which a third is killed at any point, and what is there before and after; see `apart`.

    python -m tests.lab.apart python -m tests.lab.storm LAUNCHES SEED

| who launches | how | what is killed |
|---|---|---|
| crews | processes with the SDK, two launches at a time, gVisor by a link; | the crew, amid two launches |
| | with sandboxes for one command, made ahead, or kept for several | |
| callers | `tidegate run`, gVisor by a link and by sockets, bubblewrap, runc | the caller, from its start on |
| both | | any one process of a sandbox: what makes its place, runsc, its kernel, the guest |

One gate serves all. Prints one JSON object (`Told`).
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.lab.apart import Counts, counted
from tests.lab.doors import within
from tests.lab.gate import Gate, configuration, gate
from tests.lab.images import keep_image
from tests.lab.launching import Launching

__all__ = ["Told"]

_COMMAND = ("sh", "-c", "echo x >/work/x; exit 7")
_CREW = """
import contextlib, os, sys, threading
from tidegate.errors import LaunchError
from tidegate.sdk import Sandbox

state, kind, number, once, argv = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "once", sys.argv[5:]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def held():
    say("held", len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))

def work(number):
    while number > 0:
        try:
            with sandbox.keep() if kind == "kept" else contextlib.nullcontext(sandbox) as one:
                number = several(one, number)
        except LaunchError as fault:
            say("no sandbox", fault)

def several(one, number):
    while number > 0:
        number -= 1
        say("begun")
        try:
            run = one.run(argv)
            say("ended", run.outcome.value, run.untrusted_exit_code, run.detail)
        except LaunchError as fault:
            say("ended refused", fault)
            break
        if kind == "kept" and number % 3 == 0:
            one.reset()
    return number

def lanes(count, number):
    lanes = [threading.Thread(target=work, args=(number,)) for _ in range(count)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()

for count, number in ((2, number),) if once else ((1, 1), (2, number)):
    with Sandbox(policy="default", state=state, ahead=1 if kind == "ahead" else 0) as sandbox:
        lanes(count, number)
    held()
"""
_WAYS = (("gvisor", "veth"), ("gvisor", "uds"), ("bubblewrap", "uds"), ("runc", "veth"))
_CALLERS = 5
"""One launch of so many is a caller's."""
_KINDS = ("one", "ahead", "kept")
_LATEST = {"one": 0.3, "ahead": 0.1, "kept": 0.1}
"""Within that time after its last beginning a crew is killed, which is about what a launch of its kind takes."""
_SHARE = 0.36
"""A little more than a third, since several crews are still under way when that is reached."""
_DOOMED = 0.5
_MOST_SECONDS = 0.9
"""A caller that is doomed is killed within that time, or has ended before."""
_BEGUN, _ENDED = "begun\n", "ended exited 7 \n"


class Told(msgspec.Struct, kw_only=True):
    """What came of it.

    `killed` are launches whose launcher was, `hurt` how often one process of a sandbox was. `odd` is what ended in
    another way than the command does. `sessions` are those still live. `kib` is the memory of each process of the gate
    before and after, `harness` descriptors and threads of crews that ended by themselves. `verified` is what is
    wrong with the log, if anything.
    """

    before: Counts
    after: Counts
    launches: int
    killed: int
    hurt: int
    odd: list[str]
    sessions: int
    kib: dict[int, tuple[int, int]]
    harness: dict[str, list[str]]
    verified: str
    seconds: float


class _Storm:
    def __init__(self, tool: Launching, launches: int, seed: int) -> None:
        self._tool, self._dice, self._launches = tool, random.Random(seed), launches
        self._lock, self._over = threading.Lock(), threading.Event()
        self.begun = self.killed = self.hurt = 0
        self.odd: list[str] = []
        self.harness: dict[str, list[str]] = {}

    def run(self) -> None:
        """Launch until there were as many as wanted, and a third of them killed."""
        self.harness = {kind: self._crew(kind, 4) for kind in _KINDS}
        with ThreadPoolExecutor() as pool:
            hurting = pool.submit(self._hurt)
            try:
                lanes = [pool.submit(self._crews), pool.submit(self._crews), pool.submit(self._callers)]
                for lane in lanes:
                    lane.result()
            finally:
                self._over.set()
            hurting.result()

    def _crews(self) -> None:
        for kind in itertools.cycle(_KINDS):
            if not self._wanted():
                return
            self._crew(kind, 100, killed_after=(round(self._roll(2, 4)), self._roll(0, _LATEST[kind])))

    def _wanted(self) -> bool:
        with self._lock:
            return self.begun < self._launches or self.killed < _SHARE * self.begun < _SHARE * self._launches * 2

    def _crew(self, kind: str, number: int, *, killed_after: tuple[int, float] | None = None) -> list[str]:
        """Have a crew launch so often in each of its lanes; kill it so many beginnings and seconds later."""
        times = "twice" if killed_after is None else "once"
        command = [sys.executable, "-P", "-c", _CREW, str(self._tool.gate.state), kind, str(number), times, *_COMMAND]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self._tool.environment, stdout=pipe, stderr=pipe, text=True) as crew:
            assert crew.stdout is not None
            assert crew.stderr is not None
            said: list[str] = []
            if killed_after is not None:
                while said.count(_BEGUN) < killed_after[0] and (line := crew.stdout.readline()):
                    said.append(line)
                self._over.wait(killed_after[1])
                crew.kill()
            said += crew.stdout.readlines()
            error = crew.stderr.read()
        ended = [line for line in said if line.startswith("ended")]
        self._note(said.count(_BEGUN), said.count(_BEGUN) - len(ended))
        others = [line for line in said if line.startswith("no sandbox")]
        self.odd += others + [line for line in ended if line != _ENDED] + ([error] if error else [])
        return [line for line in said if line.startswith("held")]

    def _callers(self) -> None:
        for boundary, net in itertools.islice(itertools.cycle(_WAYS), self._launches // _CALLERS):
            options = _options(boundary, net)
            doomed, late = self._roll(0, 1) < _DOOMED, self._roll(0, _MOST_SECONDS)
            with self._tool.started(*_COMMAND, options=options) as caller:
                if doomed:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        caller.wait(late)
                    caller.kill()
                _, error = caller.communicate(timeout=60)
            self._note(1, int(caller.returncode == -9))
            if caller.returncode not in (7, -9):
                self.odd.append(f"{boundary} {net}: {caller.returncode} {error.decode()}")

    def _hurt(self) -> None:
        """Now and then kill one process of a sandbox, whichever."""
        ours = f"**/tidegate/{os.stat('/proc/self/ns/pid').st_ino}-*/cgroup.procs"
        while not self._over.wait(self._roll(0.5, 2)):
            with contextlib.suppress(OSError, IndexError):  # there is none, or no more
                members = self._dice.choice(sorted(Path("/sys/fs/cgroup").glob(ours))).read_text().split()
                os.kill(int(self._dice.choice(members)), signal.SIGKILL)
                self.hurt += 1

    def _roll(self, least: float, most: float) -> float:
        with self._lock:
            return self._dice.uniform(least, most)

    def _note(self, begun: int, killed: int) -> None:
        with self._lock:
            self.begun += begun
            self.killed += killed


def _sessions(running: Gate) -> int:
    return len(running.admin("GET", "/v1/sessions")[1]["sessions"])


def _settled(running: Gate) -> Counts:
    """Count once nothing changes any more: what a launch had may take a moment to end."""
    counts = [counted(*_folders(running))]

    def same() -> bool:
        time.sleep(0.3)
        counts.append(counted(*_folders(running)))
        return counts[-1] == counts[-2] and _sessions(running) == 0

    within(8, same)
    return counts[-1]


def _memory(pids: Iterable[int]) -> dict[int, int]:
    """Return the memory of processes, without what they share, in KiB; 0 for one that has ended."""
    found = dict.fromkeys(pids, 0)
    for pid in found:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found[pid] = int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))
    return found


def main(launches: int, seed: int) -> Told:
    """Run the storm, and count."""
    with gate(configuration()) as running:
        keep_image(running.state)
        tool, begun = Launching(running), time.monotonic()
        for boundary, net in _WAYS * 2:
            _one(tool, boundary, net)
        before = _settled(running)
        kib = _memory(before.processes)
        storm = _Storm(tool, launches, seed)
        storm.run()
        # As the next user's would, it takes what a launcher that was killed has left.
        _one(tool, *_WAYS[0])
        after = _settled(running)
        now = _memory(before.processes)
        return Told(
            before=before, after=after, launches=storm.begun, killed=storm.killed, hurt=storm.hurt, odd=storm.odd,
            sessions=_sessions(running), kib={pid: (kib[pid], now[pid]) for pid in kib}, harness=storm.harness,
            verified=_verified(running), seconds=time.monotonic() - begun,
        )  # fmt: skip


def _verified(running: Gate) -> str:
    done = running.cli("audit", "verify", check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _options(boundary: str, net: str) -> list[str]:
    unsafe = ["--unsafe-boundary"] if boundary == "runc" else []
    return ["--policy", "default", "--boundary", boundary, *unsafe, "--net", net]


def _one(tool: Launching, boundary: str, net: str) -> None:
    done = tool.run(*_COMMAND, options=_options(boundary, net))
    assert done.returncode == 7, done.stderr.decode()


def _folders(running: Gate) -> list[Path]:
    """Return all that may hold what is a launch's. The log is to grow."""
    state = [path for path in running.state.iterdir() if path.is_dir() and path.name != "audit"]
    return [*state, Path(tempfile.gettempdir())]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main(int(sys.argv[1]), int(sys.argv[2]))))
