"""runc as a boundary: a real runc, real namespaces, a real filter, real control groups. Not against an attacker.

Longer than a module should be, since all of it is asked of one boundary.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.box import Box, leftovers
from tests.lab.doomed import doomed, held, line, members, swept
from tests.lab.doors import within
from tests.lab.doorway import doorway, echo
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Cancelled, Capability, Ground, require
from tidegate_launcher.job import Bind
from tidegate_launcher.limits import cgroup
from tidegate_launcher.limits.cgroup import Cgroup
from tidegate_launcher.limits.hierarchy import CONTROLLERS, DEVICES, Hierarchy, Tree, find_hierarchy
from tidegate_launcher.net.hosts import hosts_text
from tidegate_launcher.net.landing import Landing
from tidegate_launcher.net.shimmed import shim_bind, shimmed
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.runc.boundary import Runc, find_runc
from tidegate_launcher.runc.driver import run_sandbox
from tidegate_launcher.unsafe import WARNING

WHY = why_no_gvisor() or (None if shutil.which("runc") else "runc is not here: `make setup` as root installs it")
pytestmark = pytest.mark.skipif(WHY is not None, reason=f"no runc: {WHY}")

MIB = 1024 * 1024
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are x86_64's")


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root, Runc(unsafe=True))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert leftovers() == []
    assert not [path for path in Path("/sys/fs/cgroup").glob("*/inside")]


def test_runs_a_command_with_streams_and_code_of_its_own(box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    result = box.shell("cat; echo err >&2; exit 7", stdin=io.BytesIO(b"in"))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 7)
    assert (result.untrusted_stdout, result.untrusted_stderr) == (b"in", b"err\n")
    assert result.counters.memory_peak_bytes > 0
    assert result.counters.cpu_seconds > 0
    assert capfd.readouterr().err == f"tidegate: boundary runc: {WARNING}\n"


def test_it_can_enforce_every_limit_and_way_out_but_is_no_kernel() -> None:
    assert Runc(unsafe=True).capabilities() == set(Capability) - {Capability.KERNEL, Capability.WAITS}
    with pytest.raises(LaunchError, match="runc cannot enforce a kernel of its own"):
        require(Runc(unsafe=True), frozenset({Capability.KERNEL}))


# ---- what it is, and what it may do -------------------------------------------------------------


def test_S_12_no_privilege_and_none_to_be_had(box: Box) -> None:
    shown = box.shell("grep -E '^(Uid|Gid|Groups|Cap|NoNew|Seccomp:)' /proc/self/status").untrusted_stdout.decode()
    fields = dict(line.split(":", 1) for line in shown.splitlines())
    assert {value.strip() for name, value in fields.items() if name.startswith("Cap")} == {"0" * 16}
    assert sum(name.startswith("Cap") for name in fields) == 5
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65534"}
    assert fields["Groups"].split() == []


def test_S_12_a_setuid_program_in_the_image_gains_nothing(root: Path) -> None:
    other = root.parent / "with-setuid-for-runc"
    subprocess.run(["cp", "-al", str(root), str(other)], check=True)
    try:
        program = other / "usr/bin/whoever"
        shutil.copy(root / "usr/bin/id", program)
        program.chmod(0o6755)
        found = Box(other, Runc(unsafe=True)).run("whoever").untrusted_stdout  # type: ignore[arg-type]
    finally:
        shutil.rmtree(other)
    assert found == b"uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)\n"


def test_S_20_on_the_host_it_is_nobody_and_root_inside_is_not_root(box: Box) -> None:
    seen: set[str] = set()

    def look(_stream: str, _text: bytes) -> None:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if words[:1] == [b"python3"] and b"marks-the-guest" in words:
                    seen.update((path / "uid_map").read_text().split("\n"))
                    seen.add((path / "status").read_text().split("Uid:")[1].split("\n")[0])

    box.run("python3", "-c", "print(1, flush=True); input()", "marks-the-guest", sink=look)
    shown = {tuple(line.split()) for line in seen if line}
    assert shown == {("65534",) * 4, ("0", "65533", "1"), ("65534", "65534", "1")}


def test_what_it_is_asked_to_own_as_root_is_not_roots_on_the_host(box: Box) -> None:
    owners: set[int] = set()
    box.shell("touch /work/x", collect=lambda work: owners.add(os.stat("x", dir_fd=work).st_uid))
    assert owners == {65534}


@x86_64
@pytest.mark.parametrize(
    "call",
    [
        pytest.param("272, 0x10000000", id="unshare"),
        pytest.param("308, 3, 0", id="setns"),
        pytest.param("165, 0, 0, 0, 0, 0", id="mount"),
        pytest.param("161, b'/'", id="chroot"),
        pytest.param("101, 0, 0, 0, 0", id="ptrace"),
        pytest.param("310, 1, 0, 0, 0, 0, 0", id="process_vm_readv"),
        pytest.param("425, 1, 0", id="io_uring_setup"),
        pytest.param("321, 0, 0, 0", id="bpf"),
        pytest.param("298, 0, 0, 0, 0, 0", id="perf_event_open"),
        pytest.param("323, 0", id="userfaultfd"),
        pytest.param("250, 0", id="keyctl"),
        pytest.param("304, 0, 0, 0", id="open_by_handle_at"),
        pytest.param("435, 0, 0", id="clone3"),
        pytest.param("56, 0x10000011, 0, 0, 0, 0", id="clone for a user namespace"),
        pytest.param("56, 0x40000011, 0, 0, 0, 0", id="clone for a network namespace"),
        pytest.param("135, 0x40000", id="personality without random addresses"),
        pytest.param("53, 10, 1, 0, 0", id="a pair of IP sockets"),
        pytest.param("510, 0", id="a call that no kernel has"),
    ],
)
def test_a_call_that_is_not_listed_fails_as_if_it_were_not_there(box: Box, call: str) -> None:
    result = box.python(
        f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall({call}), ctypes.get_errno())"
    )
    assert result.untrusted_stdout == b"-1 38\n"


@pytest.mark.parametrize("family", ["AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_VSOCK"])
def test_sockets_are_unix_and_ip_alone(box: Box, family: str) -> None:
    result = box.python(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
    assert b"Function not implemented" in result.untrusted_stderr


def test_threads_children_and_the_rest_of_a_library_still_work(box: Box) -> None:
    result = box.python(
        "import threading, subprocess, multiprocessing, tempfile, sqlite3, asyncio, socket, mmap, signal, ssl\n"
        "t = threading.Thread(target=print, args=('thread',), ); t.start(); t.join()\n"
        "print(subprocess.check_output(['sh', '-c', 'echo child | cat']).decode().strip(), flush=True)\n"
        "p = multiprocessing.get_context('fork').Pool(2); print(p.map(abs, [-1, -2])); p.terminate()\n"
        "with tempfile.NamedTemporaryFile() as f: f.write(b'x' * 9000); f.flush(); mmap.mmap(f.fileno(), 0).close()\n"
        "sqlite3.connect('/work/db').execute('create table t (a)').connection.commit()\n"
        "print(asyncio.run(asyncio.sleep(0.01, 'slept')))\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1)); signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "with socket.create_server(('127.0.0.1', 0)) as s: socket.create_connection(s.getsockname()).close()\n"
    )
    said = b"thread\nchild\n[1, 2]\nslept\nb'x'\n"
    assert (result.untrusted_stdout, result.untrusted_stderr, result.exit_code) == (said, b"", 0)


# ---- what it sees -------------------------------------------------------------------------------


def test_S_17_only_its_own_scratch_can_be_written(box: Box) -> None:
    before = subprocess.check_output(["find", str(box.root), "-newermt", "@0", "-printf", "%p %m %T@ %C@\n"])
    result = box.python(
        "for folder in ['/', '/usr/bin', '/etc', '/dev', '/var/tmp', '/run', '/sys', '/proc/sys/kernel', '/mnt',\n"
        "               '/work', '/tmp', '/dev/shm']:\n"
        "    try:\n"
        "        open(folder + '/mark', 'w').write('x'); print('yes', folder)\n"
        "    except OSError as e: pass\n",
        binds=(Bind(source=Path("/etc/hostname"), target="/a/b"),),
    )
    assert result.untrusted_stdout == b"yes /work\nyes /tmp\nyes /dev/shm\n"
    assert subprocess.check_output(["find", str(box.root), "-newermt", "@0", "-printf", "%p %m %T@ %C@\n"]) == before


def test_S_27_the_hosts_devices_and_switches_are_absent(box: Box) -> None:
    result = box.python(
        "import os\n"
        "for p in ['/proc/kcore', '/proc/timer_list', '/proc/keys', '/proc/1/root/etc/shadow', '/dev/mem',\n"
        "          '/dev/kvm', '/dev/kmsg', '/dev/fuse', '/dev/net/tun', '/sys/kernel', '/sys/fs/cgroup']:\n"
        "    try: found = open(p, 'rb').read(1)\n"
        "    except OSError: continue\n"
        "    if found: print(p)\n"
        "for p in ['/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/bus',\n"
        "          '/proc/irq/default_smp_affinity']:\n"
        "    if os.access(p, os.W_OK): print(p)\n"
        "print(*sorted(os.listdir('/dev')), os.listdir('/sys'))\n"
    )
    devices = "fd full null ptmx random shm stderr stdin stdout tty urandom zero"
    assert result.untrusted_stdout.decode() == f"{devices} []\n"


def test_S_05_the_environment_is_the_jobs_alone(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    code = "import os, json; print(json.dumps([dict(os.environ), open('/proc/1/environ').read()]))"
    own, first = json.loads(box.python(code, environment=(("A", "b"),)).untrusted_stdout)
    own.pop("LC_CTYPE", None)  # Python's own
    assert own == {"A": "b", "HOME": "/work", "PATH": "/usr/bin:/bin"}
    assert "SECRET_OF_OURS" not in first


def test_S_07_no_descriptor_of_ours_is_inside_nor_a_way_by_one(box: Box) -> None:
    reading, writing = os.pipe()
    try:
        os.set_inheritable(reading, True)
        result = box.python("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
        assert result.untrusted_stdout == b"[0, 1, 2, 3]\n"  # 3 is the listing's own
        leaked = box.run("true", cwd=f"/proc/self/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)
    assert leaked.outcome is Outcome.LAUNCH_ERROR


@pytest.mark.parametrize("number", range(3, 14))
def test_S_07_no_descriptor_of_runcs_own_leads_to_the_host_as_its_working_folder(box: Box, number: int) -> None:
    """CVE-2024-21626: a folder of the host's that runc itself had open."""
    result = box.run("ls", "-a", cwd=f"/proc/self/fd/{number}")
    assert (result.outcome, result.untrusted_stdout) == (Outcome.LAUNCH_ERROR, b"")


