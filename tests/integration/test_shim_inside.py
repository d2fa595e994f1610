"""The shim in a real gVisor sandbox without a network: what a client inside reaches, and what becomes of it."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.box import Box
from tests.lab.doorway import doorway, echo
from tests.lab.roots import why_no_gvisor
from tidegate_launcher.job import Bind
from tidegate_launcher.net.hosts import addresses_of, hosts_text
from tidegate_launcher.net.shimmed import fault_of, shim_bind, shimmed
from tidegate_launcher.result import Outcome, Result

pytestmark = pytest.mark.skipif(why_no_gvisor() is not None, reason=f"no gVisor: {why_no_gvisor()}")

NAMES = ("api.test", "b.test")
CLIENT = """
import socket, sys
for where in sys.argv[1:]:
    host, _, port = where.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(b"x" * 300000)
        sock.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: sock.recv(65536), b""))
        print(got[:5].decode().strip("x"), len(got) - 5, sock.getpeername()[0])
"""


class _Shimmed:
    """Runs commands with the shim around them, at the doors of one folder."""

    def __init__(self, box: Box, folder: Path) -> None:
        self._box, self._folder = box, folder
        self.told: bytes | None = None
        (folder / "hosts").write_text(hosts_text(NAMES))

    def run(self, *argv: str) -> Result:
        hosts = Bind(source=self._folder / "hosts", target="/etc/hosts")
        binds = (shim_bind(self._folder), hosts)
        return self._box.run(*shimmed(argv), net="uds", door=self._folder / "door", binds=binds, collect=self._collect)

    def _collect(self, work: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.told = Path(f"/proc/self/fd/{work}/.tidegate-shim").read_bytes()


@pytest.fixture
def sandbox(root: Path, tmp_path: Path) -> Iterator[_Shimmed]:
    door = tmp_path / "door"
    door.mkdir()
    with contextlib.ExitStack() as stack:
        for name, word in (("http", b"http:"), ("tls", b"tls::"), ("plain", b"plain")):
            stack.enter_context(doorway(door / f"{name}.sock", _answering(word)))
        yield _Shimmed(Box(root), tmp_path)


def _answering(word: bytes) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        sock.sendall(word)
        echo(sock)

    return serve


def test_a_guest_without_a_network_reaches_the_gate_by_proxy_and_by_name_also_below_1024(sandbox: _Shimmed) -> None:
    dials = ("127.0.0.1:8080", "api.test:443", "b.test:443", "b.test:80")
    result = sandbox.run("python3", "-c", CLIENT, *dials)
    at = addresses_of(NAMES)
    assert result.untrusted_stdout.decode().splitlines() == [
        "http: 300000 127.0.0.1",
        f"tls:: 300000 {at['api.test']}",
        f"tls:: 300000 {at['b.test']}",
        f"plain 300000 {at['b.test']}",
    ], result.untrusted_stderr
    assert sandbox.told == b"serving 8080 443 80\nended 0\n"


def test_nothing_else_is_reached(sandbox: _Shimmed) -> None:
    result = sandbox.run("python3", "-c", CLIENT, "192.0.2.1:443")
    assert result.untrusted_exit_code == 1
    assert b"No route to host" in result.untrusted_stderr


def test_the_commands_end_is_the_sandboxs(sandbox: _Shimmed) -> None:
    result = sandbox.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 7)
    assert (result.untrusted_stdout, result.untrusted_stderr) == (b"out\n", b"err\n")
    assert fault_of(sandbox.told) == ""


def test_what_outlives_the_command_ends_with_it(sandbox: _Shimmed) -> None:
    result = sandbox.run("sh", "-c", "sleep 600 & setsid sleep 600 & exit 3")
    assert (result.outcome, result.untrusted_exit_code) == (Outcome.EXITED, 3)


def test_orphans_are_taken_in_by_the_shim_which_is_the_first_process(sandbox: _Shimmed) -> None:
    code = "(sh -c 'sleep 0.1; exit 4' &) ; sleep 0.5; grep -l '(sh) Z' /proc/[0-9]*/stat | wc -l"
    assert sandbox.run("sh", "-c", code).untrusted_stdout == b"0\n"


def test_a_command_that_kills_the_shim_ends_with_it_and_it_is_told(sandbox: _Shimmed) -> None:
    result = sandbox.run("sh", "-c", "kill -9 $PPID; sleep 600")
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)
    assert fault_of(sandbox.told) == "the shim was ended, and with it the command"


def test_without_doors_the_shim_fails_by_its_own_word(sandbox: _Shimmed, tmp_path: Path) -> None:
    for path in (tmp_path / "door").iterdir():
        path.unlink()
    result = sandbox.run("echo", "started")
    assert (result.exit_code, result.untrusted_stdout) == (125, b"")
    assert "none of the gate's sockets" in fault_of(sandbox.told)
