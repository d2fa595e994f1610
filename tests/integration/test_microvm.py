"""A virtual machine as a boundary: a real QEMU with a real kernel, emulated, since few machines of CI have KVM.

Longer than a module should be, since a machine takes seconds to come up, and one of them answers whatever can be asked
without breaking it (`told`).
"""

import contextlib
import hashlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.lab.box import Box, leftovers
from tests.lab.doors import within
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, Ground, require
from tidegate_launcher.job import Bind
from tidegate_launcher.microvm.boundary import Microvm
from tidegate_launcher.microvm.kernel import find_kernel
from tidegate_launcher.microvm.qemu import find_qemu, try_machine
from tidegate_launcher.net.landing import Landing
from tidegate_launcher.result import Outcome, Result


def _why_not() -> str | None:
    if reason := why_no_gvisor():  # it has the same root, and needs root too
        return reason
    try:
        find_qemu()
        find_kernel(os.environ)
    except LaunchError as fault:
        return str(fault)
    return None


pytestmark = pytest.mark.skipif(_why_not() is not None, reason=f"no machines: {_why_not()}")

MIB = 1024 * 1024
ASKED = """
import errno, glob, json, os, platform, socket, sys
def fault(work):
    try: work()
    except OSError as fault: return errno.errorcode[fault.errno]
    return "none"
def write(path):
    with open(path, "w") as file: file.write("x")
def children():
    count = 0
    try:
        while True:
            if os.fork() == 0: os.read(held, 1); os._exit(0)
            count += 1
    except OSError as fault: return count, errno.errorcode[fault.errno]
held, holding = os.pipe()
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "stdin": sys.stdin.read(),
    "kernel": platform.release(),
    "host": platform.node(),
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "caps": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")],
    "cwd": os.getcwd(),
    # Not os.environ, to which Python adds a word of its own.
    "environment": dict(word.split("=", 1) for word in open("/proc/self/environ").read()[:-1].split("\\0")),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "written": {path: fault(lambda: write(path)) for path in
                ("/x", "/etc/x", "/dev/x", "/usr/bin/x", "/in/x", "/work/x", "/tmp/x", "/dev/shm/x")},
    "links": sorted(os.listdir("/sys/class/net")) if os.path.exists("/sys/class/net") else
             [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]],
    "connects": [fault(lambda: socket.create_connection(("192.0.2.1", 80), 3)),
                 fault(lambda: socket.create_connection(("10.0.2.2", 80), 3))],
    "raw": fault(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "abstract": fault(lambda: socket.socket(socket.AF_UNIX).connect("\\0tidegate-test")),
    "namespace": fault(lambda: os.unshare(os.CLONE_NEWUSER)),
    "in": [open("/in/a").read(), open("/in/more/b").read(), open("/etc/hosts").read()],
    "ports": glob.glob("/dev/vport*") + glob.glob("/dev/vd*"),
    "first": fault(lambda: open("/proc/1/environ").read()),
    "children": children(),
}), flush=True)
sys.stderr.write("err\\n")
sys.exit(7)
"""


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root, Microvm(accelerator="tcg"))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert leftovers() == []


class Told(msgspec.Struct):
    """What one machine said, and what QEMU was seen as on the host meanwhile."""

    result: Result
    facts: dict[str, Any]
    seen: dict[str, str]


@pytest.fixture(scope="module")
def told(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Told:
    given = tmp_path_factory.mktemp("given")
    (given / "in" / "more").mkdir(parents=True)
    (given / "in" / "a").write_text("a'\"$\n")
    (given / "in" / "more" / "b").write_text("b")
    (given / "hosts").write_text("127.0.0.1 here\n")
    seen: dict[str, str] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0tidegate-test")
        listener.listen()
        result = box.python(
            ASKED, stdin=io.BytesIO(b"given\n"), limits={"pids": 20, "seconds": 60},
            sink=lambda *_: seen.update(_qemu()),
            environment=(("AN ODD", "va'l\"ue $HOME\n"), ("-u", "x")),
            binds=(Bind(source=given / "in", target="/in"), Bind(source=given / "hosts", target="/etc/hosts")),
        )  # fmt: skip
    assert result.outcome == Outcome.EXITED, result
    return Told(result, json.loads(result.untrusted_stdout), seen)


def _qemu() -> dict[str, str]:
    """Return what the host says of this process' QEMU."""
    owner = f"-{os.getpid()}-"
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if "qemu" in (path / "comm").read_text() and owner in (path / "cgroup").read_text():
                status = dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines())
                return {
                    **{name: status[name] for name in ("Uid", "Gid", "CapEff", "NoNewPrivs", "Seccomp", "NSpid")},
                    "root": " ".join(sorted(os.listdir(path / "root"))),
                    "links": (path / "net" / "dev").read_text(),
                    "held": " ".join(sorted(_held(path))),
                }
    return {}


