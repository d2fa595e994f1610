"""The admin client: whatever is at the other end of the socket, the fault is said in plain words."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.cli import client
from tidegate.cli.client import AdminClient, segment
from tidegate.cli.main import main
from tidegate.errors import TidegateError


@contextmanager
def server(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """One unix socket that gives the same answer to each request."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    return
                with connection:
                    heard.append(whole(connection))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            sock.shutdown(socket.SHUT_RDWR)
            thread.join()


def whole(connection: socket.socket) -> bytes:
    """Return a request to its last byte: an end with some unread would break the other's pipe."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return data


CHUNKED = b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n"


def reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def test_a_request_and_its_answer(tmp_path: Path) -> None:
    with server(tmp_path / "s", reply(200, b'{"id": "x"}')) as heard:
        assert AdminClient(tmp_path / "s").post("/v1/sessions", {"policy": "p", "ttl_seconds": None}) == {"id": "x"}
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/sessions HTTP/1.1")
    assert json.loads(body) == {"policy": "p"}, "what is not given is not sent"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(reply(422, b'{"error": {"what": "no", "where": "w", "hint": "h"}}'), "w: no (h)", id="words"),
        pytest.param(reply(409, b'{"error": {"problems": ["a:1: x", "a:2: y"]}}'), "a:1: x; a:2: y", id="all problems"),
        pytest.param(reply(500, b"[]"), "[]", id="no object"),
        pytest.param(reply(502, b"<html>"), "<html>", id="no JSON"),
        pytest.param(b"SSH-2.0-x\r\n", "did not answer", id="no HTTP"),
        pytest.param(b"", "closed the connection", id="nothing"),
    ],
)
def test_a_refusal_is_a_fault(tmp_path: Path, answer: bytes, said: str) -> None:
    with server(tmp_path / "s", answer), pytest.raises(TidegateError) as caught:
        AdminClient(tmp_path / "s").get("/v1/status")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 500 X\r\nContent-Length: 99999999999999999999999\r\n\r\nx", id="a length that is none"),
        pytest.param(b"HTTP/1.1 500 X\r\nContent-Length: 8000000000\r\n\r\nx", id="a length for no memory"),
        pytest.param(
            b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\nx", id="a chunk without end"
        ),
        pytest.param(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nx", id="a chunk below nothing"),
        pytest.param(b"HTTP/1.1 500 X\r\n\r\n" + b"[" * 100_000, id="a depth without end"),
        pytest.param(b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 5000, id="a body without end"),
    ],
)
def test_no_answer_is_more_than_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """A fallen gate answers its operator, and the watch of its wall, as it likes."""
    monkeypatch.setattr(client, "_MOST_BYTES", 4000)
    with server(tmp_path / "s", answer), pytest.raises(TidegateError):
        AdminClient(tmp_path / "s").get("/v1/status")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(CHUNKED + b"-1\r\n", id="a chunk of all that comes"),
        pytest.param(CHUNKED + b"ffffffffff\r\n", id="a chunk without end"),
        pytest.param(CHUNKED + b"0\r\n" + b"x: y\r\n" * 1000, id="trailers without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="without a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="less than nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 8000000000\r\n\r\n", id="of a length"),
    ],
)
def test_of_an_answer_without_end_little_is_taken(tmp_path: Path, head: bytes) -> None:
    """Root asks, by the watch and by hand: a fallen gate would have all of the machine's memory."""
    taken = 0

    def pour(listener: socket.socket) -> None:
        nonlocal taken
        with listener.accept()[0] as sock, contextlib.suppress(OSError):
            sock.sendall(head)
            while taken < 64 << 20:
                taken += sock.send(b"x: y\r\n" * 10_000)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=pour, args=(listener,))
        thread.start()
        with pytest.raises(TidegateError):
            AdminClient(tmp_path / "s", seconds=5, most_bytes=16 * 1024).get("/v1/status")
        thread.join(10)
    assert taken < 2 << 20


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", id="with a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="without a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n", id="to be closed"),
        pytest.param(CHUNKED + b"fff\r\n", id="in chunks"),
        pytest.param(b"HTTP/1.1 ", id="in its status line"),
    ],
)
def test_an_answer_that_drips_is_cut_at_its_time(tmp_path: Path, head: bytes) -> None:
    """A time-out of the socket's begins anew with each byte: a fallen gate would hold the watch by one a second."""
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as sock, contextlib.suppress(OSError):
            sock.sendall(head)
            while not over.wait(0.05):
                sock.sendall(b"1")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        begun = time.monotonic()
        try:
            with contextlib.suppress(TidegateError):
                AdminClient(tmp_path / "s", seconds=0.5).get("/v1/status")
            assert time.monotonic() - begun < 3
        finally:
            over.set()
            thread.join(5)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", id="shorter than it says"),
        pytest.param(reply(200, b" " * 5000 + b"{}"), id="longer than was allowed"),
    ],
)
def test_an_answer_that_is_not_whole_is_no_good_one(tmp_path: Path, answer: bytes) -> None:
    with server(tmp_path / "s", answer), pytest.raises(TidegateError, match="did not answer"):
        AdminClient(tmp_path / "s", most_bytes=4000).ready()


