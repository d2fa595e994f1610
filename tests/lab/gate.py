"""A real gate: `tidegate up` as a process of its own, on loopback, in a temporary state folder.

    with Authority() as ca, dns_server(…) as dns, upstream(ca=ca) as server:
        config = configuration(allow=[rule("api.allowed.test", port=server.port)], dns=dns, ca=ca)
        with gate(config) as tidegate:
            session = tidegate.session()
            with session.tunnel("api.allowed.test", server.port, ca…) …
            tidegate.audit(type="http", phase="end")

A module can share one gate (`scope="module"` around `gate(...)`): sessions are cheap, gates are not.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab.certs import Authority
from tests.lab.dns import DnsServer
from tests.lab.sockets import free_port

__all__ = ["Gate", "GateDied", "Session", "configuration", "environment", "gate", "rule", "tidegate_command"]

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = ["127.0.0.0/8", "::1/128"]


class GateDied(Exception):
    """The gate ended, or did not become ready in time; the message is its own stderr."""


def tidegate_command(*arguments: str) -> list[str]:
    """Return the argument list that runs the `tidegate` of this checkout."""
    return [sys.executable, "-P", "-m", "tidegate", *arguments]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment for a gate: this one, without proxies, with the source roots on the path."""
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("proxy", "addons", "launcher"))
    env["PYTHONUNBUFFERED"] = "1"
    return env | dict(extra or {})


def rule(host: str, *, port: int | None = None, addresses: Sequence[str] = LOOPBACK, **more: Any) -> dict[str, Any]:
    """Return a rule for a server of the lab: `addresses` is loopback, `port` its port."""
    ports = {} if port is None else {"ports": [port]}
    return {"host": host, **ports, "addresses": list(addresses), **more}