def _held(path: Path) -> Iterator[str]:
    for descriptor in (path / "fd").iterdir():
        target = os.readlink(descriptor)
        yield target if target.startswith("/") else target.partition(":")[0]


# ---- what one machine tells ----------------------------------------------------------------------


def test_runs_a_command_with_streams_and_code_of_its_own(told: Told) -> None:
    assert (told.result.outcome, told.result.exit_code) == (Outcome.EXITED, 7)
    assert (told.facts["stdin"], told.result.untrusted_stderr) == ("given\n", b"err\n")
    assert told.result.counters.memory_peak_bytes > 0


def test_its_kernel_is_its_own(told: Told) -> None:
    assert told.facts["kernel"] == find_kernel(os.environ).recorded.release
    assert told.facts["host"] == "sandbox"


def test_S_12_no_privilege_and_none_to_be_had(told: Told) -> None:
    assert told.facts["ids"] == [[65534] * 3, [65534] * 3, []]
    assert told.facts["caps"] == ["0" * 16] * 4 + ["1"]
    assert told.facts["namespace"] in ("ENOSPC", "EPERM")


def test_S_05_the_environment_is_the_jobs_alone_and_as_it_was_given(told: Told) -> None:
    assert told.facts["environment"] == {
        "HOME": "/work", "PATH": "/usr/bin:/bin", "AN ODD": "va'l\"ue $HOME\n", "-u": "x",
    }  # fmt: skip
    assert told.facts["cwd"] == "/work"
    assert told.facts["first"] == "EACCES"


def test_S_07_no_descriptor_and_no_port_of_the_machines_is_in_reach(told: Told) -> None:
    assert told.facts["descriptors"] == 6  # three streams, the test's pipe, the folder that is listed
    assert told.facts["ports"] == []


def test_the_root_and_what_is_given_are_read_only(told: Told) -> None:
    written = told.facts["written"]
    assert {path for path, fault in written.items() if fault == "none"} == {"/work/x", "/tmp/x", "/dev/shm/x"}
    assert {path for path, fault in written.items() if fault == "EROFS"} == {
        "/x", "/etc/x", "/dev/x", "/usr/bin/x", "/in/x",
    }  # fmt: skip
    assert told.facts["in"] == ["a'\"$\n", "b", "127.0.0.1 here\n"]


def test_no_network_is_there(told: Told) -> None:
    assert told.facts["links"] == ["lo"]
    assert told.facts["connects"] == ["ENETUNREACH"] * 2
    assert told.facts["raw"] == "EPERM"


def test_S_02_abstract_sockets_of_the_host_are_not_there(told: Told) -> None:
    assert told.facts["abstract"] == "ECONNREFUSED"


def test_S_15_a_process_too_many_is_refused(told: Told) -> None:
    count, fault = told.facts["children"]
    assert (10 < count < 20, fault) == (True, "EAGAIN")


def test_on_the_host_it_is_nobody_with_nothing_to_see(told: Told) -> None:
    assert set(told.seen["Uid"].split()) == set(told.seen["Gid"].split()) == {"65534"}
    assert (told.seen["CapEff"], told.seen["NoNewPrivs"], told.seen["Seccomp"]) == ("0" * 16, "1", "2")
    assert told.seen["NSpid"].split()[1] in ("1", "2")
    assert set(told.seen["root"].split()) <= {
        "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "dev", "proc", "vm",
    }  # fmt: skip
    assert told.seen["links"].count(":") == 1


def test_it_holds_no_file_of_the_hosts_but_its_disk(told: Told) -> None:
    files = {target for target in told.seen["held"].split() if target.startswith("/")}
    assert len({target for target in files if target.endswith("microvm-1.ext4")}) == 1
    assert {target for target in files if not target.endswith(("microvm-1.ext4", "/work/left.tar"))} <= {"/dev/null"}


# ---- how it ends ---------------------------------------------------------------------------------