def test_the_hosts_processes_names_and_groups_are_not_seen(box: Box) -> None:
    shown = box.shell("ls -d /proc/[0-9]* | wc -l; hostname; sort -u -t: -k3 /proc/self/cgroup | cut -d: -f3 | sort -u")
    count, name, *groups = shown.untrusted_stdout.decode().split()
    assert int(count) < 8
    assert (name, groups) == ("sandbox", ["/"])


def test_a_bind_is_seen_and_not_written_nor_run(box: Box, tmp_path: Path) -> None:
    script = tmp_path / "folder" / "script"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o777)
    script.parent.chmod(0o777)
    result = box.shell(
        "cat /opt/in/script; echo x >>/opt/in/script || echo no; touch /opt/in/new || echo no; "
        "/opt/in/script || echo no",
        binds=(Bind(source=script.parent, target="/opt/in"),),
    )
    assert result.untrusted_stdout == b"#!/bin/sh\necho ran\nno\nno\nno\n"
    assert [path.name for path in script.parent.iterdir()] == ["script"]


def test_S_01_a_socket_in_a_bind_refuses_the_launch(box: Box, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "host.sock"))
        with pytest.raises(LaunchError, match="socket"):
            box.run("true", binds=(Bind(source=tmp_path, target="/in"),))


