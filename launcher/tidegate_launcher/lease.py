"""The link to the gate: a session with its doors, for as long as this is open.

The gate holds nothing that a launcher must give back. When the connection ends, in order or because this process was
killed, the doors are closed, the session is revoked, and no credential is lent for it any more.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tidegate.errors import LaunchError
from tidegate.session.call import ToolCall
from tidegate.session.door import MESSAGE_BYTES, MOST_SOCKETS, Answer, DoorSpec, LaunchNote, Opened, Opening, Request
from tidegate_launcher.readiness import is_readable

__all__ = ["Ask", "Door", "Lease", "Line"]

_SECONDS: Final = 15.0
_LEAST_SECONDS: Final = 0.001
_FILES: Final = ("ca.pem", "bundle.pem")
_RUNNING: Final = ("admin.sock", "gate/admin.sock")
"""What is there while a gate runs, or a half of one: the keeper's like a whole one's, the gate's."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of the gate. `names`: the policy's exact names too, for a hosts file.

    `call`: the session is for one tool call; with a parent it has its owner, and is over when that is.
    """

    policy: str
    credentials: tuple[str, ...] = ()
    owner: str = "default"
    ttl_seconds: float | None = None
    names: bool = False
    call: ToolCall | None = None


class Door(msgspec.Struct, frozen=True):
    """A way into the gate: its listening socket, for `dns` the UDP one and the TCP one.

    `port` is what the sandbox's clients dial, where the socket is a unix socket with a shim in front.
    """

    spec: DoorSpec
    sockets: tuple[socket.socket, ...]


class Lease:
    """A session of the gate's, live while this is open. Not for several threads at once."""

    def __init__(self, sock: socket.socket, opened: Opened, files: Mapping[str, bytes]) -> None:
        self._sock = sock
        self._unheard = 0
        self.id = opened.id
        self.token = opened.token
        self.environment = dict(opened.env)
        self.names = opened.names
        self.files = dict(files)
        """`ca.pem` and `bundle.pem`, which the environment expects in `/tidegate`."""

    @classmethod
    def open(cls, state: Path, ask: Ask, doors: Sequence[Door] = (), *, line: "Line | None" = None) -> Self:
        """Open a session at the gate whose `state_dir` this is. The doors' sockets may be closed here afterwards.

        `line`: by this one, which another thread may cut. Raises `LaunchError`.
        """
        sockets = [sock for door in doors for sock in door.sockets]
        if len(sockets) > MOST_SOCKETS:
            raise LaunchError(f"a session has at most {MOST_SOCKETS} sockets", where="doors")
        opening = Opening(
            policy=ask.policy,
            credentials=ask.credentials,
            owner=ask.owner,
            ttl_seconds=ask.ttl_seconds,
            doors=tuple(door.spec for door in doors),
            names=ask.names,
            call=ask.call,
        )
        sock = (line or Line()).connected(state)
        try:
            _say(sock, Request(open=opening), sockets)
            answer = _read(_received(sock, time.monotonic() + _SECONDS))
            if answer.opened is None:
                raise LaunchError("the gate opened no session", where=str(state / "launch.sock"))
            return cls(sock, answer.opened, _files(state))
        except BaseException:
            sock.close()
            raise

    def record(self, **fields: Any) -> None:
        """Put a launch of this session on record: the fields of `LaunchNote`. Raises `LaunchError`."""
        try:
            note = msgspec.convert(fields, LaunchNote)
        except msgspec.ValidationError as fault:
            raise LaunchError(f"this cannot be put on record: {fault}", where="launch") from fault
        end = time.monotonic() + _SECONDS
        self._unheard += 1  # before it is said: we may be interrupted right after
        try:
            _say(self._sock, Request(launch=note))
        except LaunchError:
            self._unheard -= 1
            raise
        while self._unheard > 1:  # late answers to what was asked before: taken for this one's, they would vouch for it
            _received(self._sock, end)
            self._unheard -= 1
        answer = _received(self._sock, end)
        self._unheard -= 1
        _read(answer)

    def alive(self) -> bool:
        """Tell whether the gate still holds it: it says nothing unasked, and at its end it closes the connection."""
        return not is_readable(self._sock.fileno())

    def close(self) -> None:
        """Give the session back: it is revoked, its doors are closed."""
        # Not by closing alone: a process that was forked meanwhile has the descriptor too.
        with contextlib.suppress(OSError):  # the gate was faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Lease({self.id})"