def test_what_goes_in_comes_out_whole_though_the_command_ends_at_once_and_nobody_reads(box: Box) -> None:
    """Nothing may be on its way when the machine goes: it waits for a reader that waits for it."""
    # More than a pipe holds, and less than what a queue of the machine would beside it.
    data, waited = os.urandom(300_000), list[bool]()

    def slow(_stream: str, _text: bytes) -> None:
        if not waited:
            waited.append(within(3, lambda: _qemu() == {}))

    result = box.shell("cat; exit 5", stdin=io.BytesIO(data), sink=slow)
    assert waited == [False]
    assert hashlib.sha256(result.untrusted_stdout).digest() == hashlib.sha256(data).digest()
    assert result.exit_code == 5


def test_the_time_ends_it_whatever_it_does_and_begins_when_it_is_up(box: Box) -> None:
    result = box.shell("trap '' TERM INT HUP; setsid sleep 600 & exec >&- 2>&-; sleep 600", limits={"seconds": 0.7})
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.TIMEOUT, 124, None)
    assert 0.7 <= result.seconds < 6


def test_S_14_more_memory_than_allowed_ends_it_and_is_told(box: Box) -> None:
    # Less than the machine has: the limit is the command's.
    code = "x = b'x' * 120_000_000\nprint('has it')"
    result = box.python(code, limits={"memory_bytes": 96 * MIB, "disk_bytes": 16 * MIB})
    assert (result.outcome, result.exit_code, result.untrusted_stdout) == (Outcome.OOM, 137, b"")


