"""`doctor`: each check finds what is there, and says what to do about what is not."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.cli import doctor, doctor_wall
from tidegate.cli.doctor import checks
from tidegate.errors import LaunchError
from tidegate_launcher.wall import nft


def _by_name(file: Path, state: Path | None = None) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks(config=file, state_dir=state)}


def _file(folder: Path, text: str) -> Path:
    file = folder / "tidegate.yaml"
    file.write_text(f"version: 1\nresolver: {{servers: ['127.0.0.1:9']}}\nstate_dir: {folder}/state\n{text}")
    return file


def test_this_machine_can_run_the_gate(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = _by_name(_file(tmp_path, f"listen: {{http: '127.0.0.1:{port}'}}\n"))
    assert {found[name].state for name in ("python", "mitmproxy", "configuration", "port", "state folder")} == {"ok"}
    assert {"uids", "landlock", "seccomp", "ip", "nft", "runsc", "resolver", "open files"} <= found.keys()
    assert all(check.hint for check in found.values() if check.state == "fail")


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = _by_name(_file(tmp_path, f"listen: {{http: '127.0.0.1:{taken.getsockname()[1]}'}}\n"))
    assert found["port"].state == "fail"
    assert "listen.http" in found["port"].hint


def test_what_the_wall_needs_is_looked_at_where_there_is_a_way_in_for_it(tmp_path: Path) -> None:
    wall = {"wall rules", "forwarding"}
    assert not wall & _by_name(_file(tmp_path, "")).keys()
    found = _by_name(_file(tmp_path, "listen: {dns: '127.0.0.1:5399'}\n"))
    assert wall <= found.keys()
    on = Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() != "0"
    assert found["forwarding"].state == ("warn" if on else "ok") or "ipv6" in found["forwarding"].found
    assert all(found[name].hint for name in wall if found[name].state != "ok")


def test_the_kernel_is_asked_for_the_rules_and_none_is_made(tmp_path: Path) -> None:
    found = _by_name(_file(tmp_path, "listen: {dns: '127.0.0.1:5399'}\n"))["wall rules"]
    assert (found.state, found.found) in [("ok", "this kernel takes them"), ("warn", "no CAP_NET_ADMIN")]
    if found.state == "ok":
        listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        assert "tidegate-lo" not in listed


def test_rules_that_the_kernel_does_not_take_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise LaunchError("nft: Error: Could not process rule: No such file or directory")

    monkeypatch.setattr(nft, "check", refuse)
    monkeypatch.setattr(doctor_wall, "holds", lambda _: True)
    assert doctor_wall.wall_checks(needed=False)[0].state == "warn"
    found = doctor_wall.wall_checks(needed=True)[0]
    assert (found.state, found.found) == ("fail", "nft: Error: Could not process rule: No such file or directory")
    assert "connlimit" in found.hint


@pytest.mark.parametrize(
    ("server", "compose", "state", "found"),
    [
        ("28.2.2", "2.26.1", "ok", "28.2.2, compose 2.26.1"),
        ("20.10.24+dfsg1", "v2.20.0", "ok", "20.10.24+dfsg1, compose v2.20.0"),
        ("19.03.1", "2.26.1", "warn", "19.03.1, compose 2.26.1"),
        ("28.2.2", None, "warn", "28.2.2, compose not found"),
        (None, None, "warn", "it does not answer"),
    ],
)
def test_the_engine_is_asked_for_its_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str | None,
    compose: str | None,
    state: str,
    found: str,
) -> None:
    answers = "\n".join(
        f"{word}) {f'echo {text}' if text else 'exit 1'} ;;"
        for word, text in (("version", server), ("compose", compose))
    )
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\ncase $1 in\n{answers}\nesac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = doctor_wall.engine()
    assert (told.state, told.found) == (state, found)
    assert bool(told.hint) is (state != "ok")


def test_a_resolver_that_is_silent_is_said(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        file = _file(tmp_path, "")
        file.write_text(file.read_text().replace("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}"))
        assert _by_name(file)["resolver"].state == "warn"


def test_a_bad_file_is_a_failed_check_and_no_crash(tmp_path: Path) -> None:
    found = _by_name(_file(tmp_path, "polices: {}\n"))
    assert found["configuration"].state == "fail"
    assert "polices" in found["configuration"].hint


@pytest.mark.parametrize(
    ("make", "state", "said"),
    [
        pytest.param(lambda file: file.touch(0o400), "ok", "mode 0400", id="its own"),
        pytest.param(lambda file: file.touch(0o644), "warn", "mode 0644", id="open to all"),
        pytest.param(lambda file: file.mkdir(), "fail", "no regular file", id="a folder"),
        pytest.param(lambda file: None, "fail", "No such file", id="missing"),
    ],
)
def test_a_secrets_file_is_looked_at(tmp_path: Path, make: Callable[[Path], None], state: str, said: str) -> None:
    make(tmp_path / "secret")
    text = """
credentials:
  one:
    {source: {file: secret}, for: [{host: a.test}], place: {header: X-Key, format: "{secret}"}, placeholder: {env: ONE}}
policies: {p: {allow: [{host: a.test, credential: one}]}}
"""
    found = _by_name(_file(tmp_path, text))["secret one"]
    assert (found.state, said in found.found) == (state, True)
    assert bool(found.hint) is (state != "ok")
