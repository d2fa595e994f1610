"""The order of a launch, by what a boundary is given and what the gate is told; real ones are in integration."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from tidegate.errors import LaunchError
from tidegate.session.door import Answer, LaunchNote, Opened, Refusal, Request
from tidegate.session.identity import SessionId
from tidegate_launcher.boundary import Capability, Ground, Sink
from tidegate_launcher.job import Job, Limits
from tidegate_launcher.lease import Ask
from tidegate_launcher.order import Launched, Order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.run import launch

PLACEHOLDER = "ghp_placeholder-of-this-session"
OPENED = Answer(
    opened=Opened(id=SessionId("s"), token="t", env={"GITHUB_TOKEN": PLACEHOLDER, "SSL_CERT_FILE": "/tidegate/ca.pem"})
)


class Told(list[LaunchNote]):
    """What a gate was told of launches; `refuse` is answered to the one that is the number of it."""

    refuse = 0


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """A gate that opens one session in `tmp_path/state`, and keeps what it is told."""
    notes, state = Told(), tmp_path / "state"
    state.mkdir()
    for name in ("ca.pem", "bundle.pem"):
        (state / name).write_text(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(state / "launch.sock"))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, notes))
        thread.start()
        try:
            yield notes
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _serve(listener: socket.socket, notes: Told) -> None:
    with contextlib.suppress(OSError), listener.accept()[0] as sock:
        while data := sock.recv(65536):
            asked, answer = msgspec.msgpack.decode(data, type=Request), OPENED
            if asked.launch is not None:
                notes.append(asked.launch)
                answer = Answer(error=Refusal("no room")) if len(notes) == notes.refuse else Answer()
            sock.send(msgspec.msgpack.encode(answer))


class Boundary:
    """One that runs nothing: it keeps what it was given, and ends as it is told."""

    def __init__(self, ends: BaseException | Result | None = None, lacks: Capability | None = None) -> None:
        self._ends, self._lacks = ends, lacks
        self.jobs: list[Job] = []
        self.seen: dict[str, str] = {}

    @property
    def name(self) -> str:
        return "stub"

    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability) - {self._lacks}

    def run(
        self, job: Job, ground: Ground, *, stdin: BinaryIO | None = None, sink: Sink | None = None,
        collect: Callable[[int], None] | None = None,
        cancel: int | None = None,
    ) -> Result:  # fmt: skip
        self.jobs.append(job)
        assert ground.scratch.is_dir()
        for bind in job.binds:
            for path in (bind.source, *bind.source.rglob("*")):
                if path.is_file():
                    self.seen[f"{bind.target}/{path.relative_to(bind.source)}"] = path.read_text()
        if isinstance(self._ends, BaseException):
            raise self._ends
        return self._ends or Result(outcome=Outcome.EXITED, untrusted_exit_code=3, seconds=1.5)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Launched]:
    def run(boundary: Boundary, **more: object) -> Launched:
        wanted = {"argv": ("true",), "root": tmp_path, "image": "sha", "ask": Ask(policy="p"), **more}
        order = Order(**wanted)  # type: ignore[arg-type]  # the names are the order's own
        place = LaunchPlace(tmp_path / "place")
        try:
            return launch(order, boundary, place=place, state=tmp_path / "state")
        finally:
            assert not list((tmp_path / "place").glob("*"))

    return run


def test_a_launch_is_told_at_its_start_and_at_its_end(told: Told, run: Callable[..., Launched]) -> None:
    launched = run(Boundary(), limits=Limits(seconds=5))
    begun, ended = told
    assert (begun.act, begun.boundary, begun.net, begun.image, begun.argv) == ("start", "stub", "none", "sha", "true")
    assert begun.limits is not None
    assert begun.limits["seconds"] == 5.0
    assert (ended.act, ended.outcome, ended.untrusted_exit_code, ended.seconds) == ("end", "exited", 3, 1.5)
    assert (launched.session, launched.id) == ("s", begun.id)
    assert launched.result.exit_code == 3


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        pytest.param(LaunchError("no place"), "launch_error", id="the boundary's"),
        pytest.param(KeyboardInterrupt(), "interrupted", id="a signal"),
        pytest.param(BrokenPipeError(), "interrupted", id="nobody reads"),
    ],
)
def test_a_launch_that_breaks_off_has_an_end_on_record(
    told: Told, run: Callable[..., Launched], fault: BaseException, outcome: str
) -> None:
    with pytest.raises(type(fault)):
        run(Boundary(fault))
    assert [(note.act, note.outcome) for note in told] == [("start", None), ("end", outcome)]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"inputs": (Path("/no/such"),)}, id="an input"),
        pytest.param({"argv": ("a\0b",)}, id="a NUL byte"),
        pytest.param({"argv": ("a\udcff",)}, id="no UTF-8"),
        pytest.param({"argv": ("x" * 2_000_000,)}, id="far too long"),
        pytest.param({"environment": (("A", "\udcff"),)}, id="a variable"),
    ],
)
def test_a_launch_that_cannot_begin_is_refused_on_record(
    told: Told, run: Callable[..., Launched], wrong: dict[str, object]
) -> None:
    boundary = Boundary()
    with pytest.raises(LaunchError):
        run(boundary, **wrong)
    assert [(note.act, note.outcome) for note in told] == [("refuse", "launch_error")]
    assert boundary.jobs == []


def test_nothing_runs_that_could_not_be_recorded(told: Told, run: Callable[..., Launched]) -> None:
    told.refuse, boundary = 1, Boundary()
    with pytest.raises(LaunchError, match="no room"):
        run(boundary)
    assert boundary.jobs == []


def test_a_fault_is_told_also_when_it_cannot_be_recorded(told: Told, run: Callable[..., Launched]) -> None:
    told.refuse = 2
    with pytest.raises(LaunchError, match="no place"):
        run(Boundary(LaunchError("no place")))


def test_the_environment_is_ours_the_users_and_the_sessions_in_that_order(
    told: Told, run: Callable[..., Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    boundary = Boundary()
    run(boundary, environment=(("PATH", "/opt"), ("SSL_CERT_FILE", "/tmp/evil"), ("MINE", "a")))
    assert dict(boundary.jobs[0].environment) == {
        "PATH": "/opt", "LANG": "C.UTF-8", "MINE": "a", "SSL_CERT_FILE": "/tidegate/ca.pem",
        "GITHUB_TOKEN": PLACEHOLDER,
    }  # fmt: skip


def test_it_is_given_its_certificates_and_copies_of_its_inputs(
    told: Told, run: Callable[..., Launched], tmp_path: Path
) -> None:
    (tmp_path / "data.txt").write_text("data")
    boundary = Boundary()
    run(boundary, inputs=(tmp_path / "data.txt",))
    assert boundary.seen == {
        "/tidegate/ca.pem": "ca.pem", "/tidegate/bundle.pem": "bundle.pem", "/in/data.txt": "data",
    }  # fmt: skip
    assert all(bind.source.parts[:-2] != (tmp_path / "data.txt").parts[:-1] for bind in boundary.jobs[0].binds)


@pytest.mark.parametrize(
    ("argv", "noted"),
    [
        pytest.param(("curl", "-H", f"X: {PLACEHOLDER}"), "curl -H 'X: «GITHUB_TOKEN»'", id="a placeholder"),
        pytest.param(("x" * 5000,), "x" * 4080 + "…+920", id="long"),
        pytest.param(("a b", "c"), "'a b' c", id="words"),
    ],
)
def test_a_command_line_on_record_is_bounded_and_holds_no_placeholder(
    told: Told, run: Callable[..., Launched], argv: tuple[str, ...], noted: str
) -> None:
    run(Boundary(), argv=argv)
    assert [note.argv for note in told] == [noted] * 2


@pytest.mark.parametrize(
    ("order", "without", "said"),
    [
        pytest.param({"net": "uds"}, Capability.NET_UDS, "a unix socket to the gate", id="uds"),
        pytest.param({"net": "veth", "ask": None}, None, "leads to a gate", id="a network without a gate"),
        pytest.param({}, Capability.MEMORY, "a limit on memory", id="a limit that cannot be held"),
        pytest.param({"net": "veth"}, Capability.NET_VETH, "a link to the gate", id="a network that cannot be had"),
        pytest.param({"out": Path("/proc/nothing/here")}, None, "folder for outputs", id="no place for outputs"),
    ],
)
def test_what_cannot_be_held_is_refused_before_anything_is_made(
    told: Told, run: Callable[..., Launched], order: dict[str, object], without: Capability | None, said: str
) -> None:
    boundary = Boundary(lacks=without)
    with pytest.raises(LaunchError, match=said):
        run(boundary, **order)
    assert (told, boundary.jobs) == ([], [])


def test_without_a_gate_nothing_is_told_and_nothing_given(run: Callable[..., Launched]) -> None:
    boundary = Boundary()
    assert run(boundary, ask=None).session == ""
    assert boundary.jobs[0].binds == ()
    assert boundary.jobs[0].net == "none"
