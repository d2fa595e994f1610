"""Whoever started the gate is told, once, in the form it asked for; a deaf one is no fault."""

import os
import socket
from pathlib import Path

import pytest

from tidegate.runtime.herald import tell_ready, tell_stopping


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    name = f"@tidegate-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))
        environ = {"NOTIFY_SOCKET": name}
        tell_ready(environ)
        tell_stopping(environ)
        assert [sock.recv(100), sock.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_the_starter_gets_one_byte_and_then_the_end() -> None:
    reader, writer = os.pipe()
    environ = {"TIDEGATE_READY_FD": str(writer)}
    tell_ready(environ)
    tell_ready(environ)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"1"
    assert environ == {}


def test_a_manager_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    tell_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})


def test_nobody_asked() -> None:
    tell_ready({})
    tell_stopping({})
