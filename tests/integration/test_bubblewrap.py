"""bubblewrap as a boundary: real namespaces, a real filter, real control groups; as root."""

import contextlib
import os
import pwd
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.box import Box
from tests.lab.doorway import doorway, echo
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, require
from tidegate_launcher.bubblewrap.boundary import Bubblewrap
from tidegate_launcher.job import Bind
from tidegate_launcher.net import shim
from tidegate_launcher.net.hosts import hosts_text
from tidegate_launcher.net.shimmed import shim_bind, shimmed
from tidegate_launcher.result import Outcome

WHY = why_no_gvisor() or (None if shutil.which("bwrap") else "bwrap is not here: `make setup` as root installs it")
pytestmark = pytest.mark.skipif(WHY is not None, reason=f"no bubblewrap: {WHY}")

MIB = 1024 * 1024
NOBODY = 65534
# What a kernel without the newer calls says too; clone3 must look absent.
REFUSED = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    libc.syscall(*words)
    return errno.errorcode.get(ctypes.get_errno(), "none")
print(call(272, 0x10000000), call(165, 0, 0, 0, 0, 0), call(425, 1, 0), call(321, 0, 0, 0), call(101, 0, 0, 0, 0),
      call(435, 0, 0), call(250, 0, 0), call(56, 0x10000000))
"""


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root, Bubblewrap())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert _left() == []


def _left() -> list[str]:
    """Return the control groups of this process' launches, and the places of any that a process is still in."""
    owner = f"-{os.getpid()}-"
    found = [str(path) for path in Path("/sys/fs/cgroup").glob("**/tidegate/*-*-*-*") if owner in path.name]
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            found += [f"{path}: {line}" for line in path.read_text().splitlines() if "/bubblewrap/place" in line]
    return found


def test_runs_a_command_with_streams_and_code_of_its_own(box: Box) -> None:
    result = box.shell("cat; echo err >&2; exit 7", stdin=open("/proc/self/comm", "rb"))  # noqa: SIM115
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 7)
    assert (result.untrusted_stdout, result.untrusted_stderr) == (Path("/proc/self/comm").read_bytes(), b"err\n")
    assert result.counters.memory_peak_bytes > 0


def test_a_launch_that_is_wanted_no_more_is_ended_with_all_of_it(box: Box) -> None:
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        for descriptor in (reading, writing):
            stack.callback(os.close, descriptor)
        with pytest.raises(Cancelled):  # once it runs: it says so, and that is the sign to end it
            box.shell("setsid sleep 60 & echo up; sleep 60", sink=lambda *_: os.write(writing, b"x"), cancel=reading)


def test_as_root_it_can_enforce_all_but_a_kernel_and_a_link(box: Box) -> None:
    lacking = {Capability.KERNEL, Capability.NET_VETH, Capability.WAITS}
    assert Bubblewrap().capabilities() == set(Capability) - lacking
    with pytest.raises(LaunchError, match="bubblewrap cannot enforce a kernel of its own"):
        require(Bubblewrap(), frozenset({Capability.KERNEL}))
    with pytest.raises(LaunchError, match="a link to the gate"):
        box.shell("true", net="veth")


def test_S_12_no_privilege_and_none_to_be_had(box: Box) -> None:
    shown = box.shell("grep -E '^(Uid|Gid|Groups|Cap|NoNew|Seccomp:)' /proc/self/status").untrusted_stdout.decode()
    fields = dict(line.split(":", 1) for line in shown.splitlines())
    assert {value.strip() for name, value in fields.items() if name.startswith("Cap")} == {"0" * 16}
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65534"}
    assert fields["Groups"].split() == []


HELD = "import sys\nprint(1, flush=True)\nsys.stdin.read()"


@contextlib.contextmanager
def _running(box: Box, code: str, *, mark: str = "marks-the-guest", **limits: int) -> Iterator[None]:
    """Have a program of Python's in a sandbox, which has said something, until the block ends."""
    reading, writing = os.pipe()
    said = threading.Event()
    with open(reading, "rb", buffering=0) as stdin, ThreadPoolExecutor() as pool:
        done = pool.submit(box.run, "python3", "-c", code, mark, stdin=stdin, sink=lambda *_: said.set(), limits=limits)
        try:
            assert said.wait(20)
            yield
        finally:
            os.close(writing)
        result = done.result()
        assert result.exit_code == 0, result.untrusted_stderr


