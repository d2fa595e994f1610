"""The doors of a sandbox without a network: sockets that another user may dial, wherever the folder lies."""

import os
import socket
from pathlib import Path

import pytest

from tests.lab.folder import open_folder
from tidegate.errors import LaunchError
from tidegate_launcher.net.shim import SOCKETS
from tidegate_launcher.net.sockets import listen_in


def test_there_is_a_door_for_each_port_that_the_shim_leads_to(tmp_path: Path) -> None:
    doors = listen_in(tmp_path / "doors")
    assert {door.spec.port: door.spec.way for door in doors} == {8080: "http", 443: "tls", 80: "tls"}
    assert sorted(os.listdir(tmp_path / "doors")) == sorted(SOCKETS.values())
    for door in doors:
        with door.sockets[0] as sock, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "doors" / SOCKETS[door.spec.port]))
            sock.accept()[0].close()


def test_any_user_may_dial_them_whatever_the_umask() -> None:
    with open_folder() as folder:
        before = os.umask(0o077)
        try:
            doors = listen_in(folder / "doors")
        finally:
            os.umask(before)
        assert (folder / "doors").stat().st_mode & 0o777 == 0o755
        assert {path.stat().st_mode & 0o777 for path in (folder / "doors").iterdir()} == {0o666}
        for door in doors:
            door.sockets[0].close()


def test_the_folder_may_lie_deeper_than_a_sockets_name_is_long(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a" * 40] * 5)
    deep.mkdir(parents=True)
    for door in listen_in(deep / "doors"):
        door.sockets[0].close()


def test_a_folder_that_is_there_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "doors").mkdir()
    with pytest.raises(LaunchError, match="doors cannot be made"):
        listen_in(tmp_path / "doors")
