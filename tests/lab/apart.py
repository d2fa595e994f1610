"""A machine of a test's own, as far as a launch can tell, on which all that is left over can be counted, by kind.

    python -m tests.lab.apart python -m tests.lab.storm      # in PID, mount and network namespaces of its own

    before = counted([gate.process.pid])
    ...
    assert counted(...) == before

Who counts by name on a machine that others use misses what has lost its name, and sees what is not its own. Here all
processes, links and tables are ours, and all orphans are seen. Control groups are named by PID namespace. Mounts that
were there before may go, since they are copies of the machine's own.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["PLACE", "Counts", "counted", "spaces_of"]

PLACE = Path("/run/tidegate-launch")
_SIOCGSKNS = 0x894C  # the network namespace of a socket (socket.h)
_PIDFD_GETFD = 438  # on every machine
_KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# As on a machine that systemd started, what is mounted in one place would show in others. The shell takes orphans in.
_MAKE = """
mount --make-rshared /
mkdir -p /run/tidegate-launch && mount -t tmpfs -o mode=0700 tmpfs /run/tidegate-launch
ip link set lo up
"$@" &
wait $!
"""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What is there, by kind; each a name that says which. `descriptors` and `threads` are of each process."""

    processes: dict[int, str]
    descriptors: dict[int, int]
    threads: dict[int, int]
    namespaces: list[str]
    mounts: list[str]
    groups: list[str]
    links: list[str]
    tables: list[str]
    sockets: list[str]
    files: list[str]

    def more_than(self, before: "Counts", kind: str) -> list[str]:
        """Return what there is of a kind that was not there before."""
        then, now = getattr(before, kind), getattr(self, kind)
        if isinstance(now, dict):
            return [
                f"{self.processes[pid]}: {then.get(pid)}, now {now[pid]}" for pid in now if now[pid] != then.get(pid)
            ]
        return [one for one in now if one not in then]


def counted(*folders: Path) -> Counts:
    """Count what is on this machine, and the files below the launch place and `folders`. Not counted: who counts."""
    pids = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()]
    processes = {pid: words for pid in pids if (words := _words(pid))}
    return Counts(
        processes=processes,
        descriptors={pid: len(_entries(f"/proc/{pid}/fd")) for pid in processes},
        threads={pid: len(_entries(f"/proc/{pid}/task")) for pid in processes},
        namespaces=sorted({space for pid in processes for space in spaces_of(pid)}),
        mounts=sorted({line for pid in processes for line in _mounts(pid)}),
        groups=sorted(
            str(path) for path in Path("/sys/fs/cgroup").glob(f"**/tidegate/{os.stat('/proc/self/ns/pid').st_ino}-*")
        ),
        links=_said("ip", "-o", "link", "show"),
        tables=_said("nft", "list", "tables"),
        sockets=sorted(line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "/" in line),
        files=sorted(str(path) for folder in (PLACE, *folders) for path in folder.rglob("*")),
    )


def spaces_of(pid: int) -> Iterator[str]:
    """Return the namespaces that a process keeps: its own, those that it has open, and those of its sockets."""
    for kind in _KINDS:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/ns/{kind}")
    for number in _entries(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            leads = os.readlink(f"/proc/{pid}/fd/{number}")
            if leads.partition(":")[0] in _KINDS:
                yield leads
            elif leads.startswith("socket:"):
                yield _space_of_socket(pid, int(number))


def _space_of_socket(pid: int, number: int) -> str:
    pidfd = os.pidfd_open(pid)
    try:
        ours = _libc().syscall(_PIDFD_GETFD, pidfd, number, 0)
    finally:
        os.close(pidfd)
    if ours < 0:
        raise OSError(f"descriptor {number} of {pid} cannot be had")
    try:
        space = fcntl.ioctl(ours, _SIOCGSKNS)
    finally:
        os.close(ours)
    try:
        return f"net:[{os.fstat(space).st_ino}]"
    finally:
        os.close(space)


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it has ended
        return []


def _words(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return words or Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def _mounts(pid: int) -> list[str]:
    """Return its mounts, without their numbers."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return []
    return [f"{' '.join(line.split()[3:5])} {line.partition(' - ')[2]}" for line in lines]


def _said(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()


def main(command: Sequence[str]) -> int:
    """Run a command on a machine of its own; all that it leaves running ends with it."""
    made = [
        "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
        "--", "sh", "-c", _MAKE, "sh", *command,
    ]  # fmt: skip
    process = subprocess.Popen(made)
    signal.signal(signal.SIGTERM, lambda *_: process.kill())
    return process.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
