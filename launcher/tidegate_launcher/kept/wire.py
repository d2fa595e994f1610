"""What is said to the process of a sandbox that is kept, on its unix socket, and what it answers.

One question a connection: four bytes of length, with which up to three descriptors come, and a msgpack map; the answer
is of the same form. A connection that ends before its answer is a question taken back: the command is ended.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from tidegate.errors import LaunchError, TidegateError
from tidegate_launcher.order import Launched

__all__ = ["About", "Answer", "Command", "Fault", "Question", "answered", "asked", "opened", "put"]

MOST_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = struct.Struct("!I")
_DESCRIPTORS: Final = 3
_CONNECT_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 0.001


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command for the sandbox. With `passes` it writes to the descriptors, else what it writes is in the answer."""

    argv: tuple[str, ...]
    seconds: float | None = None
    inputs: tuple[str, ...] = ()
    out: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    passes: bool = True


class About(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that is kept. `born` is wall time, in seconds since 1970; `alive`: it takes commands."""

    name: str
    id: str
    session: str
    policy: str | None
    image: str
    born: float
    alive: bool
    pid: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted: a command run, the sandbox made anew, its end, or word of it."""

    act: Literal["exec", "reset", "rm", "about"]
    command: Command | None = None


class Fault(msgspec.Struct, frozen=True):
    """Why something was not done."""

    what: str
    where: str = ""
    hint: str = ""

    @classmethod
    def of(cls, fault: TidegateError) -> Self:
        """Return a fault as it is told."""
        return cls(fault.what, fault.where, fault.hint)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    launched: Launched | None = None
    about: About | None = None
    fault: Fault | None = None

    def checked(self) -> Self:
        """Return it. Raises `LaunchError` for a fault."""
        if self.fault is not None:
            raise LaunchError(self.fault.what, where=self.fault.where, hint=self.fault.hint)
        return self


@contextlib.contextmanager
def asked(path: Path, question: Question, descriptors: Sequence[int] = ()) -> Iterator[socket.socket]:
    """Ask the sandbox that listens there, and yield the connection. Raises `LaunchError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_SECONDS)
        try:
            sock.connect(str(path))
        except OSError as fault:
            raise LaunchError(
                f"the sandbox cannot be asked: {fault.strerror or fault}", where=path.stem, hint="tidegate sandbox list"
            ) from fault
        sock.settimeout(None)
        put(sock, question, descriptors)
        yield sock


def answered(sock: socket.socket) -> Answer:
    """Wait for the answer. Raises `LaunchError` for a fault, and for none; `TimeoutError` as the socket is set."""
    try:
        answer = msgspec.msgpack.decode(_body(sock, _take(sock, _HEAD.size)), type=Answer)
    except TimeoutError:
        raise
    except (OSError, EOFError, msgspec.MsgspecError) as fault:
        raise LaunchError("the sandbox ended before it answered", hint="tidegate sandbox list") from fault
    return answer.checked()


@contextlib.contextmanager
def opened(sock: socket.socket) -> Iterator[tuple[Question, list[int]]]:
    """Yield a question and the descriptors that came with it, which are closed afterwards. Raises `LaunchError`."""
    head, descriptors, _, _ = socket.recv_fds(sock, _HEAD.size, _DESCRIPTORS)
    try:
        question = msgspec.msgpack.decode(_body(sock, head), type=Question)
        if question.act == "exec" and (question.command is None or len(descriptors) != _DESCRIPTORS):
            raise LaunchError("a command comes with its three streams", where="sandbox")
        yield question, descriptors
    except (EOFError, msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise LaunchError("the question cannot be read", where="sandbox") from fault
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def put(sock: socket.socket, message: Question | Answer, descriptors: Sequence[int] = ()) -> None:
    """Send a message."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MOST_BYTES:
        raise LaunchError("this is too long to be told", where="sandbox", hint="a smaller --output-bytes")
    socket.send_fds(sock, [_HEAD.pack(len(body))], list(descriptors))
    sock.sendall(body)


def _body(sock: socket.socket, head: bytes) -> bytes:
    if len(head) != _HEAD.size:
        raise EOFError
    (size,) = _HEAD.unpack(head)
    if size > MOST_BYTES:
        raise EOFError
    return _take(sock, size)


def _take(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes, all of them within the socket's time: who sends one at a time has no more of it."""
    found, seconds, begun = bytearray(), sock.gettimeout(), time.monotonic()
    try:
        while len(found) < size:
            if seconds is not None:
                sock.settimeout(max(begun + seconds - time.monotonic(), _LEAST_SECONDS))
            more = sock.recv(min(size - len(found), 1 << 20))
            if not more:
                raise EOFError
            found += more
    finally:
        sock.settimeout(seconds)
    return bytes(found)
