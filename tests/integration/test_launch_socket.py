"""launch.sock, spoken to by those who mean it no good: nothing that they say opens a session, or stays open."""

import array
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.lab.doors import landing, tcp_door, within
from tests.lab.gate import Gate, configuration, gate
from tests.lab.sockets import bind_loopback, in_namespace
from tests.lab.world import why_no_world
from tidegate.errors import LaunchError
from tidegate.session.door import MESSAGE_BYTES, DoorSpec, DoorWay, LaunchNote, Opening, Request
from tidegate_launcher.lease import Ask, Door, Lease
from tidegate_launcher.readiness import is_readable

pytestmark = pytest.mark.skipif(why_no_world() is not None, reason=f"no namespaces: {why_no_world()}")

WHOLE = Ask(policy="default")
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


@pytest.fixture(scope="module")
def room() -> Iterator[str]:
    with landing() as name:
        yield name


@pytest.fixture(scope="module")
def running() -> Iterator[Gate]:
    with gate(configuration()) as one:
        yield one


def _sessions_and_faults(one: Gate) -> tuple[object, ...]:
    sessions = one.admin("GET", "/v1/sessions")[1]["sessions"]
    return sessions, len(one.audit(type="fault")), one.admin("GET", "/readyz")[0]


@pytest.fixture
def quiet(running: Gate) -> Iterator[Gate]:
    """The gate; it has no session more, no fault and no descriptor more after the test than before."""
    before, held = _sessions_and_faults(running), len(_numbers(running.process.pid))
    yield running
    assert within(3, lambda: _sessions_and_faults(running) == before), _sessions_and_faults(running)
    assert within(3, lambda: len(_numbers(running.process.pid)) <= held)


def test_a_session_given_back_is_over_whoever_else_has_its_descriptor(quiet: Gate) -> None:
    """A harness that forks leaves it to its children, who live as long as they like."""
    lease = Lease.open(quiet.state, WHOLE)
    with subprocess.Popen(["sleep", "60"], pass_fds=[lease._sock.fileno()]) as child:
        try:
            assert within(3, lambda: str(lease.id) in _live(quiet))
            lease.close()
            assert within(3, lambda: str(lease.id) not in _live(quiet))
        finally:
            child.kill()


_FORKS = """
import os, signal, sys
from pathlib import Path
from tidegate_launcher.lease import Ask, Lease
lease = Lease.open(Path(sys.argv[1]), Ask(policy="default"))
child = os.fork()
if child:
    print(lease.id, child, flush=True)
signal.pause()
"""


def test_a_late_answer_vouches_for_no_other_record(quiet: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: taken for the next record's, it would let a command begin that is on no record."""
    monkeypatch.setattr("tidegate_launcher.lease._SECONDS", 1.0)
    gate = quiet.process.pid
    with Lease.open(quiet.state, WHOLE) as lease:
        try:
            os.kill(gate, signal.SIGSTOP)
            with pytest.raises(LaunchError, match="did not answer"):
                lease.record(id="late", act="start")
            os.kill(gate, signal.SIGCONT)
            assert within(5, lambda: is_readable(lease._sock.fileno()))
            os.kill(gate, signal.SIGSTOP)
            with pytest.raises(LaunchError, match="did not answer"):
                lease.record(id="unwritten", act="start")
        finally:
            os.kill(gate, signal.SIGCONT)
        monkeypatch.setattr("tidegate_launcher.lease._SECONDS", 15.0)
        lease.record(id="after", act="start")
        told = [line["launch"]["id"] for line in quiet.audit(type="launch")]
        assert told[-3:] == ["late", "unwritten", "after"]


def test_a_session_is_over_with_its_launcher_whoever_else_has_its_descriptor(quiet: Gate) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _FORKS, str(quiet.state)], stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        one, child = process.stdout.readline().split()
        try:
            assert within(3, lambda: one in _live(quiet))
            process.kill()
            assert within(3, lambda: one not in _live(quiet))
        finally:
            os.kill(int(child), signal.SIGKILL)


def _live(one: Gate) -> list[str]:
    return [view["id"] for view in one.admin("GET", "/v1/sessions")[1]["sessions"]]


def _connected(_: str) -> socket.socket:
    left, right = socket.socketpair()
    right.close()
    return left