def _host_users(mark: str) -> set[tuple[int, ...]]:
    """Return the users, and groups, of all processes with a word in their command."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                lines = (folder / "status").read_text().splitlines()
                found |= {tuple(map(int, line.split()[1:])) for line in lines if line.startswith(("Uid:", "Gid:"))}
    return found


def test_on_the_host_each_sandbox_is_a_user_of_its_own_that_nobody_has(box: Box) -> None:
    users = []
    with _running(box, HELD, mark="marks-one"), _running(box, HELD, mark="marks-two"):
        for mark in ("marks-one", "marks-two"):
            # The launcher's own wrapper is there by name too, by then as bubblewrap's outer process: as that user too.
            (ids,) = _host_users(mark)
            assert len(set(ids)) == 1
            users.append(ids[0])
    assert len(set(users)) == 2
    for user in users:
        assert user >= 1_900_000_000
        with pytest.raises(KeyError):
            pwd.getpwuid(user)


def test_what_the_kernel_counts_by_user_is_no_other_sandboxs(box: Box) -> None:
    """Else one takes all inotify instances from all others, and from whatever else runs as nobody."""
    each = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    watch = "import ctypes\nhave, libc = 0, ctypes.CDLL(None)\nwhile libc.inotify_init1(0) >= 0: have += 1\n"
    limits = {"open_files": each + 64}
    taken: list[bytes] = []
    with _running(box, watch + HELD, **limits):
        box.python(watch + "print(have)", limits=limits, sink=lambda _, text: taken.append(text))
    assert int(b"".join(taken)) == each


def test_it_sees_no_path_of_the_hosts_but_its_launchs_own_folder(box: Box, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("")
    bind = Bind(source=tmp_path / "hosts", target="/etc/hosts")
    shown = box.shell("cat /proc/self/mountinfo", binds=(shim_bind(tmp_path), bind)).untrusted_stdout.decode()
    lines = [line for line in shown.splitlines() if str(tmp_path).partition("/pytest-")[2] not in line]
    assert len(lines) > 5
    for word in (str(box.root), str(box.root.parent), "tidegate", "tg-", "/place"):
        assert word not in "\n".join(lines)
    assert Path(shim.__file__).name not in {Path(line.split()[3]).name for line in lines}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are x86_64's")
def test_calls_that_a_command_has_no_use_for_are_refused(box: Box) -> None:
    assert box.python(REFUSED).untrusted_stdout.split() == [b"EPERM"] * 5 + [b"ENOSYS"] + [b"EPERM"] * 2


@pytest.mark.parametrize("family", ["AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_VSOCK"])
def test_sockets_are_unix_and_ip_alone(box: Box, family: str) -> None:
    result = box.python(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
    assert b"Address family not supported" in result.untrusted_stderr


def test_no_network_is_there(box: Box) -> None:
    result = box.python("import socket\nsocket.create_connection(('192.0.2.1', 80), 3)")
    assert b"Network is unreachable" in result.untrusted_stderr
    assert len(box.shell("cat /proc/net/dev").untrusted_stdout.splitlines()) == 3


def test_S_02_abstract_sockets_of_the_host_are_not_there(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0tidegate-test")
        listener.listen()
        result = box.python("import socket; socket.socket(socket.AF_UNIX).connect('\\0tidegate-test')")
    assert b"Connection refused" in result.untrusted_stderr


def test_the_root_is_read_only_and_keeps_nothing(box: Box) -> None:
    before = sorted(path.name for path in box.root.iterdir())
    result = box.shell("for f in /x /etc/x /dev/x /run/x /usr/bin/x; do echo 1 >$f; done; echo 1 >/work/x; ls /work")
    assert (result.untrusted_stdout, result.untrusted_stderr.count(b"Read-only")) == (b"x\n", 5)
    assert sorted(path.name for path in box.root.iterdir()) == before


def test_S_05_the_environment_is_the_jobs_alone(box: Box) -> None:
    shown = box.shell("env; echo; cat /proc/1/environ", environment=(("A", "b"),)).untrusted_stdout.decode()
    own, _, firsts = shown.partition("\n\n")
    assert sorted(own.split()) == ["A=b", "HOME=/work", "PATH=/usr/bin:/bin", "PWD=/work"]
    # bubblewrap's own, which the launcher gave it
    assert {line.partition("=")[0] for line in firsts.strip("\0").split("\0")} <= {"PATH", "PWD", "OLDPWD", "_"}


def test_S_07_no_descriptor_of_the_launchers_is_inside(box: Box) -> None:
    assert box.python("import os; print(len(os.listdir('/proc/self/fd')))").untrusted_stdout == b"4\n"


def test_processes_of_the_host_are_not_seen(box: Box) -> None:
    assert int(box.shell("ls -d /proc/[0-9]* | wc -l").untrusted_stdout) < 6


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_S_13_a_full_disk_is_full_at_the_limit_and_told(box: Box, folder: str) -> None:
    result = box.shell(
        f"dd if=/dev/zero of={folder}/fill bs=1M count=40 2>&1; stat -c %s {folder}/fill; exit 3",
        limits={"disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code) == (Outcome.DISK, 3)
    assert result.untrusted_stdout.decode().splitlines()[-1] == str(16 * MIB)


def test_S_14_a_memory_bomb_is_ended_and_told(box: Box) -> None:
    result = box.python(
        "x = []\nwhile True: x.append(b'x' * 10_000_000)", limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB}
    )
    assert (result.outcome, result.exit_code) == (Outcome.OOM, 137)


def test_S_15_a_process_too_many_is_refused(box: Box) -> None:
    result = box.python(
        "import os, time\nn = 0\ntry:\n    while True:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n        n += 1\n"
        "except OSError as e: print(n, e.errno)",
        limits={"pids": 20},
    )
    count, code = map(int, result.untrusted_stdout.split())
    assert (10 < count < 20, code) == (True, 11)


def test_S_15_one_sandboxs_processes_are_not_counted_in_anothers(box: Box) -> None:
    started = threading.Event()
    sleeping = "import os, time\nfor _ in range(12):\n    if os.fork() == 0: time.sleep(2); os._exit(0)\n" \
               "print(1, flush=True)\nos.wait()"  # fmt: skip
    sleeper = threading.Thread(
        target=lambda: box.python(sleeping, limits={"pids": 20}, sink=lambda _s, _t: started.set())
    )
    sleeper.start()
    assert started.wait(20)
    forks = "import os\nfor _ in range(12):\n    if os.fork() == 0: os._exit(0)\nprint('all')"
    assert box.python(forks, limits={"pids": 20}).untrusted_stdout == b"all\n"
    sleeper.join(20)


def test_S_15_a_fork_bomb_is_bounded_and_its_ending_is_its_own(box: Box) -> None:
    """RLIMIT_NPROC refuses before the group would, which has room for twice as many: `pids` is not the outcome here.

    A bomb that does not take no for an answer goes on until its time is over; one that does ends as it likes.
    """
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    deaf = box.python(bomb, limits={"pids": 32, "seconds": 2})
    assert (deaf.outcome, deaf.counters.pids_refused) == (Outcome.TIMEOUT, 0)
    told = box.shell(":(){ :|:& }; :; wait; exit 3", limits={"pids": 32, "seconds": 5})
    assert told.outcome in (Outcome.EXITED, Outcome.TIMEOUT)
    assert told.counters.pids_refused == 0


@pytest.mark.parametrize(
    "code",
    [
        "while :; do :; done",
        "trap '' TERM INT HUP; sleep 600",
        "setsid sleep 600 & sleep 600",
        "exec >&- 2>&-; sleep 600",
    ],
    ids=["loop", "deaf", "setsid", "silent"],
)
def test_the_time_ends_it_whatever_it_does(box: Box, code: str) -> None:
    result = box.shell(code, limits={"seconds": 0.7})
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.TIMEOUT, 124, None)
    assert result.seconds < 5


def test_what_outlives_the_command_ends_with_it(box: Box) -> None:
    result = box.shell("setsid sleep 600 & (sleep 600 &) ; exit 4")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 4)
    assert result.seconds < 5


def test_more_output_than_allowed_ends_it(box: Box) -> None:
    result = box.shell("yes", limits={"output_bytes": 10_000})
    assert (result.outcome, len(result.untrusted_stdout), result.truncated) == (Outcome.OUTPUT_LIMIT, 10_000, True)


@pytest.mark.parametrize(("code", "number"), [("kill -9 $$", 137), ("kill -11 $$", 139)], ids=["KILL", "SEGV"])
def test_a_signal_is_told_from_an_exit(box: Box, code: str, number: int) -> None:
    result = box.shell(code)
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, number)


def test_a_missing_binary_is_a_launch_error_that_names_it(box: Box) -> None:
    result = box.run("/no/such")
    assert (result.outcome, result.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert "/no/such" in result.detail


def test_a_root_that_is_not_there_is_refused_before_the_start(box: Box) -> None:
    with pytest.raises(LaunchError, match="no such root"):
        Box(box.root / "no", Bubblewrap()).shell("true")  # type: ignore[arg-type]


def test_what_is_left_in_work_can_be_collected(box: Box) -> None:
    left: list[str] = []
    box.shell("echo 1 >/work/a", collect=lambda work: left.extend(os.listdir(work)))
    assert left == ["a"]


def test_by_uds_the_shim_leads_to_the_gate_and_nothing_else_does(box: Box, tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    (tmp_path / "hosts").write_text(hosts_text(["api.test"]))
    code = "import socket\ns = socket.create_connection(('127.0.0.1', 8080), 5)\ns.sendall(b'hello')\nprint(s.recv(9))"
    with doorway(tmp_path / "door" / "http.sock", echo):
        result = box.run(
            *shimmed(("python3", "-c", code)), net="uds", door=tmp_path / "door",
            binds=(shim_bind(tmp_path), Bind(source=tmp_path / "hosts", target="/etc/hosts")),
        )  # fmt: skip
    assert (result.untrusted_stdout, result.exit_code) == (b"b'hello'\n", 0), result.untrusted_stderr
