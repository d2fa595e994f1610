"""What code in a sandbox of gVisor is, sees, and can do: real runsc, real cgroups.

Longer than a module should be, since all of it is asked of one boundary. `test_gvisor_limits` has what it may use,
`test_gvisor_ends` how it ends.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.box import Box
from tests.lab.roots import why_no_gvisor
from tidegate.errors import LaunchError
from tidegate_launcher.boundary import Capability, require
from tidegate_launcher.job import Bind
from tidegate_launcher.result import Outcome

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")


@pytest.fixture(scope="module")
def box(root: Path) -> Box:
    return Box(root)


def test_runs_a_command_and_keeps_its_streams_apart(box: Box) -> None:
    result = box.shell("echo out; echo err >&2")
    assert result.outcome is Outcome.EXITED
    assert (result.untrusted_exit_code, result.exit_code) == (0, 0)
    assert (result.untrusted_stdout, result.untrusted_stderr) == (b"out\n", b"err\n")
    assert not result.truncated
    assert result.counters.cpu_seconds > 0
    assert result.counters.memory_peak_bytes > 0


def test_runs_python(box: Box) -> None:
    assert box.python("import sys; print(sys.version_info >= (3, 11))").untrusted_stdout == b"True\n"


def test_its_exit_code_is_the_commands(box: Box) -> None:
    result = box.shell("exit 7")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 7)


def test_a_signal_is_told_from_an_exit(box: Box) -> None:
    result = box.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 139)


def test_a_missing_binary_is_a_launch_error_that_names_it(box: Box) -> None:
    result = box.run("no-such-program")
    assert result.outcome is Outcome.LAUNCH_ERROR
    assert result.exit_code == 125
    assert "no-such-program" in result.detail


def test_a_command_that_imitates_a_launch_error_is_none(box: Box) -> None:
    result = box.shell("echo 'running container: starting container: no such file' >&2; exit 128")
    assert (result.outcome, result.untrusted_exit_code, result.detail) == (Outcome.EXITED, 128, "")


def test_enforces_all_that_can_be_asked(box: Box) -> None:
    require(box.boundary, frozenset(Capability))


class TestStandardInput:
    def test_is_given_whole_and_ends(self, box: Box) -> None:
        text = b"0123456789abcdef" * 20000
        result = box.run("sha256sum", stdin=io.BytesIO(text))
        assert result.untrusted_stdout.split()[0].decode() == hashlib.sha256(text).hexdigest()

    def test_of_a_file_is_no_descriptor_of_the_hosts(self, box: Box, tmp_path: Path) -> None:
        file = tmp_path / "given"
        file.write_bytes(b"given")
        with file.open("r+b") as opened:
            result = box.python(
                "import os, sys\nprint(sys.stdin.read(), sys.stdin.seekable())\n"
                "try: os.write(0, b'x')\nexcept OSError as e: print(e.errno)",
                stdin=opened,
            )
        assert result.untrusted_stdout == b"given False\n9\n"
        assert file.read_bytes() == b"given"

    def test_without_it_there_is_nothing_to_read(self, box: Box) -> None:
        assert box.run("cat").outcome is Outcome.EXITED

    def test_that_nobody_reads_holds_nothing_up(self, box: Box) -> None:
        assert box.shell("exec <&-; echo on", stdin=io.BytesIO(b"x" * 10_000_000)).untrusted_stdout == b"on\n"


def test_output_is_handed_on_as_it_comes(box: Box) -> None:
    pieces: list[tuple[str, bytes]] = []
    box.shell("echo one; sleep 0.2; echo two; echo three >&2", sink=lambda name, data: pieces.append((name, data)))
    assert b"".join(data for name, data in pieces if name == "stdout") == b"one\ntwo\n"
    assert ("stdout", b"one\n") in pieces
    assert ("stderr", b"three\n") in pieces


def test_S_22_escape_sequences_are_kept_as_bytes(box: Box) -> None:
    hostile = b"\x1b]52;c;aGk=\x07\x1b]8;;http://x\x1b\\\x9b2J\x1b]0;title\x00\xff\xfe"
    result = box.python(f"import sys; sys.stdout.buffer.write({hostile!r})")
    assert result.untrusted_stdout == hostile


class TestEnvironment:
    def test_S_05_holds_what_was_given_and_nothing_of_ours(self, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-launcher")
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/of-the-launcher")
        result = box.python(
            "import os, json; print(json.dumps([dict(os.environ), open('/proc/1/environ').read()]))",
            environment=(("GIVEN", "this"),),
        )
        own, first = json.loads(result.untrusted_stdout)
        own.pop("LC_CTYPE", None)  # Python's own
        assert own == {"PATH": "/usr/bin:/bin", "GIVEN": "this", "HOME": "/work"}
        assert "of-the-launcher" not in first

    def test_may_be_huge(self, box: Box) -> None:
        big = tuple((f"V{number}", "x" * 100_000) for number in range(9))
        result = box.python(
            "import os; print(sum(len(v) for k, v in os.environ.items() if k[0] == 'V'))", environment=big
        )
        assert result.untrusted_stdout == b"900000\n"

    def test_that_is_no_text_is_refused(self, box: Box) -> None:
        with pytest.raises(LaunchError, match="UTF-8"):
            box.run("true", environment=(("A", os.fsdecode(b"\xff")),))


class TestPrivileges:
    def test_S_12_has_no_capabilities_and_cannot_gain_any(self, box: Box) -> None:
        result = box.shell(
            "grep Cap /proc/self/status; "
            "python3 -c 'import ctypes; print(\"nnp\", ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))'"
        )
        *capabilities, last = result.untrusted_stdout.decode().splitlines()
        assert [line.split()[1] for line in capabilities] == ["0" * 16] * 4
        assert last == "nnp 1"

    def test_S_12_a_setuid_program_in_the_image_gains_nothing(self, root: Path) -> None:
        other = root.parent / "with-setuid"
        subprocess.run(["cp", "-al", str(root), str(other)], check=True)
        try:
            program = other / "usr/bin/whoever"
            shutil.copy(root / "usr/bin/id", program)
            program.chmod(0o6755)
            found = Box(other).run("whoever").untrusted_stdout.decode()
        finally:
            shutil.rmtree(other)
        assert "uid=65534" in found
        assert "euid" not in found
        assert "egid" not in found

    def test_S_20_is_nobody_in_no_other_group(self, box: Box) -> None:
        result = box.shell("id; grep -E 'Uid|Gid|Groups' /proc/self/status")
        identity, uid, gid, groups = result.untrusted_stdout.decode().splitlines()
        assert identity == "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)"
        assert uid.split()[1:] == gid.split()[1:] == ["65534"] * 4
        assert groups.split()[1:] == []

    @pytest.mark.parametrize(
        "call",
        [
            pytest.param("libc.unshare(0x10000000)", id="unshare"),
            pytest.param("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)", id="mount"),
            pytest.param("libc.chroot(b'/')", id="chroot"),
            pytest.param("libc.ptrace(0, 0, 0, 0)", id="ptrace"),
            pytest.param("libc.syscall(425, 1, ctypes.create_string_buffer(200))", id="io_uring_setup"),
            pytest.param("libc.syscall(56, 0x10000011, 0, 0, 0, 0)", id="clone for a user namespace"),
        ],
    )
    def test_a_filtered_call_is_refused(self, box: Box, call: str) -> None:
        result = box.python(
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            f"print({call}, ctypes.get_errno(), open('/proc/self/status').read().split('Seccomp:')[1].split()[0])"
        )
        assert result.untrusted_stdout == b"-1 1 2\n"

    def test_threads_and_children_still_start(self, box: Box) -> None:
        result = box.python(
            "import threading, subprocess, multiprocessing\n"
            "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
            "print(subprocess.check_output(['echo', 'child']).decode().strip())\n"
            "p = multiprocessing.get_context('fork').Pool(2); print(p.map(abs, [-1, -2])); p.terminate()"
        )
        assert result.untrusted_stdout == b"thread\nchild\n[1, 2]\n"


class TestFiles:
    def test_S_17_only_its_own_scratch_can_be_written(self, box: Box) -> None:
        result = box.python(
            "import os\n"
            "for folder in ['/', '/usr/bin', '/etc', '/dev', '/var/tmp', '/run', '/sys', '/proc/sys/kernel',\n"
            "               '/work', '/tmp', '/dev/shm']:\n"
            "    try:\n"
            "        open(folder + '/mark', 'w').write('x'); print('yes', folder)\n"
            "    except OSError as e: pass\n"
        )
        assert result.untrusted_stdout == b"yes /work\nyes /tmp\nyes /dev/shm\n"

    def test_S_17_nothing_in_the_shared_root_changes(self, box: Box) -> None:
        before = subprocess.check_output(["find", str(box.root), "-newermt", "@0", "-printf", "%p %m %T@ %C@\n"])
        box.shell("touch /mark /etc/mark; chmod 777 /; echo x >> /etc/passwd", binds=(_bind("/etc/hostname", "/a/b"),))
        assert (
            subprocess.check_output(["find", str(box.root), "-newermt", "@0", "-printf", "%p %m %T@ %C@\n"]) == before
        )

    def test_starts_in_its_working_folder_and_runs_programs_from_it(self, box: Box) -> None:
        result = box.shell(
            "pwd; cp /bin/echo ./own; ./own ran; printf '#!/bin/sh\\necho script\\n' >s; chmod +x s; ./s"
        )
        assert result.untrusted_stdout == b"/work\nran\nscript\n"

    def test_S_07_has_no_descriptor_of_ours_nor_a_way_by_one(self, box: Box) -> None:
        reading, writing = os.pipe()
        os.set_inheritable(reading, True)
        os.set_inheritable(writing, True)
        try:
            result = box.python("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
            assert result.untrusted_stdout == b"[0, 1, 2, 3]\n"  # 3 is the listing's own
            leaked = box.run("true", cwd=f"/proc/self/fd/{reading}")
        finally:
            os.close(reading)
            os.close(writing)
        assert leaked.outcome is Outcome.LAUNCH_ERROR

    def test_S_27_the_hosts_devices_and_switches_are_absent(self, box: Box) -> None:
        result = box.python(
            "import os\n"
            "for p in ['/proc/sysrq-trigger', '/proc/kcore', '/proc/kallsyms', '/dev/kvm', '/dev/mem', '/dev/dri',\n"
            "          '/dev/nvidia0', '/dev/vsock', '/sys/kernel/debug', '/sys/fs/cgroup/memory', '/sys/firmware']:\n"
            "    if os.path.exists(p) and os.access(p, os.W_OK | os.R_OK): print(p)\n"
        )
        assert result.untrusted_stdout == b""

    def test_S_06_no_path_of_ours_shows_in_its_mounts(self, box: Box, tmp_path: Path) -> None:
        (tmp_path / "in").write_text("x")
        bound = Bind(source=tmp_path / "in", target="/work/in")
        shown = box.shell(
            "cat /proc/mounts /proc/self/mountinfo /proc/cmdline; hostname", binds=(bound,)
        ).untrusted_stdout
        for ours in (b"tg-scratch", b"tg-root", str(tmp_path).encode()):
            assert ours not in shown
        assert shown.endswith(b"\nsandbox\n")

    def test_a_bind_is_seen_and_not_written_nor_run(self, box: Box, tmp_path: Path) -> None:
        script = tmp_path / "folder" / "script"
        script.parent.mkdir()
        script.write_text("#!/bin/sh\necho ran\n")
        script.chmod(0o777)
        script.parent.chmod(0o777)
        result = box.shell(
            "cat /work/in/script; echo x >>/work/in/script || echo no; touch /work/in/new || echo no; "
            "/work/in/script || echo no",
            binds=(Bind(source=script.parent, target="/work/in"),),
        )
        assert result.untrusted_stdout == b"#!/bin/sh\necho ran\nno\nno\nno\n"
        assert [path.name for path in script.parent.iterdir()] == ["script"]

    def test_what_it_left_can_be_collected_before_it_is_gone(self, box: Box) -> None:
        found: dict[str, str] = {}

        def collect(work: int) -> None:
            for name in os.listdir(work):
                with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=work)) as file:
                    found[name] = file.read()

        box.shell("echo result >out; echo other >/tmp/not", collect=collect)
        assert found == {"out": "result\n"}

    def test_what_a_killed_one_left_can_be_collected(self, box: Box) -> None:
        found: list[str] = []
        box.shell("echo x >out; sleep 60", limits={"seconds": 1}, collect=lambda work: found.extend(os.listdir(work)))
        assert found == ["out"]


class TestNetwork:
    def test_with_none_there_is_only_its_own_loopback(self, box: Box) -> None:
        result = box.python(
            "import socket\n"
            "print([name for _, name in socket.if_nameindex()])\n"
            "for host in ['1.1.1.1', '127.0.0.1', '169.254.169.254', '10.0.0.1']:\n"
            "    s = socket.socket(); s.settimeout(2)\n"
            "    print(s.connect_ex((host, 80)))\n"
        )
        names, *codes = result.untrusted_stdout.decode().splitlines()
        assert names == "['lo']"
        assert all(int(code) in (101, 111, 113) for code in codes), codes

    def test_S_02_abstract_sockets_of_the_host_are_not_there(self, box: Box) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(b"\0tidegate-test-abstract")
            listener.listen()
            result = box.python(
                "import socket; s = socket.socket(socket.AF_UNIX); print(s.connect_ex(b'\\0tidegate-test-abstract'))"
            )
        assert result.untrusted_stdout == b"111\n"

    def test_raw_and_packet_sockets_are_refused(self, box: Box) -> None:
        result = box.python(
            "import socket\n"
            "for f, t, p in [(2, 3, 1), (17, 3, 3), (40, 1, 0)]:\n"
            "    try: socket.socket(f, t, p); print('made')\n"
            "    except OSError as e: print('no')\n"
        )
        assert result.untrusted_stdout == b"no\nno\nno\n"

    def test_S_24_by_uds_the_gates_socket_alone_is_there(self, box: Box, tmp_path: Path) -> None:
        door = tmp_path / "door"
        door.mkdir(0o755)
        tmp_path.chmod(0o755)
        with _listening(door / "gate.sock"), _listening(tmp_path / "other.sock"):
            result = box.python(
                "import socket\n"
                "s = socket.socket(socket.AF_UNIX); s.connect('/run/tidegate/gate.sock'); print(s.recv(5))\n"
                "try: socket.socket(socket.AF_UNIX).bind('/run/tidegate/own.sock'); print('bound')\n"
                "except OSError as e: print('no')\n",
                net="uds",
                door=door,
            )
        assert result.untrusted_stdout == b"b'hello'\nno\n", result.untrusted_stderr
        assert not (door / "own.sock").exists()

    def test_S_01_a_socket_in_a_bind_refuses_the_launch(self, box: Box, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        with _listening(tmp_path / "deep" / "host.sock"), pytest.raises(LaunchError, match="socket"):
            box.run("true", binds=(Bind(source=tmp_path, target="/in"),))

    def test_by_veth_the_other_end_is_its_neighbour(self, box: Box) -> None:
        with _link() as space:
            result = box.python(
                "import socket\n"
                "s = socket.create_connection(('10.77.0.1', 8080), 5); print(s.recv(5))\n"
                "u = socket.socket(); u.settimeout(2); print(u.connect_ex(('198.51.100.1', 80)) in (101, 113))\n",
                net="veth",
                namespace=space,
            )
        assert result.untrusted_stdout == b"b'hello'\nTrue\n", (result.untrusted_stderr, result.detail)


def _bind(source: str, target: str) -> Bind:
    return Bind(source=Path(source), target=target)


@contextlib.contextmanager
def _greeting(make: str, *prefix: str) -> Iterator[None]:
    """Have a process of the host's listen and say hello to whoever comes."""
    code = (
        f"import os, socket\n{make}\ns.listen(); print('up', flush=True)\nwhile True: s.accept()[0].sendall(b'hello')"
    )
    with subprocess.Popen([*prefix, sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield
        finally:
            process.kill()


def _listening(path: Path) -> contextlib.AbstractContextManager[None]:
    return _greeting(f"s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); os.chmod({str(path)!r}, 0o666)")


@contextlib.contextmanager
def _link() -> Iterator[Path]:
    """Yield a namespace whose only neighbour says hello on 10.77.0.1:8080."""
    inner, outer = (f"tgbox-{os.getpid()}-{end}" for end in ("in", "out"))
    try:
        for name in (inner, outer):
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
        _ip(inner, "link", "add", "eth0", "type", "veth", "peer", "name", "peer0", "netns", outer)
        for name, device, address in ((inner, "eth0", "10.77.0.2/30"), (outer, "peer0", "10.77.0.1/30")):
            _ip(name, "address", "add", address, "dev", device)
            _ip(name, "link", "set", device, "up")
        with _greeting("s = socket.socket(); s.bind(('10.77.0.1', 8080))", "ip", "netns", "exec", outer):
            yield Path("/run/netns") / inner
    finally:
        for name in (inner, outer):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=10)


def _ip(space: str, *arguments: str) -> None:
    subprocess.run(["ip", "-n", space, *arguments], check=True, timeout=10)