def configuration(
    *,
    allow: Sequence[Mapping[str, Any]] = (),
    deny: Sequence[Mapping[str, Any]] = (),
    dns: DnsServer | None = None,
    ca: Authority | None = None,
    credentials: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a `tidegate.yaml` as a dict: one policy named `default`; `more` are further top-level keys.

    `policy` adds keys to that policy. All names go to `dns`; without one to a port where nothing listens,
    so that no test asks the machine's resolver.
    """
    nowhere = f"127.0.0.1:{free_port()}"
    config: dict[str, Any] = {
        "version": 1,
        "workers": 1,
        "resolver": {"servers": [dns.address if dns else nowhere], "timeout_seconds": 2},
        "upstream": {"extra_ca_files": [str(ca.pem)] if ca else []},
        "policies": {"default": {"allow": list(allow), "deny": list(deny), **(policy or {})}},
    }
    if credentials:
        config["credentials"] = dict(credentials)
    return config | more


@dataclasses.dataclass(frozen=True)
class Session:
    """An open session: what `session new` answers."""

    id: str
    token: str
    proxy_url: str
    env: dict[str, str]

    def placeholder(self, variable: str) -> str:
        """Return the placeholder in one of its variables."""
        return self.env[variable]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("admin", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Gate:
    """A running gate; see the module's text."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        folder: Path,
        host: str,
        port: int,
        env: Mapping[str, str],
        prefix: Sequence[str],
    ) -> None:
        self.process = process
        self.folder = folder
        self.state = folder / "state"
        self.config_file = folder / "tidegate.yaml"
        self.host = host
        self.port = port
        self._env = dict(env)
        self._prefix = list(prefix)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # -- talk of the process

    @property
    def stderr(self) -> str:
        """All that the gate has said so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_line(self, *texts: str, timeout: float = 10) -> None:
        """Wait until a line of stderr holds one of `texts`; raise `GateDied` if the gate ends before."""

        def found() -> bool:
            return any(text in line for line in self._lines for text in texts)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, timeout)
            if not found():
                raise GateDied(f"no {' or '.join(texts)!r} within {timeout} s:\n{''.join(self._lines)}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- admin

    def admin(self, method: str, path: str, body: Any = None, *, timeout: float = 10) -> tuple[int, Any]:
        """Send one request to `admin.sock`; return status and decoded JSON (or text)."""
        connection = _UnixConnection(self.state / "admin.sock", timeout)
        with contextlib.closing(connection):
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"content-type": "application/json"} if payload else {})
            answer = connection.getresponse()
            data = answer.read()
            try:
                return answer.status, json.loads(data)
            except ValueError:
                return answer.status, data.decode(errors="replace")

    def cli(self, *arguments: str, timeout: float = 30, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `tidegate …` against this gate."""
        return subprocess.run(
            [*self._prefix, *tidegate_command(*arguments)],
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def session(
        self, *, policy: str = "default", credentials: Sequence[str] = (), source: str | None = None, **more: Any
    ) -> Session:
        """Open a session through `admin.sock`; `source` is its one network (`more`: ttl_seconds, owner, proxy_host)."""
        body = {"policy": policy, "credentials": list(credentials), **({"from": source} if source else {}), **more}
        status, answer = self.admin("POST", "/v1/sessions", body)
        if status not in (200, 201):
            raise AssertionError(f"no session: {status} {answer}")
        return Session(answer["id"], answer["token"], answer["proxy_url"], dict(answer["env"]))

    def reload(self, config: Mapping[str, Any] | str | None = None) -> tuple[int, Any]:
        """Write `config` (a dict, or text as it is) and ask for a reload; return status and answer."""
        if config is not None:
            _write_config(self.config_file, config)
        return self.admin("POST", "/v1/reload")

    # -- audit

    def audit(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the audit lines whose fields equal `wanted`, in the order of their clocks."""
        lines = []
        for path in sorted((self.state / "audit").glob("*/*.jsonl")):
            text = path.read_text()
            # The last line may be half written.
            lines += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        found = [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]
        return sorted(found, key=lambda line: (line["ts"], line["chain"], line["seq"]))

    def wait_audit(
        self, condition: Callable[[list[dict[str, Any]]], bool] = bool, *, timeout: float = 10, **wanted: Any
    ) -> list[dict[str, Any]]:
        """Return `audit(**wanted)` as soon as `condition` holds for it; fail with what there is."""
        deadline = time.monotonic() + timeout
        while True:
            lines = self.audit(**wanted)
            if condition(lines):
                return lines
            if time.monotonic() > deadline:
                raise AssertionError(f"not in the log within {timeout} s: {wanted}; last: {self.audit()[-5:]}")
            # The log is a file: nothing else can be waited for.
            time.sleep(0.02)

    # -- end

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the gate did not end on SIGTERM:\n{self.stderr}") from None


class _Plain(yaml.SafeDumper):
    """Writes a list that stands twice twice: the gate takes no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_config(path: Path, config: Mapping[str, Any] | str) -> None:
    text = (
        config
        if isinstance(config, str)
        else yaml.dump(dict(config), Dumper=_Plain, sort_keys=False, allow_unicode=True)
    )
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@contextlib.contextmanager
def gate(
    config: Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    prefix: Sequence[str] = (),
    timeout: float = 20,
    arguments: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Iterator[Gate]:
    """Run a gate with `config` until the block ends; `prefix` goes before the command (`ip netns exec …`).

    `files` are written beside the configuration: `{"tidegate.lock": …}`.
    """
    # Not under the caller's TMPDIR name: a unix socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    folder.chmod(0o755)
    port = port or free_port(host)
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    whole = {**config, "listen": {"http": listen, **config.get("listen", {})}, "state_dir": str(folder / "state")}
    _write_config(folder / "tidegate.yaml", whole)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    full_env = environment(env)
    full_env["TIDEGATE_CONFIG"] = str(folder / "tidegate.yaml")
    process = subprocess.Popen(
        [*prefix, *tidegate_command("up", "--config", str(folder / "tidegate.yaml"), *arguments)],
        env=full_env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running = Gate(process, folder, host, port, full_env, prefix)
    try:
        running.wait_line("tidegate: ready", "tidegate: serving", timeout=timeout)
        yield running
    finally:
        try:
            running.terminate()
        finally:
            _end_group(process.pid)
            shutil.rmtree(folder, ignore_errors=True)


def _end_group(leader: int) -> None:
    # Whatever of the gate outlived its supervisor; the group is ours by start_new_session.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