def _abstract(_: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(f"\0tidegate-test-{os.getpid()}")
    sock.listen()
    return sock


def _not_listening(_: str) -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def _of_the_machine(_: str) -> socket.socket:
    return bind_loopback("127.0.0.1", 0, TCP)


def _for_every_address(room: str) -> socket.socket:
    return in_namespace(room)("0.0.0.0", 0, TCP)


def _datagrams(room: str) -> socket.socket:
    return in_namespace(room)("127.0.0.1", 0, UDP)


def _unix_without_a_port(_: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory() as folder:
        sock.bind(f"{folder}/sock")
    sock.listen()
    return sock


@pytest.mark.parametrize(
    ("way", "make", "fault"),
    [
        pytest.param("http", _connected, "does not listen", id="connected"),
        pytest.param("http", _not_listening, "does not listen", id="not_listening"),
        pytest.param("http", _abstract, "has no path", id="abstract"),
        pytest.param("http", _of_the_machine, "the gate's own network", id="the_machines_own"),
        pytest.param("http", _for_every_address, "every address", id="every_address"),
        pytest.param("http", _datagrams, "another type", id="datagrams"),
        pytest.param("tls", _unix_without_a_port, "no port says", id="unix_without_a_port"),
        pytest.param("transparent", _unix_without_a_port, "nobody can come", id="transparent_unix"),
    ],
)
def test_a_socket_that_cannot_be_a_door_opens_no_session(
    quiet: Gate, room: str, way: DoorWay, make: Callable[[str], socket.socket], fault: str
) -> None:
    with make(room) as sock, pytest.raises(LaunchError, match=fault):
        Lease.open(quiet.state, WHOLE, [Door(DoorSpec(way), (sock,))])


def test_a_dns_door_has_its_two_sockets_in_their_order(quiet: Gate, room: str) -> None:
    with in_namespace(room)("127.0.0.1", 0, UDP) as udp, in_namespace(room)("127.0.0.1", 0, TCP) as tcp:
        with pytest.raises(LaunchError, match="another type"):
            Lease.open(quiet.state, WHOLE, [Door(DoorSpec("dns"), (tcp, udp))])
        with pytest.raises(LaunchError, match="need 2 sockets"):
            Lease.open(quiet.state, WHOLE, [Door(DoorSpec("dns"), (udp,))])
        Lease.open(quiet.state, WHOLE, [Door(DoorSpec("dns"), (udp, tcp))]).close()


def test_a_door_is_no_listener_of_the_gates_own(quiet: Gate) -> None:
    pids = [worker["pid"] for worker in quiet.admin("GET", "/v1/status")[1]["workers"]]
    refused = 0
    for pid in (*pids, quiet.process.pid):
        for number in _numbers(pid):
            with contextlib.suppress(OSError), _taken(pid, number) as sock:
                if sock.type == TCP and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    with pytest.raises(LaunchError, match="the gate's own"):
                        Lease.open(quiet.state, WHOLE, [Door(DoorSpec("http", 3128), (sock,))])
                    refused += 1
    assert refused >= 4  # the proxy's, and those of the API


def _numbers(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/fd")]


@contextlib.contextmanager
def _taken(pid: int, number: int) -> Iterator[socket.socket]:
    """Take a copy of another process's socket, as root may (pidfd_getfd(2))."""
    pidfd = os.pidfd_open(pid)
    found = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, number, 0)
    os.close(pidfd)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        sock = socket.socket(fileno=found)
    except OSError:
        os.close(found)
        raise
    with sock:
        yield sock


def _open_message(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(Request(open=Opening(policy="default", **fields)))


def _call_message(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"open": {"policy": "default", "call": {"tool": "t", "id": "i", **fields}}})


def _say(running: Gate, data: bytes, numbers: list[int]) -> bytes:
    """Say something on launch.sock with descriptors, and return what is answered; empty when it is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(8)
        sock.connect(str(running.state / "launch.sock"))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
        sock.sendmsg([data], rights)
        return sock.recv(MESSAGE_BYTES)


ONE = (DoorSpec("http"),)


@pytest.mark.parametrize(
    ("data", "count", "answer"),
    [
        pytest.param(b"\xc1garbage", 0, b"cannot be read", id="garbage"),
        pytest.param(b"\xc1garbage", 3, b"cannot be read", id="garbage with sockets"),
        pytest.param(
            msgspec.msgpack.encode({"open": {"policy": "default", "uid": 0}}),
            0,
            b"unknown field",
            id="a field too many",
        ),
        pytest.param(msgspec.msgpack.encode({}), 0, b"either opens a session", id="nothing"),
        pytest.param(
            msgspec.msgpack.encode({"launch": {"id": "x", "act": "start"}}), 0, b"has opened", id="a record first"
        ),
        pytest.param(_open_message(doors=ONE), 0, b"need 1 sockets, and 0 came", id="no socket"),
        pytest.param(_open_message(doors=ONE), 3, b"need 1 sockets, and 3 came", id="too many sockets"),
        pytest.param(_open_message(doors=ONE), 200, b"too many descriptors", id="far too many sockets"),
        pytest.param(_open_message(doors=ONE * 17), 17, b"cannot be read", id="too many doors"),
        pytest.param(_open_message(doors=ONE * 2), 2, b"came twice", id="one twice"),
        pytest.param(_open_message(owner="\n"), 0, b"printable", id="an owner that is none"),
        pytest.param(_open_message(ttl_seconds=-1.0), 0, b"seconds", id="no time"),
        pytest.param(_open_message(credentials=("nobody",)), 0, b"nobody", id="a credential that is not there"),
        pytest.param(msgspec.msgpack.encode({"open": {"policy": "p" * 90_000}}), 0, b"too long", id="too long"),
        pytest.param(_call_message(tool="x" * 10_000), 0, b"cannot be read", id="a tool of 10 KB"),
        pytest.param(_call_message(id=""), 0, b"cannot be read", id="a call without an id"),
        pytest.param(_call_message(tool=7), 0, b"cannot be read", id="a tool that is a number"),
        pytest.param(_call_message(owner="root"), 0, b"unknown field", id="a call with an owner"),
        pytest.param(_call_message(parent="x" * 65), 0, b"cannot be read", id="a parent too long"),
        pytest.param(_call_message(parent="nobody"), 0, b"no live session", id="a parent that there is not"),
        pytest.param(_call_message(parent="\n\x1b[2J"), 0, b"no live session", id="a parent that drives terminals"),
        pytest.param(
            _call_message(tool="TOOL").replace(b"TOOL", b"\xed\xa0\x80x"), 0, b"cannot be read", id="a lone surrogate"
        ),
    ],
)
def test_a_hostile_message_changes_nothing(quiet: Gate, room: str, data: bytes, count: int, answer: bytes) -> None:
    with in_namespace(room)("127.0.0.1", 0, TCP) as sock:
        assert answer in _say(quiet, data, [sock.fileno()] * count)


def test_a_second_opening_and_garbage_leave_the_session_as_it_is(quiet: Gate, room: str) -> None:
    with tcp_door(room) as (door, _), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(8)
        sock.connect(str(quiet.state / "launch.sock"))
        socket.send_fds(sock, [_open_message(doors=ONE)], [door.sockets[0].fileno()])
        assert b"opened" in sock.recv(MESSAGE_BYTES)
        for data in (_open_message(), b"\xc1", b"x" * 90_000):
            socket.send_fds(sock, [data], [sock.fileno()] * 5)
            assert b"error" in sock.recv(MESSAGE_BYTES)
        sock.sendall(msgspec.msgpack.encode(Request(launch=LaunchNote(id="box", act="start"))))
        assert msgspec.msgpack.decode(sock.recv(MESSAGE_BYTES)) == {}
        assert len(quiet.admin("GET", "/v1/sessions")[1]["sessions"]) == 1


def test_a_file_is_no_door(quiet: Gate) -> None:
    with tempfile.TemporaryFile() as file:
        assert b"no socket" in _say(quiet, _open_message(doors=ONE), [file.fileno()])


def test_a_launcher_that_says_nothing_is_closed(quiet: Gate) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(8)
        sock.connect(str(quiet.state / "launch.sock"))
        assert sock.recv(10) == b""


def test_another_user_is_not_served(quiet: Gate) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            Lease.open(quiet.state, WHOLE)
        except LaunchError as fault:
            os.write(write, str(fault).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as pipe:
        assert b"it serves root, and the user that it runs as" in pipe.read()


def test_a_gate_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="tidegate up"):
        Lease.open(tmp_path, WHOLE)
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "admin.sock").touch()
    with pytest.raises(LaunchError, match="--only"):
        Lease.open(tmp_path, WHOLE)
