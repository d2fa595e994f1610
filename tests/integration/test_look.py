"""The look through stock mitmproxy, run as its page says: the real mitmdump, real sockets."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab.dns import addresses, dns_server
from tests.lab.sockets import free_port
from tests.lab.upstream import Upstream, upstream
from tests.unit.exchange.stage import PLACEHOLDER

ENTRY = Path(__file__).parents[2] / "addons/tidegate_addons/entry.py"
MITMDUMP = Path(sys.executable).with_name("mitmdump")


@contextlib.contextmanager
def mitmdump(config: Path) -> Iterator[tuple[int, Path]]:
    """Run mitmdump with the add-on; yields its port and the file that its stderr goes to."""
    port, err = free_port(), config.with_name("stderr")
    home = config.with_name("home")
    argv = [
        str(MITMDUMP), "-q", "-s", str(ENTRY), "--listen-host", "127.0.0.1", "-p", str(port),
        "--set", f"confdir={home}", "--set", f"tidegate_config={config}",
    ]  # fmt: skip
    # pyOpenSSL's deprecation of its own classes is mitmproxy's affair.
    environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with err.open("w") as out, subprocess.Popen(argv, stdout=out, stderr=out, env=environ) as process:
        try:
            until = time.monotonic() + 30
            while not _open(port):
                assert process.poll() is None, err.read_text()
                assert time.monotonic() < until, "mitmdump did not start"
                time.sleep(0.05)
            yield port, err
        finally:
            process.terminate()
            process.wait(10)


def _open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def ask(port: int, raw: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(raw)
        told = b""
        while b"\r\n\r\n" not in told:
            piece = sock.recv(65536)
            if not piece:
                break
            told += piece
        sock.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while piece := sock.recv(65536):
                told += piece
        return told


def get(url: str, *fields: str) -> bytes:
    host = url.split("/")[2]
    return "\r\n".join([f"GET {url} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode()


def config(folder: Path, server: Upstream, dns: str) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(
        f"""
version: 1
resolver: {{zones: {{"test.": ["{dns}"]}}}}
policies:
  p:
    allow:
      - {{host: 127.0.0.1, protocol: http, ports: [{server.port}], addresses: [127.0.0.1/32], paths: ["/hello"]}}
      - {{host: inner.test, protocol: http, ports: [{server.port}]}}
sessions:
  alice: {{policy: p, from: 127.0.0.0/8}}
"""
    )
    return path


def test_stock_mitmproxy_shows_what_the_policy_says(tmp_path: Path) -> None:
    zone = {"inner.test": addresses("127.0.0.1")}
    with upstream() as server, dns_server(zone) as dns, mitmdump(config(tmp_path, server, dns.address)) as (port, err):
        base = f"http://127.0.0.1:{server.port}"
        allowed = ask(port, get(f"{base}/hello"))
        assert allowed.startswith(b"HTTP/1.1 "), allowed
        assert b"problem+json" not in allowed
        seen = server.connections
        assert seen == 1
        told = {
            "path_not_allowed": ask(port, get(f"{base}/other")),
            "not_in_allowlist": ask(port, get("http://evil.test/")),
            "unknown_placeholder": ask(port, get(f"{base}/hello", f"X-Key: {PLACEHOLDER}")),
            "metadata": ask(port, get("http://169.254.169.254/latest")),
            "port_not_allowed": ask(port, b"CONNECT inner.test:22 HTTP/1.1\r\nHost: inner.test:22\r\n\r\n"),
        }
        for reason, text in told.items():
            assert f'"reason":"{reason}"'.encode() in text, (reason, text)
        unvetted = ask(port, get(f"http://inner.test:{server.port}/"))
        assert unvetted.startswith(b"HTTP/1.1 502 ")
        assert b"destination_unavailable" in unvetted
        assert server.connections == seen
        assert dns.count("evil.test") == 0
        assert "not a boundary" in err.read_text()
