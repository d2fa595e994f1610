"""The shim as it runs in a sandbox: a process of its own, in a network namespace with nothing but loopback."""

import ast
import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.lab.doorway import doorway, echo, say_when_over
from tests.lab.world import why_no_world
from tidegate_launcher.net import shim
from tidegate_launcher.net.hosts import addresses_of, hosts_text
from tidegate_launcher.net.space import Space

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

SOURCE = Path(shim.__file__)
NAMES = ("api.test", "b.test")
AT = addresses_of(NAMES)
SECONDS = 20.0
STAY = ("sh", "-c", "read -r _; exit 9")
"""A command that stays until its standard input ends."""


@dataclasses.dataclass
class Place:
    """A namespace, and a folder with doors and the shim's files."""

    space: Space
    folder: Path
    python: str = sys.executable

    @property
    def told(self) -> list[str]:
        return (self.folder / "told").read_text().splitlines()

    def command(self, *argv: str) -> list[str]:
        door, hosts, told = (str(self.folder / name) for name in ("door", "hosts", "told"))
        return [
            self.python,
            "-I",
            str(self.folder / "shim.py"),
            "--door",
            door,
            "--hosts",
            hosts,
            "--told",
            told,
            "--",
            *argv,
        ]

    def run(self, *argv: str, uid: int | None = None) -> subprocess.CompletedProcess[bytes]:
        return self.space.within(
            lambda: subprocess.run(
                self.command(*argv), capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, user=uid,
                check=False,
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yield the shim, serving."""
        process = self.space.within(
            lambda: subprocess.Popen(self.command(*argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        try:
            self._served(process)
            yield process
        finally:
            process.kill()
            process.communicate(timeout=SECONDS)

    def dial(self, address: tuple[str, int]) -> socket.socket:
        return self.space.within(lambda: socket.create_connection(address, SECONDS))

    def _served(self, process: subprocess.Popen[bytes]) -> None:
        """Return when it listens: a connection in the namespace is taken."""
        for _ in range(2000):  # the file is all that tells, and a file tells nobody
            with contextlib.suppress(OSError):
                if self.told:
                    return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
                break
        raise AssertionError(f"the shim serves nothing, and ended with {process.poll()}")


@pytest.fixture
def place() -> Iterator[Place]:
    # Not below pytest's own folder, into which no other user may look.
    with tempfile.TemporaryDirectory(prefix="tg-shim-", dir="/tmp") as name, Space.make() as space:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "door").mkdir()
        (folder / "hosts").write_text(hosts_text(NAMES))
        shutil.copy(SOURCE, folder / "shim.py")
        space.within(lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10))
        yield Place(space, folder)


@pytest.fixture
def http(place: Place) -> Iterator[None]:
    with doorway(place.folder / "door" / "http.sock", echo):
        yield


def _pythons() -> list[str]:
    named = (shutil.which(f"python3.{minor}") for minor in range(8, 13))
    works = [path for path in named if path and not subprocess.run([path, "-V"], capture_output=True).returncode]
    return [sys.executable, *works]


def _all_of(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_it_is_python_3_8s_and_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize("python", _pythons(), ids=os.path.basename)
def test_the_commands_code_and_streams_are_its_own(place: Place, python: str) -> None:
    place.python = python
    done = place.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert place.told == ["serving 8080", "ended 7"]


@pytest.mark.parametrize(
    ("address", "name"),
    [(shim.PROXY, "http.sock"), ((AT["api.test"], 443), "tls.sock"), ((AT["b.test"], 443), "tls.sock"),
     ((AT["api.test"], 80), "plain.sock")],
    ids=["proxy", "tls", "tls-of-another-name", "plain"],
)  # fmt: skip
def test_bytes_go_both_ways_by_the_socket_that_the_port_stands_for(
    place: Place, address: tuple[str, int], name: str
) -> None:
    with contextlib.ExitStack() as stack:
        for each in shim.SOCKETS.values():
            stack.enter_context(doorway(place.folder / "door" / each, _greeter(each.encode())))
        stack.enter_context(place.running(*STAY))
        with place.dial(address) as sock:
            sock.sendall(b"hello")
            sock.shutdown(socket.SHUT_WR)
            assert _all_of(sock) == name.encode() + b":hello"


def _greeter(name: bytes) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        sock.sendall(name + b":")
        echo(sock)

    return serve


def test_an_end_of_one_direction_leaves_the_other_open(place: Place) -> None:
    with (
        doorway(place.folder / "door" / "http.sock", say_when_over),
        place.running(*STAY),
        place.dial(shim.PROXY) as sock,
    ):
        sock.sendall(b"x" * 3_000_000)
        sock.shutdown(socket.SHUT_WR)
        assert _all_of(sock) == b"3000000"


@pytest.mark.usefixtures("http")
def test_a_reader_that_is_slow_holds_the_sender_and_not_the_memory(place: Place) -> None:
    with place.running(*STAY) as process, place.dial(shim.PROXY) as sock:
        before = _resident(process.pid)
        sock.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(1000):
                sent += sock.send(b"x" * 65536)
        assert sent < 30_000_000
        assert _resident(process.pid) - before < 4_000_000
        sock.settimeout(SECONDS)
        sock.shutdown(socket.SHUT_WR)
        assert len(_all_of(sock)) == sent


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("http")
def test_more_connections_than_may_be_wait_their_turn(place: Place) -> None:
    with place.running("sh", "-c", "ulimit -n; read -r _") as process, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(place.dial(shim.PROXY)) for _ in range(shim.CONNECTIONS + 1)]
        for sock in socks:
            sock.sendall(b"1")
        assert all(sock.recv(1) == b"1" for sock in socks[:-1])
        socks[-1].settimeout(0.3)
        with pytest.raises(TimeoutError):
            socks[-1].recv(1)
        socks[-1].settimeout(SECONDS)
        socks[0].close()
        assert socks[-1].recv(1) == b"1"
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 2 * shim.CONNECTIONS + 64


def test_a_door_that_is_gone_resets_the_client_and_the_next_one_is_served_again(place: Place) -> None:
    path = place.folder / "door" / "http.sock"
    with doorway(path, echo) as listener, place.running(*STAY):
        listener.shutdown(socket.SHUT_RDWR)
        path.unlink()
        # It may come as early as the answer to the client's own dial.
        with pytest.raises(ConnectionResetError), place.dial(shim.PROXY) as sock:
            sock.recv(1)
        with doorway(path, echo), place.dial(shim.PROXY) as sock:
            sock.sendall(b"1")
            assert sock.recv(1) == b"1"


def test_a_gate_whose_queue_is_full_is_asked_again(place: Place) -> None:
    listener = socket.socket(socket.AF_UNIX)
    with listener, contextlib.ExitStack() as stack:
        listener.bind(str(place.folder / "door" / "http.sock"))
        listener.listen(0)
        stack.enter_context(place.running(*STAY))
        for _ in range(4):
            stack.enter_context(place.dial(shim.PROXY)).sendall(b"1")
        listener.settimeout(SECONDS)
        for _ in range(4):
            assert stack.enter_context(listener.accept()[0]).recv(1) == b"1"


def test_descriptors_do_not_come_through(place: Place) -> None:
    got: list[int] = []

    def give(sock: socket.socket) -> None:
        with open(os.devnull) as file:
            socket.send_fds(sock, [b"x"], [file.fileno()])
        echo(sock)

    with doorway(place.folder / "door" / "http.sock", give), place.running(*STAY) as process:
        with place.dial(shim.PROXY) as sock:
            assert sock.recv(1) == b"x"
            got = [int(name) for name in os.listdir(f"/proc/{process.pid}/fd")]
            shown = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in got]
        assert "/dev/null" not in shown


@pytest.mark.usefixtures("http")
def test_without_the_right_to_low_ports_the_proxy_alone_is_served(place: Place) -> None:
    place.python = "/usr/bin/python3"  # one that another user may run
    with doorway(place.folder / "door" / "tls.sock", echo):
        done = place.run("true", uid=65534)
    assert (done.returncode, place.told[0]) == (0, "serving 8080")


@pytest.mark.usefixtures("http")
def test_with_that_right_the_names_are_served_too(place: Place) -> None:
    with doorway(place.folder / "door" / "tls.sock", echo):
        place.run("true")
    assert place.told[0] == "serving 8080 443"


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_reaches_the_command_and_its_answer_comes_back(place: Place, number: signal.Signals) -> None:
    wait = f"trap 'exit 5' {number.name[3:]}; echo up; read -r _"
    with place.running("sh", "-c", wait) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == 5


@pytest.mark.usefixtures("http")
def test_a_command_that_is_killed_is_told_as_a_shell_tells_it(place: Place) -> None:
    done = place.run("sh", "-c", "kill -9 $$")
    assert (done.returncode, place.told[-1]) == (137, "ended 137")


@pytest.mark.usefixtures("http")
def test_the_command_has_the_signals_as_the_kernel_has_them(place: Place) -> None:
    done = place.run("grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not [number.name for number in shim.TAKEN if ignored >> (number - 1) & 1]


@pytest.mark.usefixtures("http")
def test_the_command_holds_no_descriptor_of_the_shims(place: Place) -> None:
    done = place.run("sh", "-c", "ls /proc/self/fd | wc -l")
    assert int(done.stdout) == 4  # the streams, and the folder that ls reads


@pytest.mark.usefixtures("http")
def test_the_command_ends_with_the_shim_and_the_shims_death_can_be_told(place: Place) -> None:
    with place.running(*STAY) as process:
        pidfd = os.pidfd_open(_child_of(process.pid))
        process.kill()
        _ended(pidfd)
    assert place.told == ["serving 8080"]


def _ended(pidfd: int) -> None:
    import select

    with open(pidfd, "rb", buffering=0) as owned:
        assert select.select([owned], [], [], SECONDS)[0]


@pytest.mark.parametrize(("argv", "code"), [(("/no/such",), 127), (("/etc",), 126)], ids=["absent", "no-program"])
@pytest.mark.usefixtures("http")
def test_a_command_that_cannot_be_started_is_named(place: Place, argv: tuple[str], code: int) -> None:
    done = place.run(*argv)
    assert (done.returncode, done.stderr.startswith(f"tidegate: {argv[0]}: ".encode())) == (code, True)


def test_without_a_socket_to_serve_no_command_starts(place: Place) -> None:
    done = place.run("echo", "started")
    assert (done.returncode, done.stdout) == (shim.FAILED, b"")
    assert place.told[0].startswith("failed ")
    assert "door" in place.told[0]
    assert b"the way to the gate" in done.stderr


def _stdin_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


@pytest.mark.usefixtures("http")
def test_standard_input_is_the_commands(place: Place) -> None:
    with place.running("cat") as process:
        _stdin_of(process).write(b"typed")
        _stdin_of(process).close()
        assert process.stdout is not None
        assert process.stdout.read() == b"typed"
        assert process.wait(SECONDS) == 0
        process.stdin = None
