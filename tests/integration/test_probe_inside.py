"""What the probe says of a sandbox's inside: sockets, files, environments, each in order and not.
Longer than a module should be, since what lies in a sandbox is of many kinds, and each is tried both ways.
"""

import base64
import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tidegate.credentials.placeholder import SHAPES, new_placeholder
from tidegate_launcher import probe

PROGRAM = Path(probe.__file__)
APART = ("unshare", "--mount")
"""What makes the probe another sandbox than the tests."""
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")


def probed(
    kind: str, *, prefix: tuple[str, ...] = (), options: tuple[str, ...] = (), **environment: str
) -> dict[str, tuple[str, str]]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    done = subprocess.run(
        [*prefix, sys.executable, str(PROGRAM), "--json", "--seconds", "0.5", *options, "--only", kind],
        capture_output=True, text=True, timeout=60, check=False, env=env,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["count"]["open"] else 0)
    return {way["way"]: (way["state"], way["evidence"]) for way in report["ways"]}


@contextlib.contextmanager
def listening(address: str, answer: bytes = b"", kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(address)
        if kind != socket.SOCK_DGRAM:
            sock.listen()
            threading.Thread(target=_serve, args=(sock, answer), daemon=True).start()
        yield


def _serve(sock: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken, _ = sock.accept()
            with taken:
                taken.recv(1000)
                taken.sendall(answer)


GATE = b"HTTP/1.1 403 Forbidden\r\n\r\n" + b'{"type":"urn:tidegate:reason:loop"}'


@needs_root
@pytest.mark.parametrize(
    ("prefix", "answer", "state"),
    [
        pytest.param(APART, b"HTTP/1.1 200 OK\r\n\r\n", "open", id="of the host"),
        pytest.param(APART, GATE, "closed", id="of the gate"),
        pytest.param((), b"HTTP/1.1 200 OK\r\n\r\n", "closed", id="of the sandbox itself"),
    ],
)
def test_a_socket_in_a_folder(tmp_path: Path, prefix: tuple[str, ...], answer: bytes, state: str) -> None:
    with listening(str(tmp_path / "agent.sock"), answer):
        patient = ("--seconds", "10")
        ways = probed(
            "unix",
            prefix=prefix,
            options=patient,
            SSH_AUTH_SOCK=str(tmp_path / "agent.sock"),
            XDG_RUNTIME_DIR=str(tmp_path),
        )
    assert ways["SSH agent"][0] == state
    found = ways["sockets in the usual folders"]
    assert (str(tmp_path) in found[1]) == (state == "open")


@needs_root
def test_a_socket_with_a_path_longer_than_an_address_is_tried_and_hides_no_other(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with _within(deep), listening("s" * 100, b"HTTP/1.1 200 OK\r\n\r\n"):
        ways = probed(
            "unix", prefix=APART, options=("--seconds", "10"), SSH_AUTH_SOCK=str(deep / ("s" * 100)), HOME=str(tmp_path)
        )
    assert ways["SSH agent"] == ("open", "it takes connections")
    assert str(deep) in ways["sockets in the usual folders"][1]


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_a_fault_of_one_socket_hides_no_other() -> None:
    others = probe.Others()
    with others.trying():
        raise OSError(errno.EIO, "it broke")
    with pytest.raises(OSError, match="it broke"):
        others.judge("none")
    others.found.add("/run/x.sock")
    with pytest.raises(probe.Result, match=r"takes connections: /run/x\.sock"):
        others.judge("none")


@needs_root
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
@pytest.mark.parametrize(("prefix", "state"), [(APART, "open"), ((), "closed")], ids=["host", "itself"])
def test_an_abstract_socket(kind: int, prefix: tuple[str, ...], state: str) -> None:
    name = f"tidegate-test-{os.getpid()}"
    with listening(f"\0{name}", kind=kind):
        ways = probed("unix", prefix=prefix)
    assert (name in ways["abstract sockets"][1]) == (state == "open")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param({"MY_TOKEN": "a-very-real-secret"}, "MY_TOKEN", id="name"),
        pytest.param({"HARMLESS": "ghp_" + "a" * 36}, "HARMLESS", id="value"),
        pytest.param({"MY_TOKEN": new_placeholder("github")}, None, id="placeholder"),
        pytest.param({"MY_TOKEN": "tg_0AbCdEfGh" + "a" * 21}, "MY_TOKEN", id="almost a placeholder"),
        pytest.param({"MY_TOKEN": new_placeholder("hex").upper()}, "MY_TOKEN", id="placeholder in capitals"),
        pytest.param({"MY_TOKEN": new_placeholder("hex") + "9f"}, "MY_TOKEN", id="placeholder inside of more"),
        pytest.param({"KEY": f"{new_placeholder('github')},ghp_{'a' * 36}"}, "KEY", id="placeholder beside a value"),
        pytest.param({"MY_TOKEN": f"{new_placeholder('generic')} wordpass"}, "MY_TOKEN", id="placeholder and more"),
        pytest.param({"MY_TOKEN": f"https://x:{new_placeholder('github')}@git.test/a/b"}, None, id="in an address"),
        pytest.param({"X": f"{new_placeholder('hex')}\n-----BEGIN EC PRIVATE KEY-----"}, "X", id="private key"),
        pytest.param({"X": base64.b64encode(b"-----BEGIN PRIVATE KEY-----").decode()}, "X", id="packed private key"),
        pytest.param({"X": base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()}, None, id="packed certificate"),
        pytest.param({"X": base64.b64encode(b"-----BEGIN PUBLIC KEY-----").decode()}, None, id="packed public key"),
        pytest.param({"TOKEN_FILE": "/run/secrets/token"}, None, id="path"),
        pytest.param({"TOKENIZERS_PARALLELISM": "false"}, None, id="no secret"),
    ],
)
def test_the_environment(variables: dict[str, str], told: str | None) -> None:
    state, evidence = probed("ambient", **variables)["environment"]
    assert state == ("open" if told else "closed")
    assert told is None or told in evidence
    assert "secret" not in evidence


def test_files_at_home(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.test login x password y")
    (tmp_path / ".npmrc").write_text(f"token={new_placeholder('npm')}\nalways-auth=true\n")
    ways = probed("ambient", HOME=str(tmp_path))
    assert ways["~/.netrc"][0] == "open"
    assert ways["~/.npmrc"] == ("closed", "placeholders only")
    assert ways["~/.pypirc"] == ("closed", "none")


@pytest.mark.parametrize("shape", [*SHAPES, "prefix:acme.v1_"])
def test_a_placeholder_of_each_shape_is_known(shape: str, tmp_path: Path) -> None:
    for text in ("{}", "{}\n", 'token = "{}"', '{{"auths": {{"x": {{"auth": "{}"}}}}}}', "https://u:{}@git.test"):
        file = tmp_path / "file"
        file.write_text(text.format(new_placeholder(shape)))
        assert judged(file) == "closed", text


def judged(file: Path) -> str:
    return probe.attempt(probe.Way("ambient", "x", lambda: probe.ambient_file(str(file))))["state"]


def private_keys(count: int) -> list[str]:
    made = (rsa.generate_private_key(65537, 1024 if one else 2048) for one in range(count))
    form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return [key.private_bytes(*form).decode() for key in made]


def test_a_private_key_is_open_whatever_letters_it_has(tmp_path: Path) -> None:
    for number, key in enumerate(private_keys(8)):
        packed = base64.b64encode(key.encode()).decode()
        lucky = key.replace("A", "tg_AbCdEfGh12", 1)
        for name, text in (("key", key), ("lucky", lucky), ("beside", key + GENERIC), ("packed", packed + GENERIC)):
            file = tmp_path / f"{name}{number}"
            file.write_text(text)
            assert judged(file) == "open", name


GENERIC, TOKEN, PASSWORD = new_placeholder("generic"), new_placeholder("github"), "hunter2"
BLOB = base64.b64encode(bytes(range(7, 250))).decode()
MIXED = {
    "netrc": "machine a.test login x password {}\nmachine b.test login y password {}\n",
    "netrc over lines": "machine a.test\n login x\n password\n  {}\nmachine b.test\n password\n  {}\n",
    "npmrc": "//a.test/:_authToken={}\n//b.test/:_password={}\n",
    "ini": "[a]\naws_secret_access_key = {}\n[b]\naws_secret_access_key = {}\n",
    "git": "https://x:{}@a.test\nhttps://y:{}@b.test\n",
    "json": '{{"a": {{"client_secret": "{}"}}, "b": {{"client_secret": "{}"}}}}',
    "yaml": "users:\n- token: {}\n- password: {}\n",
    "xml": "<password>{}</password><password>{}</password>",
    "pgpass": "a.test:5432:db:x:{}\nb.test:5432:db:y:{}\n",
    "header": "Authorization: Bearer {}\nAuthorization: Bearer {}\n",
}


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED)
def test_one_real_secret_beside_a_placeholder_is_open(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for one, other, state in (
        (TOKEN, GENERIC, "closed"), (TOKEN, PASSWORD, "open"), (PASSWORD, TOKEN, "open"), (TOKEN, BLOB, "open"),
    ):  # fmt: skip
        file.write_text(text.format(one, other))
        assert judged(file) == state, file.read_text()


@pytest.mark.parametrize("blob", [BLOB, "tg_AbCdEfGh12", BLOB + "71de9a7e" + BLOB, f"{BLOB}{TOKEN}", f"{TOKEN}/{BLOB}"])
def test_a_blob_is_open_with_a_placeholders_letters_in_it_or_beside_one(blob: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text in (blob, f"{TOKEN}\n{BLOB}\n"):
        file.write_text(text)
        assert judged(file) == "open"


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("id_a", "id_b"):
        (tmp_path / name).write_text("secret")
    for name in ("id_a", "id_b"):
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", partial(_unless, name, open))
            assert judged(tmp_path / "id_*") == "open"


def _unless(name: str, real: Any, path: Any, *more: Any, **named: Any) -> Any:
    if str(path).endswith(name):
        raise PermissionError(errno.EACCES, "Permission denied")
    return real(path, *more, **named)


def test_other_processes() -> None:
    command = [sys.executable, "-c", "input()"]
    env = {"PATH": os.environ["PATH"], "OTHER_TOKEN": "a-very-real-secret"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as other:
        state, evidence = probed("ambient")["other processes"]
        other.communicate(b"\n")
    assert state == "open"
    assert "secret" not in evidence


def test_the_kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in place of the kernel's: each with what it has to say, and one that has nothing to say just now."""
    for name, text in (("full", "x"), ("empty", ""), ("written", "")):
        (tmp_path / name).write_text(text)
    for name in ("listed/x", "bare"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "null").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(probe, "TO_WRITE", (str(tmp_path / "written"),))
    writer = os.open(tmp_path / "fifo", os.O_RDWR)
    try:
        said = {name: _kernel(tmp_path / name) for name in (*sorted(os.listdir(tmp_path)), "none")}
    finally:
        os.close(writer)
    assert said == {
        "full": ("open", "can be read"),
        "empty": ("closed", "empty"),
        "written": ("open", "can be written to"),
        "listed": ("open", "can be listed"),
        "bare": ("closed", "empty"),
        "null": ("closed", "/dev/null lies over it"),
        "fifo": ("open", "can be opened"),
        "none": ("closed", "not there"),
    }


def _kernel(path: Path) -> tuple[str, str]:
    row = probe.attempt(probe.Way("kernel", "x", lambda: probe.kernel(str(path))))
    return row["state"], row["evidence"]


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_a_file_that_wants_to_be_read_in_another_way_is_open() -> None:
    """A record of /dev/kmsg is longer than a byte: to read less is an invalid argument."""
    assert probed("kernel")["/dev/kmsg"][0] == "open"


# -- faults of the sandbox's own -------------------------------------------------------------------

PROVEN = (
    PermissionError(errno.EACCES, "x"), FileNotFoundError(errno.ENOENT, "x"), TimeoutError("timed out"),
    ConnectionRefusedError(errno.ECONNREFUSED, "x"), ConnectionResetError(errno.ECONNRESET, "x"),
    OSError(errno.ENETUNREACH, "x"), OSError(errno.EHOSTUNREACH, "x"), OSError(errno.EAFNOSUPPORT, "x"),
    socket.gaierror(socket.EAI_NONAME, "x"),
)  # fmt: skip
UNPROVEN = (
    *(OSError(getattr(errno, name), name) for name in (
        "EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EADDRNOTAVAIL", "EADDRINUSE", "EAGAIN", "EINTR", "EINVAL", "EIO",
        "ENOSPC", "EDQUOT", "EBUSY",
    )),
    socket.gaierror(socket.EAI_AGAIN, "x"), socket.gaierror(socket.EAI_MEMORY, "x"),
    socket.gaierror(socket.EAI_FAIL, "x"), socket.gaierror(socket.EAI_SYSTEM, "x"), ssl.SSLError(1, "x"), OSError("x"),
)  # fmt: skip


@pytest.mark.parametrize("fault", [*PROVEN, *UNPROVEN], ids=repr)
def test_only_a_fault_that_proves_it_closes_a_way(fault: OSError) -> None:
    def fail() -> None:
        raise fault

    assert probe.attempt(probe.Way("x", "x", fail))["state"] == ("closed" if fault in PROVEN else "not testable")


TAKEN: dict[str, Callable[[str, int], None]] = {
    "clear": lambda host, port: probe.tcp(host, port),
    "TLS": lambda host, port: probe.tls(host, port, None),
    "handshake": lambda host, port: probe.opened("here", "x").sock.close(),
    "SOCKS": lambda host, port: probe.socks(host, port, 5),
    "HTTP/2": lambda host, port: _read_h2(host, port),
}


def _read_h2(host: str, port: int) -> None:
    with probe.dial(host, port) as wire:
        answer = probe.h2_read(wire, 1)
    raise probe.Result(probe.CLOSED, str(answer))


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_a_connection_that_fails_here_has_not_ended_there(
    call: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(probe, "captures", probe.Once(lambda: True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        monkeypatch.setitem(probe.LANES, "here", lambda: probe.dial(host, port))
        monkeypatch.setattr(probe.Wire, "piece", fail)
        monkeypatch.setattr(probe.Wire, "_run", fail)
        assert probe.attempt(probe.Way("x", "x", lambda: call(host, port)))["state"] == "not testable"


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


STARVED: dict[str, Callable[[], None]] = {
    "TCP": lambda: probe.tcp("127.0.0.1", 1),
    "UDP": lambda: probe.udp("127.0.0.1", 1, b"x"),
    "DNS": lambda: probe.dns_udp("127.0.0.1", probe.ONE),
    "echo": lambda: probe.ping("127.0.0.1"),
    "unix": lambda: probe.unix("/"),
    "folders": probe.unix_folders,
    "abstract": probe.abstract,
    "disks": probe.disks,
    "file": lambda: probe.ambient_file("/etc/*"),
    "kernel": lambda: probe.kernel("/etc"),
    "processes": probe.ambient_processes,
    "link": probe.neighbours,
    "flood": probe._flood_place,  # type: ignore[dict-item]
}


@pytest.mark.parametrize("call", STARVED.values(), ids=STARVED)
def test_a_sandbox_whose_open_files_ran_out_proves_nothing(
    call: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "FLOOD", True)
    with no_more_files():
        assert probe.attempt(probe.Way("x", "x", call))["state"] == "not testable"


@pytest.mark.parametrize(
    ("address", "six", "state"),
    [
        pytest.param("2001:db8::1", False, "closed", id="no IPv6 here"),
        pytest.param("2001:db8::1", True, "not testable", id="IPv6, and no port left"),
        pytest.param("203.0.113.1", False, "not testable", id="IPv4, and no port left"),
    ],
)
def test_no_address_to_send_from(address: str, state: str, monkeypatch: pytest.MonkeyPatch, *, six: bool) -> None:
    monkeypatch.setattr(probe, "has_ipv6", lambda: six)

    def fail() -> None:
        with probe.on_way_to(address):
            raise OSError(errno.EADDRNOTAVAIL, "x")

    assert probe.attempt(probe.Way("x", "x", fail))["state"] == state


@pytest.mark.parametrize(
    ("version", "answers", "state"),
    [
        pytest.param(5, (b"\5\0", b"\5\0\0\1" + bytes(6)), "open", id="5-takes-it"),
        pytest.param(5, (b"\5\0", b"\5\2\0\1" + bytes(6)), "closed", id="5-refuses-it"),
        pytest.param(5, (b"\5\xff",), "closed", id="5-wants-a-login"),
        pytest.param(4, (b"\0\x5a" + bytes(6),), "open", id="4-takes-it"),
        pytest.param(4, (b"\0\x5b" + bytes(6),), "closed", id="4-refuses-it"),
    ],
)
def test_a_socks_server(version: int, answers: tuple[bytes, ...], state: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            taken, _ = listener.accept()
            with taken:
                for answer in answers:
                    taken.recv(100)
                    taken.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address, port = listener.getsockname()
        way = probe.Way("proxy", "x", lambda: probe.socks(address, port, version))
        assert probe.attempt(way)["state"] == state


@pytest.mark.parametrize(
    ("everything", "ends", "state"),
    [
        pytest.param(False, True, "open", id="somebody who hangs up"),
        pytest.param(True, True, "closed", id="the gate, which hangs up"),
        pytest.param(False, False, "open", id="somebody silent"),
        pytest.param(True, False, "open", id="somebody silent behind a gate"),
    ],
)
def test_a_connection_that_is_taken_without_a_word(
    monkeypatch: pytest.MonkeyPatch, *, everything: bool, ends: bool, state: str
) -> None:
    """It is somebody's, unless something takes all connections, which hangs up on what it refuses."""
    monkeypatch.setattr(probe, "captures", probe.Once(lambda: everything))
    monkeypatch.setattr(probe, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if ends:
            threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        way = probe.Way("direct", "x", lambda: probe.tcp(*listener.getsockname()))
        assert probe.attempt(way)["state"] == state
