"""What a launcher says before it is said, and what it makes of the answer; the rest is asked of a real gate."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate.session.door import Answer, Opened, Refusal
from tidegate.session.identity import SessionId
from tidegate_launcher.lease import Ask, Lease, Line

OPENED = Answer(opened=Opened(id=SessionId("s"), token="t", env={"A": "b"}, names=("api.test",)))


@contextmanager
def answering(state: Path, *answers: bytes) -> Iterator[None]:
    """A gate that answers each message with the next of these, then closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(state / "launch.sock"))
        listener.listen()
        listener.settimeout(10)

        def serve() -> None:
            sock = listener.accept()[0]
            with sock:
                for answer in answers:
                    sock.recv(65536)
                    sock.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(10)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "ca.pem").write_bytes(b"ca")
    (tmp_path / "bundle.pem").write_bytes(b"bundle")
    return tmp_path


def test_a_lease_holds_what_the_gate_said(state: Path) -> None:
    with answering(state, msgspec.msgpack.encode(OPENED)), Lease.open(state, Ask(policy="p")) as lease:
        assert (lease.id, lease.token, lease.environment, lease.names) == ("s", "t", {"A": "b"}, ("api.test",))
        assert lease.files == {"ca.pem": b"ca", "bundle.pem": b"bundle"}
        assert "t" not in repr(lease).removeprefix("Lease")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(msgspec.msgpack.encode(Answer(error=Refusal("no policy", "p", "name one"))), "name one", id="no"),
        pytest.param(msgspec.msgpack.encode(Answer()), "opened no session", id="nothing"),
        pytest.param(b"\xc1", "same version", id="garbage"),
    ],
)
def test_an_answer_that_opens_nothing_is_an_error_that_says_why(state: Path, answer: bytes, said: str) -> None:
    with answering(state, answer), pytest.raises(LaunchError, match=said):
        Lease.open(state, Ask(policy="p"))


def test_a_gate_that_goes_away_is_told(state: Path) -> None:
    with answering(state, msgspec.msgpack.encode(OPENED)):
        lease = Lease.open(state, Ask(policy="p"))
    with lease, pytest.raises(LaunchError, match="tidegate health"):
        lease.record(id="box", act="end")


@pytest.mark.parametrize(
    ("there", "hint"),
    [
        pytest.param((), "start one with `tidegate up`", id="never-was"),
        pytest.param(("gate/gate.pid", "keeper.pid"), "start one with `tidegate up`", id="ended"),
        pytest.param(("admin.sock",), "without --only", id="keeper-alone"),
        pytest.param(("gate/admin.sock",), "without --only", id="gate-alone"),
        pytest.param(("admin.sock", "launch.sock"), "start one with `tidegate up`", id="killed"),
    ],
)
def test_what_to_do_is_told_of_the_gate_that_is_or_is_not_there(
    tmp_path: Path, there: tuple[str, ...], hint: str
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(LaunchError) as told:
        Lease.open(tmp_path, Ask(policy="p"))
    assert hint in told.value.hint


def test_a_record_of_another_form_is_refused_before_it_is_sent(state: Path) -> None:
    with answering(state, msgspec.msgpack.encode(OPENED)), Lease.open(state, Ask(policy="p")) as lease:
        with pytest.raises(LaunchError, match="put on record"):
            lease.record(id="box", act="explode")
        with pytest.raises(LaunchError, match="put on record"):
            lease.record(id="box", act="end", argv="x" * 5000)


def test_a_line_that_was_cut_is_waited_for_by_nobody(state: Path) -> None:
    """Before it is connected, or while an answer is awaited."""
    line = Line()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(str(state / "launch.sock"))
        hanging.listen()
        line.cut()
        with pytest.raises(LaunchError, match="closed the connection"):
            Lease.open(state, Ask(policy="p"), line=line)
        line = Line()
        asked = threading.Thread(target=lambda: (hanging.accept()[0].recv(65536), line.cut()))
        asked.start()
        begun = time.monotonic()
        with pytest.raises(LaunchError, match="closed the connection"):
            Lease.open(state, Ask(policy="p"), line=line)
        asked.join(10)
        assert time.monotonic() - begun < 10


def test_too_many_sockets_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    from tidegate.session.door import DoorSpec
    from tidegate_launcher.lease import Door

    with socket.socket() as sock, pytest.raises(LaunchError, match="at most"):
        Lease.open(tmp_path, Ask(policy="p"), [Door(DoorSpec("http"), (sock,))] * 25)