def test_no_link_is_followed_to_a_socket(tmp_path: Path) -> None:
    """Root talks to sockets in a folder of the gate's user."""
    with server(tmp_path / "other", reply(200, b"{}")) as heard:
        (tmp_path / "s").symlink_to(tmp_path / "other")
        with pytest.raises(TidegateError):
            AdminClient(tmp_path / "s").get("/livez")
        assert AdminClient(tmp_path / "other").get("/livez") == {}
    assert len(heard) == 1


def test_no_gate(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="no gate is running there"):
        AdminClient(tmp_path / "s").get("/livez")


def test_a_socket_that_nobody_serves_any_more(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
    with pytest.raises(TidegateError, match="no gate is running there"):
        AdminClient(tmp_path / "s").get("/livez")


def test_another_users_socket() -> None:
    # What is tried is the socket's own mode.
    with open_folder() as folder, server(folder / "s", b""):
        (folder / "s").chmod(0)
        with _not_root(), pytest.raises(TidegateError, match="only the operator"):
            AdminClient(folder / "s").get("/livez")


@contextmanager
def _not_root() -> Iterator[None]:
    """Without root's rights over files, which would open every socket."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_id_from_a_user_stays_one_segment() -> None:
    assert segment("../harness?x=1#é") == "..%2Fharness%3Fx%3D1%23%C3%A9"


_DRIVING = "\x1b]0;owned\x07\r\n\x9b2J\u202etidegate: whole"


def _plain(text: str) -> bool:
    return text.isprintable() and len(text) < 20_000


@pytest.mark.parametrize("status", [422, 500])
@pytest.mark.parametrize(
    "error",
    [
        pytest.param({"what": _DRIVING, "where": _DRIVING, "hint": _DRIVING}, id="words"),
        pytest.param({"problems": [_DRIVING, {_DRIVING: [_DRIVING]}]}, id="problems"),
        pytest.param({"what": "x" * 5_000_000, "where": "y" * 5_000_000, "hint": "z" * 5_000_000}, id="long"),
        pytest.param({"what": [[_DRIVING]], "where": {"a": _DRIVING}}, id="other forms"),
    ],
)
def test_a_refusal_cannot_drive_the_terminal(tmp_path: Path, status: int, error: dict[str, object]) -> None:
    answer = reply(status, json.dumps({"error": error}).encode())
    with server(tmp_path / "s", answer), pytest.raises(TidegateError) as caught:
        AdminClient(tmp_path / "s").get("/v1/status")
    assert _plain(str(caught.value))


def test_very_many_problems_are_told_up_to_a_bound(tmp_path: Path) -> None:
    answer = reply(422, json.dumps({"error": {"problems": ["x" * 50] * 90_000}}).encode())
    with server(tmp_path / "s", answer), pytest.raises(TidegateError, match=r"; 89980 more$") as caught:
        AdminClient(tmp_path / "s").get("/v1/status")
    assert _plain(str(caught.value))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_DRIVING.encode(), id="no JSON"),
        pytest.param(json.dumps([_DRIVING]).encode(), id="no object"),
        pytest.param(b'{"a":' * 200_000, id="nested without end"),
        pytest.param(b"[" * 990 + b"]" * 990, id="nested deep"),
    ],
)
def test_what_is_no_answer_cannot_drive_the_terminal(tmp_path: Path, body: bytes) -> None:
    with server(tmp_path / "s", reply(500, body)), pytest.raises(TidegateError) as caught:
        AdminClient(tmp_path / "s").get("/v1/status")
    assert _plain(str(caught.value))


def test_no_text_of_an_answer_can_drive_the_terminal(tmp_path: Path) -> None:
    answer = {"a": _DRIVING, _DRIVING: [{"b": _DRIVING}], "n": 1, "plain": "ü \\x1b"}
    with server(tmp_path / "s", reply(200, json.dumps(answer).encode())):
        found = AdminClient(tmp_path / "s").get("/v1/status")
    assert "\x1b" not in str(found.values())
    assert all(char.isprintable() for char in json.dumps(found, ensure_ascii=False))
    assert (found["n"], found["plain"]) == (1, "ü \\x1b"), "what can be shown stays as it is"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_DRIVING.encode() + b"\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 \x1b]0;owned\x07 X\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 200 X\r\n" + b"\x1b[2J" * 20_000, id="a long head"),
        pytest.param(reply(200, json.dumps({"problems": [_DRIVING, "x" * 5_000_000]}).encode()), id="warnings"),
    ],
)
def test_what_is_said_of_an_answer_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    with server(tmp_path / "admin.sock", answer), pytest.raises(SystemExit):
        main(["health", "--state-dir", str(tmp_path)])
    out, err = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in out + err)
    assert len(out + err) < 20_000
    assert not [line for line in err.splitlines() if line.startswith("tidegate: whole")]
