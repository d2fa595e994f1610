"""Each thing that a worker gives up is tried again, in a forked child that gave it up."""

import ctypes
import errno
import os
import pickle
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate import landlock, seccomp
from tidegate.errors import LaunchError
from tidegate.runtime.lockdown import Confinement, confine, interpreter_paths
from tidegate.syscall import prctl, syscall

MACHINE = os.uname().machine
COLUMN = {"x86_64": 0, "aarch64": 1}[MACHINE]


def in_child[T](work: Callable[[], T]) -> T:
    """Run in a forked child and return its result; a signal or an exception of the child's fails the test."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer: tuple[bool, object] = (True, work())
        except BaseException as error:  # all of it goes to the parent
            answer = (False, repr(error))
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    done, result = pickle.loads(data)
    assert done, result
    return result


def error_of(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def confined[T](work: Callable[[], T], **paths: list[Path]) -> T:
    def child() -> T:
        confine(**paths)
        return work()

    return in_child(child)


@pytest.mark.parametrize("name", [name for name, numbers in seccomp.REFUSED.items() if numbers[COLUMN] is not None])
def test_refuses_the_call(name: str) -> None:
    number = seccomp.REFUSED[name][COLUMN]
    # Arguments of all ones are valid for none of these: without the filter the error would be another one.
    assert confined(lambda: error_of(lambda: syscall(number or 0, -1, -1, -1, -1, -1))) == errno.EPERM


def test_refuses_exec_by_python() -> None:
    assert confined(lambda: error_of(lambda: os.execv("/bin/true", ["true"])), read=[Path("/")]) == errno.EPERM


def test_refuses_a_new_namespace_by_clone_and_still_forks() -> None:
    clone = {"x86_64": 56, "aarch64": 220}[MACHINE]

    def work() -> tuple[int, int, int]:
        namespace = error_of(lambda: syscall(clone, 0x10000000 | 17, 0, 0, 0, 0))
        clone3 = error_of(lambda: syscall(435, 0, 0))
        child = os.fork()
        if child == 0:
            os._exit(7)
        return namespace, clone3, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert confined(work) == (errno.EPERM, errno.ENOSYS, 7)


@pytest.mark.parametrize(
    ("family", "kind", "want"),
    [
        pytest.param(socket.AF_INET, socket.SOCK_STREAM, 0, id="ipv4"),
        pytest.param(socket.AF_INET6, socket.SOCK_DGRAM, 0, id="ipv6"),
        pytest.param(socket.AF_UNIX, socket.SOCK_STREAM, 0, id="unix"),
        pytest.param(socket.AF_NETLINK, socket.SOCK_RAW, errno.EAFNOSUPPORT, id="netlink"),
        pytest.param(socket.AF_PACKET, socket.SOCK_RAW, errno.EAFNOSUPPORT, id="packet"),
        pytest.param(socket.AF_VSOCK, socket.SOCK_STREAM, errno.EAFNOSUPPORT, id="vsock"),
        pytest.param(socket.AF_ALG, socket.SOCK_SEQPACKET, errno.EAFNOSUPPORT, id="kernel-crypto"),
    ],
)
def test_allows_only_socket_families_of_a_gate(family: int, kind: int, want: int) -> None:
    assert confined(lambda: error_of(lambda: socket.socket(family, kind).close())) == want


@pytest.mark.parametrize(
    ("kind", "protocol", "want"),
    [
        pytest.param(socket.SOCK_STREAM, socket.IPPROTO_TCP, 0, id="tcp"),
        pytest.param(socket.SOCK_DGRAM, socket.IPPROTO_UDP, 0, id="udp"),
        pytest.param(socket.SOCK_STREAM, socket.IPPROTO_MPTCP, errno.EPROTONOSUPPORT, id="mptcp"),
        pytest.param(socket.SOCK_STREAM, 132, errno.EPROTONOSUPPORT, id="sctp"),
        pytest.param(socket.SOCK_DGRAM, 136, errno.EPROTONOSUPPORT, id="udplite"),
        pytest.param(socket.SOCK_DGRAM, socket.IPPROTO_ICMP, errno.EPROTONOSUPPORT, id="ping"),
    ],
)
def test_allows_only_protocols_of_a_gate(kind: int, protocol: int, want: int) -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        assert confined(lambda family=family: error_of(lambda: socket.socket(family, kind, protocol).close())) == want


def test_stays_undumpable() -> None:
    def work() -> tuple[int, int, int]:
        return prctl(3), error_of(lambda: prctl(4, 1)), error_of(lambda: prctl(4, 0))

    assert confined(work) == (0, errno.EPERM, 0)


def test_gains_no_privileges() -> None:
    assert confined(lambda: prctl(39)) == 1


def test_threads_start_and_are_filtered_too() -> None:
    def work() -> list[int]:
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(error_of(lambda: os.execv("/bin/true", ["true"]))))
        thread.start()
        thread.join()
        return seen

    assert confined(work, read=interpreter_paths()) == [errno.EPERM]


def test_refuses_a_process_with_several_threads() -> None:
    def work() -> str:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            confine()
        except LaunchError as error:
            return str(error)
        finally:
            stop.set()
            thread.join()
        return ""

    assert "several threads" in in_child(work)


class TestFiles:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("policy", "audit", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("before")
        return tmp_path

    def try_all(self, tree: Path, attempt: Callable[[Path], object]) -> dict[str, int]:
        def work() -> dict[str, int]:
            return {name: error_of(lambda n=name: attempt(tree / n)) for name in ("policy", "audit", "other")}

        return confined(work, read=[tree / "policy", tree / "missing"], append=[tree / "audit"])

    def test_reads_what_is_named(self, tree: Path) -> None:
        outcome = self.try_all(tree, lambda folder: (folder / "file").read_text())
        assert outcome == {"policy": 0, "audit": 0, "other": errno.EACCES}

    def test_lists_what_is_named(self, tree: Path) -> None:
        assert self.try_all(tree, os.listdir) == {"policy": 0, "audit": 0, "other": errno.EACCES}

    def test_makes_files_only_in_the_log_folder(self, tree: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        outcome = self.try_all(tree, lambda folder: os.write(os.open(folder / "new", flags), b"line"))
        assert outcome == {"policy": errno.EACCES, "audit": 0, "other": errno.EACCES}
        assert (tree / "audit" / "new").read_text() == "line"

    @pytest.mark.parametrize(
        "attempt",
        [
            pytest.param(lambda folder: os.unlink(folder / "file"), id="remove"),
            pytest.param(lambda folder: os.truncate(folder / "file", 0), id="truncate"),
            pytest.param(lambda folder: os.open(folder / "file", os.O_WRONLY | os.O_TRUNC), id="open-and-truncate"),
            pytest.param(lambda folder: os.rename(folder / "file", folder / "moved"), id="rename"),
            pytest.param(lambda folder: os.symlink("/etc", folder / "link"), id="symlink"),
            pytest.param(lambda folder: os.mkfifo(folder / "pipe"), id="fifo"),
        ],
    )
    def test_never_takes_away(self, tree: Path, attempt: Callable[[Path], object]) -> None:
        assert set(self.try_all(tree, attempt).values()) == {errno.EACCES}
        assert (tree / "audit" / "file").read_text() == "before"

    def test_imports_a_module_late(self) -> None:
        def work() -> bool:
            import colorsys

            return colorsys.__name__ == "colorsys"

        assert confined(work, read=interpreter_paths())

    def test_says_what_is_not_enforced(self, tree: Path) -> None:
        held: Confinement = in_child(lambda: confine(append=[tree / "audit"]))
        assert held.seccomp
        assert held.landlock_abi == landlock.abi() > 0
        assert held.unenforced == tuple(landlock.missing(landlock.abi()))

    def test_refuses_to_start_without_its_log_folder(self, tree: Path) -> None:
        def work() -> str:
            try:
                confine(append=[tree / "gone"])
            except LaunchError as error:
                return str(error)
            return ""

        assert "gone" in in_child(work)

    def test_says_that_an_old_kernel_holds_nothing(self) -> None:
        assert landlock.missing(0) == ["files that its user may open (this kernel has no Landlock)"]
        assert len(landlock.missing(2)) == 2
        assert landlock.missing(6) == []


def test_signals_do_not_leave_the_domain() -> None:
    parent = os.getpid()
    if landlock.abi() < 6:
        pytest.fail("this machine's Landlock is too old for the test of signals; run on Linux 6.12 or newer")
    assert confined(lambda: error_of(lambda: os.kill(parent, 0))) == errno.EPERM


def test_memory_of_a_confined_process_is_closed_to_its_own_uid(tmp_path: Path) -> None:
    """Invariant 5: dumpable 0 closes /proc/PID/mem to another process of the same uid."""
    nobody = 65534

    def child() -> int:
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)
        ready, done = os.pipe(), os.pipe()
        victim = os.fork()
        if victim == 0:
            prctl(4, 1)  # a change of uid has cleared it: begin as any ordinary process does
            confine()
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        prctl(4, 1)
        code = error_of(lambda: os.open(f"/proc/{victim}/mem", os.O_RDONLY))
        os.write(done[1], b"x")
        os.waitpid(victim, 0)
        return code

    if os.geteuid() != 0:
        pytest.fail("needs root to become two processes of another uid")
    assert in_child(child) == errno.EACCES


def test_program_fits_the_kernel() -> None:
    for machine in seccomp._MACHINES.values():
        steps = seccomp._program(machine)
        assert len(steps) < 4096
        assert all(yes < 256 and no < 256 for _, yes, no, _ in steps)
    assert ctypes.sizeof(seccomp._Instruction) == 8
