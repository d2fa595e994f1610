"""The admin client: whatever is at the other end of the socket, the fault is said in plain words."""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.cli import client
from tidegate.cli.client import AdminClient, segment
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