class Line:
    """A connection to come, which another thread may cut at any time: who waits for an answer then gets none."""

    def __init__(self) -> None:
        """Take a descriptor for it. Raises `LaunchError`."""
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as fault:
            raise LaunchError(
                f"no gate can be asked: {fault.strerror}", where="launch.sock", hint="ulimit -n"
            ) from fault

    def connected(self, state: Path) -> socket.socket:
        """Return it, connected; it is the caller's then. Raises `LaunchError`."""
        path = state / "launch.sock"
        self._sock.settimeout(_SECONDS)
        try:
            self._sock.connect(str(path))
        except OSError as fault:
            self._sock.close()
            raise LaunchError(
                f"no gate can be asked: {fault.strerror or fault}", where=str(path), hint=_hint(state)
            ) from fault
        return self._sock

    def close(self) -> None:
        """Close it, if nobody has."""
        self._sock.close()

    def cut(self) -> None:
        """Shut it: nothing is sent by it any more, nor waited for, also where it is connected only later."""
        with contextlib.suppress(OSError):  # it is over
            self._sock.shutdown(socket.SHUT_RDWR)


def _hint(state: Path) -> str:
    # Not by the half's folder, which a whole gate has too and leaves behind.
    if any((state / name).exists() for name in _RUNNING) and not (state / "launch.sock").exists():
        return "this gate runs in halves (--only), and launches need one whole: start `tidegate up` without --only"
    return "start one with `tidegate up`, or name its state folder"


def _say(sock: socket.socket, request: Request, sockets: Sequence[socket.socket] = ()) -> None:
    data = msgspec.msgpack.encode(request)
    if len(data) > MESSAGE_BYTES:
        raise LaunchError("what is asked is too long", where="launch.sock")
    with _translated():
        sock.settimeout(_SECONDS)
        socket.send_fds(sock, [data], [one.fileno() for one in sockets])


def _received(sock: socket.socket, end: float) -> bytes:
    with _translated():
        sock.settimeout(max(end - time.monotonic(), _LEAST_SECONDS))
        answer = sock.recv(MESSAGE_BYTES)
        if not answer:
            raise ConnectionResetError
        return answer


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except TimeoutError as fault:
        raise LaunchError(f"the gate did not answer within {_SECONDS:g} s", hint="tidegate health") from fault
    except ConnectionError as fault:
        raise LaunchError(
            "the gate closed the connection",
            where="launch.sock",
            hint="it serves root, and the user that it runs as; it may also have stopped: tidegate health",
        ) from fault
    except OSError as fault:
        raise LaunchError(f"the gate cannot be asked: {fault.strerror}", where="launch.sock") from fault


def _read(data: bytes) -> Answer:
    try:
        answer = msgspec.msgpack.decode(data, type=Answer)
    except msgspec.MsgspecError as fault:
        raise LaunchError("the gate's answer cannot be read", hint="is it of the same version?") from fault
    if answer.error is not None:
        raise LaunchError(answer.error.what, where=answer.error.where, hint=answer.error.hint)
    return answer


def _files(state: Path) -> dict[str, bytes]:
    """Read what everybody may: a message has no room for a bundle."""
    found = {}
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (state / name).read_bytes()
    if len(found) < len(_FILES):
        raise LaunchError("the gate's certificates are not there", where=str(state), hint="is this its state folder?")
    return found