def test_S_13_a_full_disk_is_full_at_the_limit_and_told_and_what_outlives_the_command_ends(box: Box) -> None:
    result = box.shell(
        "setsid sleep 600 & dd if=/dev/zero of=/tmp/fill bs=1M count=40 2>&1; stat -c %s /tmp/fill; exit 3",
        limits={"disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code) == (Outcome.DISK, 3)
    assert result.untrusted_stdout.decode().splitlines()[-1] == str(16 * MIB)


def test_more_output_than_allowed_ends_it(box: Box) -> None:
    result = box.shell("yes", limits={"output_bytes": 10_000})
    assert (result.outcome, len(result.untrusted_stdout), result.truncated) == (Outcome.OUTPUT_LIMIT, 10_000, True)


def test_a_signal_is_told_from_an_exit(box: Box) -> None:
    result = box.shell("kill -9 $$")
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)


def test_a_missing_binary_is_a_launch_error_that_names_it(box: Box) -> None:
    result = box.run("no-such")
    assert (result.outcome, result.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert "no-such" in result.detail


def test_a_launch_that_is_wanted_no_more_is_ended_while_the_machine_comes_up(box: Box) -> None:
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        for descriptor in (reading, writing):
            stack.callback(os.close, descriptor)
        os.write(writing, b"x")
        with pytest.raises(Cancelled):
            box.shell("sleep 60", cancel=reading)


def test_what_is_left_in_work_can_be_collected_and_what_cannot_is_told(box: Box) -> None:
    left: dict[str, str] = {}

    def look(work: int) -> None:
        for name in os.listdir(work):
            left[name] = os.readlink(name, dir_fd=work) if name == "link" else ""
        with open(os.open("a", os.O_RDONLY, dir_fd=work)) as file:
            left["a"] = file.read()

    code = "echo 1 >a; mkdir d; echo 2 >d/b; ln -s /etc/passwd link; mkfifo pipe; touch \"$(printf 'x\\ny')\"; exit 4"
    result = box.shell(code, collect=look)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 4)
    assert left == {"a": "1\n", "d": "", "link": "/etc/passwd"}
    assert "2 entries of /work were not taken out" in result.detail
    assert "FIFO" in result.detail


def test_more_in_work_than_its_disk_can_hold_is_no_success(box: Box) -> None:
    """Files of holes are larger than what they take: whatever is copied out is bounded on the host."""
    seen: list[int] = []
    code = "for n in 1 2 3 4; do truncate -s 4M /work/$n; done"
    result = box.shell(code, limits={"disk_bytes": 4 * MIB, "memory_bytes": 64 * MIB}, collect=seen.append)
    assert (result.outcome, result.exit_code, seen) == (Outcome.LAUNCH_ERROR, 125, [])
    assert "nothing was copied out" in result.detail


def test_S_19_of_a_launcher_that_is_killed_no_process_is_left(box: Box) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.lab.box import Box\n"
        "from tidegate_launcher.microvm.boundary import Microvm\n"
        f"Box(Path({str(box.root)!r}), Microvm(accelerator='tcg')).shell('echo up; sleep 600',"
        " sink=lambda *_: print('up', flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"up\n"
        assert _processes(launcher.pid) != []
        launcher.send_signal(signal.SIGKILL)
    assert within(5, lambda: _processes(launcher.pid) == [])
    for group in Path("/sys/fs/cgroup").glob(f"**/tidegate/*-{launcher.pid}-*"):
        group.rmdir()
    for folder in Path("/tmp").glob(f"tg-scratch-{launcher.pid}-*"):
        subprocess.run(["rm", "-r", str(folder)], check=True)


def _processes(launcher: int) -> list[str]:
    """Return the members of a launcher's control groups."""
    members: set[str] = set()
    for path in Path("/sys/fs/cgroup").glob(f"**/tidegate/*-{launcher}-*/cgroup.procs"):
        members.update(path.read_text().split())
    return sorted(members)


# ---- its network ---------------------------------------------------------------------------------


def test_by_a_link_the_gates_doors_are_all_that_it_reaches_and_the_wall_counts_the_rest(box: Box) -> None:
    code = (
        "import json, socket\n"
        "def asked(host, port, family=socket.AF_INET):\n"
        "    with socket.socket(family) as s:\n"
        "        s.settimeout(10)\n"
        "        s.connect((host, port))\n"
        "        return s.recv(99).decode()\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for n in range(3): u.sendto(b'x', ('192.0.2.1', 443))\n"
        "print(json.dumps([asked('10.77.0.1', 8080), asked('fd77::1', 8080, socket.AF_INET6),\n"
        "                  asked('169.254.169.254', 80), asked('2001:db8::1', 22, socket.AF_INET6)]))\n"
    )
    with Landing.make() as landing, _answering(landing):
        result = box.python(code, net="veth", namespace=landing.sandbox.path)
        dropped = landing.dropped()
        devices = landing.sandbox.within(lambda: Path("/proc/thread-self/net/dev").read_text())
    assert result.exit_code == 0, result
    assert json.loads(result.untrusted_stdout) == ["http", "http", "transparent", "transparent"]
    assert dropped["everything else"] >= 3
    assert "tap0" not in devices


@contextlib.contextmanager
def _answering(landing: Landing) -> Iterator[None]:
    """Have each door say which it is to whoever comes."""
    with selectors.DefaultSelector() as selector:
        for door in landing.doors:
            for sock in door.sockets:
                if sock.type == socket.SOCK_STREAM:
                    selector.register(sock, selectors.EVENT_READ, door.spec.way)
        reading, writing = os.pipe()
        selector.register(reading, selectors.EVENT_READ, None)

        def serve() -> None:
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(key.fd)) as listener:
                        accepted, _ = listener.accept()
                        with accepted:
                            accepted.sendall(key.data.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            os.close(writing)
            thread.join()
            os.close(reading)


# ---- what is asked of it -------------------------------------------------------------------------


def test_it_can_enforce_all_but_a_socket_and_waiting_and_is_asked_for_neither(box: Box) -> None:
    tcg = Microvm(accelerator="tcg")
    assert tcg.capabilities() == set(Capability) - {Capability.NET_UDS, Capability.WAITS}
    with pytest.raises(LaunchError, match="microvm-tcg cannot enforce a unix socket"):
        require(tcg, frozenset({Capability.NET_UDS}))
    with pytest.raises(LaunchError, match="microvm-tcg cannot enforce a unix socket"):
        box.shell("true", net="uds")
    with pytest.raises(LaunchError, match="no network namespace was made"):
        box.shell("true", net="veth")


def test_a_machine_that_is_not_up_in_time_is_no_accelerator() -> None:
    with pytest.raises(LaunchError, match="no machine starts by tcg here: no end within"):
        try_machine(find_qemu(), find_kernel(os.environ), "tcg", seconds=0.1)


def test_without_a_working_kvm_nothing_is_emulated_in_its_place(box: Box) -> None:
    """Whichever this machine is: KVM has run a machine, or the launch is refused by a word on the other boundary."""
    kvm = Microvm()
    if _kvm_works():
        assert Box(box.root, kvm).shell("exit 3").exit_code == 3  # type: ignore[arg-type]
        return
    with box.scratch() as scratch, pytest.raises(LaunchError, match=r"(?i)kvm") as refused:
        kvm.run(box.job("true"), Ground(scratch=scratch))
    assert "microvm-tcg" in refused.value.hint


def _kvm_works() -> bool:
    try:
        try_machine(find_qemu(), find_kernel(os.environ), "kvm")
    except LaunchError:
        return False
    return True
