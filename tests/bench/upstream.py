"""The upstream of the measurements: nginx for answers and uploads, `events` for streams, one CA for both.

It does nothing but files and byte counts, so that what is measured is the way to it.

| | |
|---|---|
| `GET /small` 16 B, `/1k`, `/1m`, `/200m` | readable text, so that what reads bodies has something to read |
| `GET /with-credential/…` | the same, but 401 without the secret: was the placeholder really swapped? |
| `POST /upload` | reads the whole body, answers with the number of bytes |
"""

import contextlib
import dataclasses
import functools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trustme

from tests.bench.program import program
from tests.lab.sockets import dial_in_namespace, free_port
from tests.lab.world import World

__all__ = ["AWAY", "CA_NAME", "NAME", "SECRET", "Upstream", "upstream"]

NAME = "bench.test"
AWAY = "10.98.0.5"
"""Where it is in a world: not at the gateway, which counts as the gate's own."""
SECRET = "bench-secret-Vt9xQ2mK7pLw4RzN8sYc"
CA_NAME = "bench upstream CA"
_SIZES = {"small": 16, "1k": 1024, "1m": 1 << 20, "200m": 200 * (1 << 20)}
_LINE = b'{"id": 1234567, "name": "an ordinary line of an ordinary answer", "ok": true}\n'
_EVENTS, _EVENT_INTERVAL_US = 300, 10_000

_CONF = """
worker_processes 1; daemon off; pid nginx.pid; error_log error.log warn; {user}
events {{ worker_connections 8192; }}
http {{
    access_log off; default_type text/plain; sendfile on; tcp_nodelay on; open_file_cache max=16;
    # Never the one to end a kept-alive connection.
    keepalive_requests 1000000000; keepalive_timeout 3600s;
    client_max_body_size 0; client_body_temp_path tmp/body; proxy_temp_path tmp/proxy;
    fastcgi_temp_path tmp/fastcgi; uwsgi_temp_path tmp/uwsgi; scgi_temp_path tmp/scgi;
    ssl_certificate server.crt; ssl_certificate_key server.key; ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:bench:10m;
    server {{
        {listen}
        root www;
        location /with-credential/ {{
            if ($http_authorization != "Bearer {secret}") {{ return 401; }}
            alias www/;
        }}
        # The inner server is asked only after the whole body was read; its 404 becomes the count.
        location = /upload {{
            proxy_pass http://127.0.0.1:{inner}; proxy_pass_request_body off;
            proxy_set_header Content-Length ""; proxy_intercept_errors on; error_page 404 =200 @count;
        }}
        location @count {{ return 200 "$content_length\\n"; }}
    }}
    server {{ listen 127.0.0.1:{inner}; return 404; }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A running upstream: its ports, the CA that signed its certificate, and where it is."""

    http_port: int
    https_port: int
    events_port: int
    ca_file: Path
    host: str = "127.0.0.1"


@contextlib.contextmanager
def upstream(*, core: int, place: World | None = None) -> Iterator[Upstream]:
    """Run it on CPU `core` until the block ends, on loopback or on the internet of a world.

    Its files lie in memory: a disk is not to be measured.
    """
    shared = Path("/dev/shm")
    base = tempfile.mkdtemp(prefix="tidegate-bench-", dir=shared if shared.is_dir() else None)
    folder = Path(base)
    try:
        ports = [free_port() for _ in range(4)]
        host = "127.0.0.1" if place is None else AWAY
        server = Upstream(ports[0], ports[1], ports[2], folder / "ca.crt", host)
        _write_files(folder)
        _write_certificates(folder)
        (folder / "nginx.conf").write_text(_configuration(server, inner=ports[3]))
        space = None if place is None else place.internet
        pinned = [*([] if space is None else ["ip", "netns", "exec", space]), "taskset", "-c", str(core)]
        stream = [str(program("events")), str(server.events_port), str(folder / "server.crt")]
        stream += [str(folder / "server.key"), str(_EVENTS), str(_EVENT_INTERVAL_US)]
        with (
            _running([*pinned, "nginx", "-p", f"{folder}/", "-c", "nginx.conf"], server.https_port, space),
            _running([*pinned, *stream], server.events_port, space),
        ):
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(folder: Path) -> None:
    (folder / "www").mkdir()
    (folder / "tmp").mkdir()
    block = _LINE * (1 + (1 << 20) // len(_LINE))
    for name, size in _SIZES.items():
        with (folder / "www" / name).open("wb") as file:
            for left in range(size, 0, -len(block)):
                file.write(block[:left])


def _write_certificates(folder: Path) -> None:
    ca = trustme.CA(organization_name=CA_NAME, key_type=trustme.KeyType.ECDSA)
    leaf = ca.issue_cert(NAME, "localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
    ca.cert_pem.write_to_path(folder / "ca.crt")
    leaf.private_key_pem.write_to_path(folder / "server.key")
    (folder / "server.crt").write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    # The gate reads the CA under a user of its own.
    folder.chmod(0o755)
    (folder / "ca.crt").chmod(0o644)


def _configuration(server: Upstream, *, inner: int) -> str:
    hosts = ["127.0.0.1", *(["[::1]"] if _has_ipv6() else [])]
    if server.host not in hosts:
        hosts.append(server.host)
    listen = " ".join(
        f"listen {host}:{server.http_port} backlog=4096; listen {host}:{server.https_port} ssl backlog=4096;"
        for host in hosts
    )
    user = "user root;" if Path("/proc/self").owner() == "root" else ""
    return _CONF.format(user=user, listen=listen, secret=SECRET, inner=inner)


def _has_ipv6() -> bool:
    # «localhost» is ::1 first where there is IPv6; a rival must not pay for a refused connection.
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _running(command: list[str], port: int, space: str | None) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for_port(process, port, space=space)
        yield
    finally:
        process.terminate()
        process.wait(10)


def wait_for_port(
    process: subprocess.Popen[bytes], port: int, *, space: str | None = None, timeout: float = 20
) -> None:
    """Return when something accepts on loopback `port`, of a namespace; raise when `process` ends before."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            dial = socket.create_connection if space is None else functools.partial(_dial, space)
            dial(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} did not listen on {port} within {timeout} s")


def _dial(space: str, address: tuple[str, int], _: float) -> socket.socket:
    return dial_in_namespace(space, *address)