# ---- its ways out -------------------------------------------------------------------------------


def test_without_a_network_there_is_its_own_loopback_alone(box: Box) -> None:
    result = box.python(
        "import socket\n"
        "print([line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]])\n"
        "for host in ['1.1.1.1', '127.0.0.1', '169.254.169.254', '10.0.0.1']:\n"
        "    s = socket.socket(); s.settimeout(2)\n"
        "    print(s.connect_ex((host, 80)))\n"
    )
    names, *codes = result.untrusted_stdout.decode().splitlines()
    assert "'lo'" in names
    assert "eth" not in names
    assert [int(code) for code in codes] == [101, 111, 101, 101]


def test_S_02_abstract_sockets_of_the_host_are_not_there(box: Box) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0tidegate-test-runc")
        listener.listen()
        result = box.python("import socket; socket.socket(socket.AF_UNIX).connect('\\0tidegate-test-runc')")
    assert b"Connection refused" in result.untrusted_stderr


def test_S_24_by_uds_the_shim_leads_to_the_gate_and_nothing_else_does(box: Box, tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    (tmp_path / "hosts").write_text(hosts_text(["api.test"]))
    code = "import socket\ns = socket.create_connection(('127.0.0.1', 8080), 5)\ns.sendall(b'hello')\nprint(s.recv(9))"
    with doorway(tmp_path / "door" / "http.sock", echo):
        result = box.run(
            *shimmed(("python3", "-c", code)), net="uds", door=tmp_path / "door",
            binds=(shim_bind(tmp_path), Bind(source=tmp_path / "hosts", target="/etc/hosts")),
        )  # fmt: skip
    assert (result.untrusted_stdout, result.exit_code) == (b"b'hello'\n", 0), result.untrusted_stderr


def test_S_04_by_veth_the_landing_is_its_neighbour_and_what_is_no_tcp_is_dropped(box: Box) -> None:
    code = (
        "import socket\n"
        "s = socket.create_connection(('10.77.0.1', 8080), 5); print('connected')\n"
        "for _ in range(5): socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('203.0.113.9', 443))\n"
        "print([line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]].count('eth0'))"
    )
    with Landing.make() as landing:
        result = box.python(code, net="veth", namespace=landing.sandbox.path)
        dropped = landing.dropped()
    assert (result.untrusted_stdout, result.untrusted_stderr) == (b"connected\n1\n", b"")
    assert dropped["everything else"] == 5


# ---- what it may use ----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_S_13_a_full_disk_is_full_at_the_limit_and_told(box: Box, folder: str) -> None:
    result = box.shell(
        f"dd if=/dev/zero of={folder}/fill bs=1M count=40 2>&1; stat -c %s {folder}/fill; exit 3",
        limits={"disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code) == (Outcome.DISK, 3)
    assert result.untrusted_stdout.decode().splitlines()[-1] == str(16 * MIB)


@pytest.mark.parametrize("children", [0, 3])
def test_S_14_a_memory_bomb_takes_the_whole_sandbox_and_is_told(box: Box, children: int) -> None:
    result = box.python(
        f"import os\nfor _ in range({children}):\n    if os.fork() == 0: break\nx = []\n"
        "while True: x.append(b'x' * 10_000_000)",
        limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code) == (Outcome.OOM, 137)
    assert result.counters.oom_kills >= 1
    assert result.counters.memory_peak_bytes <= (128 + 32 + 1) * MIB


def test_S_14_a_child_that_is_killed_for_memory_is_never_a_success(box: Box) -> None:
    result = box.python(
        "import os\npid = os.fork()\nif pid == 0:\n    x = []\n    while True: x.append(b'x' * 10_000_000)\n"
        "os.waitpid(pid, 0); os._exit(0)",
        limits={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    )
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.OOM, 137, None)


def test_S_14_memory_within_the_limit_is_there(box: Box) -> None:
    result = box.python("x = b'x' * (100 << 20); print(len(x))", limits={"memory_bytes": 128 * MIB})
    assert result.outcome is Outcome.EXITED, result


def test_S_15_a_process_too_many_is_refused(box: Box) -> None:
    result = box.python(
        "import os, time\nn = 0\ntry:\n    while True:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n        n += 1\n"
        "except OSError as e: print(n, e.errno)",
        limits={"pids": 20},
    )
    assert result.untrusted_stdout == b"19 11\n"


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


def test_S_15_a_fork_bomb_is_bounded(box: Box) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert box.python(bomb, limits={"pids": 32, "seconds": 2}).outcome in (Outcome.TIMEOUT, Outcome.PIDS)


def test_a_part_of_a_processor_is_a_part(box: Box) -> None:
    result = box.shell("while :; do :; done", limits={"cpus": 0.2, "seconds": 2})
    assert result.outcome is Outcome.TIMEOUT
    assert result.counters.cpu_seconds < 0.8


@pytest.mark.parametrize(("code", "said"), [("open('f', 'w').truncate(2 << 20)", "File too large"),
                                            ("f = [open('/dev/null') for _ in range(99)]", "Too many open files")],
                         ids=["size", "number"])  # fmt: skip
def test_files_have_a_size_and_a_number(box: Box, code: str, said: str) -> None:
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {code}"
    assert said.encode() in box.python(code, limits={"file_bytes": MIB, "open_files": 32}).untrusted_stderr


def test_S_16_the_limits_are_those_of_the_group_that_all_of_it_is_in(box: Box) -> None:
    """By the kernel's word, of the guest itself: its group, and the limit of the one above it."""
    seen: list[tuple[str, str]] = []
    tree = find_hierarchy().trees["pids"]

    def look(_stream: str, _text: bytes) -> None:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"marks-the-limits" in (path / "cmdline").read_bytes().split(b"\0"):
                    lines = [line.split(":", 2) for line in (path / "cgroup").read_text().splitlines()]
                    group = next(where for _, names, where in lines if names in ("pids", ""))
                    above = tree.point / group.removeprefix(tree.root.rstrip("/")).lstrip("/")
                    seen.append((above.name, (above.parent / "pids.max").read_text().strip()))

    box.run("sh", "-c", "echo up; sleep 0.3", "marks-the-limits", sink=look, limits={"pids": 30})
    assert ("inside", "188") in seen


def test_S_16_in_a_tree_of_v2_too_the_group_that_runc_makes_lies_in_ours(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real tree, without limits: on a machine with v1 its controllers are not there to be had."""
    monkeypatch.setattr(cgroup, "_settings", lambda *_: ())
    monkeypatch.setattr(cgroup, "_enable", lambda _: None)
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(tmp_path)], check=True, timeout=10)
    seen: list[str] = []

    def look(_stream: str, _text: bytes) -> None:
        seen.extend(str(door.parent.relative_to(ours)) for door in ours.glob("*/**/cgroup.procs") if door.read_text())

    try:
        hierarchy = Hierarchy(version=2, trees=dict.fromkeys(CONTROLLERS, Tree(tmp_path)))
        ours = tmp_path / cgroup.PARENT
        with box.scratch() as scratch:
            job = box.job("sh", "-c", "setsid sleep 600 & echo up; exec sleep 600", limits={"seconds": 1})
            program, _ = find_runc()
            result = run_sandbox(program, job, Ground(scratch=scratch), hierarchy=hierarchy, sink=look)
        assert not [path for path in tmp_path.glob("**/*") if f"-{os.getpid()}-" in path.name]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=10)
    assert result.outcome is Outcome.TIMEOUT
    assert {name.partition("/")[2] for name in seen if f"-{os.getpid()}-" in name} == {"", "inside"}


def test_S_16_a_sandbox_outside_of_its_group_is_not_let_go(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroup, "doors", lambda self: ())
    told: list[bytes] = []
    with pytest.raises(LaunchError, match="not in its memory group"):
        box.shell("echo up", sink=lambda _, text: told.append(text))
    assert told == []


# ---- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "while :; do :; done",
        "trap '' TERM INT HUP; sleep 600",
        "setsid sleep 600 & sleep 600",
        "(setsid sh -c 'sleep 600 & sleep 600' &) ; sleep 600",
        "exec >&- 2>&-; sleep 600",
    ],
    ids=["loop", "deaf", "setsid", "double-fork", "silent"],
)
def test_S_18_the_time_ends_it_whatever_it_does(box: Box, code: str) -> None:
    result = box.shell(code, limits={"seconds": 0.7})
    assert (result.outcome, result.exit_code, result.untrusted_exit_code) == (Outcome.TIMEOUT, 124, None)
    assert result.seconds < 5


def test_what_outlives_the_command_ends_with_it(box: Box) -> None:
    result = box.shell("setsid sleep 600 & (sleep 600 &) ; exit 4")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 4)
    assert result.seconds < 5


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_S_21_more_output_than_allowed_ends_it(box: Box, stream: str) -> None:
    result = box.shell("exec yes" + (" >&2" if stream == "stderr" else ""), limits={"output_bytes": 10_000})
    kept = result.untrusted_stdout if stream == "stdout" else result.untrusted_stderr
    assert (result.outcome, len(kept), result.truncated) == (Outcome.OUTPUT_LIMIT, 10_000, True)


def test_output_of_a_reader_that_takes_its_time_is_whole(box: Box) -> None:
    result = box.python("print('x' * 999_999)", limits={"output_bytes": 1_000_000})
    assert (result.outcome, len(result.untrusted_stdout)) == (Outcome.EXITED, 1_000_000)


@pytest.mark.parametrize(("number", "code"), [(9, 137), (11, 139)], ids=["KILL", "SEGV"])
def test_a_signal_is_told_from_an_exit(box: Box, number: int, code: int) -> None:
    result = box.python(f"import os\nif os.fork() == 0: os._exit(0)\nos.wait(); os.kill(os.getpid(), {number})")
    # To the first process of a PID namespace its own signals mean nothing: what came out is Python's end.
    assert result.outcome is Outcome.EXITED
    inner = box.shell(f"sh -c 'kill -{number} $$'; exit $?")
    assert (inner.outcome, inner.exit_code) == (Outcome.SIGNALED, code)


def test_a_missing_binary_is_a_launch_error_that_names_it(box: Box) -> None:
    result = box.run("/no/such")
    assert (result.outcome, result.exit_code) == (Outcome.LAUNCH_ERROR, 125)
    assert "/no/such" in result.detail


def test_a_command_that_imitates_a_launch_error_is_none(box: Box) -> None:
    result = box.shell('echo \'{"level":"error","msg":"runc run failed"}\' >&2; exit 1')
    assert (result.outcome, result.untrusted_exit_code, result.detail) == (Outcome.EXITED, 1, "")


@pytest.mark.parametrize(
    "script",
    ["exec sleep 1000", "trap '' TERM INT HUP; while :; do sleep 1000; done", "setsid sleep 1000 & sleep 1000"],
    ids=["sleeps", "deaf", "with-children"],
)
def test_a_runc_that_hangs_for_good_does_not_hang_us(box: Box, tmp_path: Path, script: str) -> None:
    result = _by_a_stub(box, tmp_path, script)
    assert result.outcome is Outcome.TIMEOUT
    assert result.seconds < 8


@pytest.mark.parametrize(("code", "outcome"), [(0, Outcome.EXITED), (1, Outcome.LAUNCH_ERROR)])
def test_what_runc_says_beside_an_ending_that_is_the_commands_own_is_no_failure(
    box: Box, tmp_path: Path, code: int, outcome: Outcome
) -> None:
    said = """for a; do case $a in --log=*) echo '{"level":"error","msg":"no"}' >${a#*=};; esac; done"""
    result = _by_a_stub(box, tmp_path, f"{said}; exit {code}")
    assert (result.outcome, result.detail) == (outcome, "no" if code else "")


def _by_a_stub(box: Box, folder: Path, script: str) -> Result:
    """Run with a runc of the test's own."""
    program = folder / "runc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with box.scratch() as scratch:
        job, hierarchy = box.job("true", limits={"seconds": 1}), find_hierarchy(also=(DEVICES,))
        result = run_sandbox(program, job, Ground(scratch=scratch), hierarchy=hierarchy)
        assert list(scratch.iterdir()) == []
    return result


def test_a_launch_that_is_wanted_no_more_is_ended_with_all_of_it(box: Box) -> None:
    cancel = os.eventfd(0)
    try:
        with pytest.raises(Cancelled):  # once it runs: it says so, and that is the sign to end it
            box.shell("setsid sleep 60 & echo up; sleep 60", sink=lambda *_: os.eventfd_write(cancel, 1), cancel=cancel)
    finally:
        os.close(cancel)


def test_what_is_left_in_work_can_be_collected_also_of_a_killed_one(box: Box) -> None:
    left: list[str] = []
    box.shell("echo 1 >/work/a; echo 2 >/tmp/b", collect=lambda work: left.extend(os.listdir(work)))
    box.shell("echo 1 >c; sleep 60", limits={"seconds": 1}, collect=lambda work: left.extend(os.listdir(work)))
    assert left == ["a", "c"]


def test_a_root_that_is_not_there_is_refused_before_the_start(box: Box) -> None:
    with pytest.raises(LaunchError, match="no such root"):
        Box(box.root / "no", Runc(unsafe=True)).shell("true")  # type: ignore[arg-type]


def test_launches_of_every_ending_leave_this_process_as_it_was(box: Box) -> None:
    box.run("true")
    before = held()
    for argv, limits in ((["true"], {}), (["none"], {}), (["sleep", "9"], {"seconds": 0.5}), (["yes"], {})):
        box.run(*argv, limits=limits, stdin=io.BytesIO(b"x"))
    assert held() == before


def test_S_19_a_launcher_that_is_killed_takes_its_sandbox_with_it(box: Box) -> None:
    with doomed(box.root, "runc") as launcher:
        assert line(launcher) == b"up\n"
        assert members(launcher.pid) != []
        launcher.send_signal(signal.SIGKILL)
        launcher.wait(10)
        # The kernel kills, by the guard; what is left are empty groups, which the next launcher takes away.
        assert within(10, lambda: members(launcher.pid) == [])
        assert within(10, swept(launcher.pid)), leftovers(launcher.pid)


@pytest.mark.parametrize("milliseconds", [0, 3, 10, 25, 40, 60, 80, 120])
def test_S_19_a_launcher_that_is_killed_at_any_point_leaves_nothing_after_a_sweep(box: Box, milliseconds: int) -> None:
    with doomed(box.root, "runc") as launcher:
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(milliseconds / 1000)
        launcher.kill()
        launcher.wait(10)
        assert within(10, swept(launcher.pid)), leftovers(launcher.pid)
