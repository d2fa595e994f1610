#!/usr/bin/env python3
"""Try the ways out of this sandbox, and say which are open. One file, Python 3.8 or newer, nothing else.

    python3 probe.py [--json] [--seconds N] [--only KIND …]

A way is `closed` when nothing came back, when the gate itself refused, or when it is not there; `open` when somebody
beyond answered, or something lies here that should not; `not testable` when this sandbox cannot even try. Exit 1 if
anything is open. What is sent is harmless: a question, a greeting, a request for a page.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import json
import os
import re
import socket
import ssl
import struct
import sys
import time
from functools import partial
from typing import Callable, Iterator, Tuple

CLOSED, OPEN, UNTRIED = "closed", "open", "not testable"
SECONDS = 2.0
OURS = b"urn:tidegate:reason:"
PUBLIC4, PUBLIC6 = ("1.1.1.1", "8.8.8.8", "9.9.9.9"), ("2606:4700:4700::1111", "2001:4860:4860::8888")
METADATA = (
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.253", "169.254.0.23", "100.100.100.200",
    "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
)  # fmt: skip
METADATA_NAMES = ("metadata.google.internal", "metadata", "instance-data", "metadata.azure.internal")
PRIVATE = (
    "10.0.0.1",
    "10.0.2.2",
    "172.17.0.1",
    "172.18.0.1",
    "192.168.0.1",
    "192.168.65.2",
    "192.168.122.1",
    "fe80::1",
)
HOST_NAMES = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal", "kubernetes.default.svc")
HOST_PORTS = (22, 80, 2375, 2376, 3128, 5000, 6443, 8000, 9000, 10250)
UDP = ((123, b"\x1b" + bytes(47)), (443, b"\xc0" + bytes(1199)), (51820, bytes(148)), (3478, bytes(20)))
UNIX = (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
)  # fmt: skip
KERNEL = (
    "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/sys/kernel/debug", "/sys/firmware/efi/efivars",
    "/proc/sysrq-trigger",
)  # fmt: skip
FILES = (
    ".aws/credentials", ".netrc", ".git-credentials", ".docker/config.json", ".kube/config", ".ssh/id_*", ".npmrc",
    ".pypirc", ".cargo/credentials*", ".config/gcloud/*.json", ".config/gh/hosts.yml", ".azure/*.json", ".vault-token",
)  # fmt: skip
Way = Tuple[str, str, Callable[[], None]]
SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
PLACEHOLDER = re.compile(r"tg_?[0-9A-Za-z]{8}|71de9a7e", re.IGNORECASE)


class Result(Exception):
    """What a way turned out to be."""

    def __init__(self, state: str, evidence: str) -> None:
        super().__init__(evidence)
        self.state, self.evidence = state, evidence


def _connect(address: str, port: int) -> socket.socket:
    infos = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, kind, proto, _, where = infos[0]
    sock = socket.socket(family, kind, proto)
    sock.settimeout(SECONDS)
    sock.connect(where)
    return sock


def _judge(said: bytes, what: str) -> None:
    """Tell the gate's own refusal, and silence, from an answer."""
    if not said:
        raise Result(CLOSED, "connected, and nothing came back")
    if OURS in said or b"Proxy-Status: tidegate" in said:
        found = re.search(rb"urn:tidegate:reason:([a-z_]+)", said)
        raise Result(CLOSED, "the gate refused: " + (found.group(1).decode() if found else "a denial"))
    if said[:1] == b"\x15":
        raise Result(CLOSED, "a TLS alert")
    raise Result(OPEN, what + " answered: " + repr(said[:60]))


def _read(sock: socket.socket) -> bytes:
    said = b""
    try:
        while len(said) < 4096:
            piece = sock.recv(4096)
            if not piece:
                break
            said += piece
    except OSError:
        pass
    return said


def tcp(address: str, port: int, greeting: bytes = b"") -> None:
    """Dial, greet, listen."""
    host = f"[{address}]" if ":" in address else address
    greeting = greeting or (f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").encode()
    with _connect(address, port) as sock:
        sock.sendall(greeting)
        _judge(_read(sock), "%s port %d" % (host, port))


def tls(address: str, port: int, name: str | None, request: bytes = b"") -> None:
    """Dial, shake hands under a name without a check of the certificate, ask."""
    context = ssl._create_unverified_context()
    with _connect(address, port) as sock, context.wrap_socket(sock, server_hostname=name) as inner:
        inner.sendall(request or (f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").encode())
        _judge(_read(inner), "%s port %d as %s" % (address, port, name))


def _question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 0x7467, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def _judge_dns(reply: bytes, wanted: bytes | None) -> None:
    if len(reply) < 12 or reply[:2] != b"tg":
        raise Result(CLOSED, "no answer")
    code, answers = reply[3] & 15, struct.unpack("!H", reply[6:8])[0]
    if wanted is None and answers and code == 0:
        raise Result(OPEN, "%d records came back" % answers)
    if wanted is not None and wanted in reply:
        raise Result(OPEN, "a resolver beyond answered")
    raise Result(CLOSED, "code %d, %d records, none from beyond" % (code, answers))


def dns_udp(
    server: str,
    name: str = "one.one.one.one",
    kind: int = 1,
    wanted: bytes | None = b"\x01\x01\x01\x01",
    port: int = 53,
) -> None:
    """Ask a name that has one answer in the world."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.sendto(_question(name, kind), (server, port))
        _judge_dns(sock.recv(4096), wanted)


def dns_tcp(server: str, name: str = "one.one.one.one") -> None:
    """The same over TCP."""
    with _connect(server, 53) as sock:
        query = _question(name)
        sock.sendall(struct.pack("!H", len(query)) + query)
        _judge_dns(_read(sock)[2:], b"\x01\x01\x01\x01")


def udp(address: str, port: int, data: bytes) -> None:
    """Send a datagram that a server of that port answers."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.sendto(data, (address, port))
        raise Result(OPEN, "%d bytes came back" % len(sock.recv(4096)))


def ping(address: str) -> None:
    """Send an echo request by a raw socket."""
    six = ":" in address
    proto = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, proto) as sock:
        sock.settimeout(SECONDS)
        sock.sendto(b"\x80\0\0\0tgtg" if six else b"\x08\0\x0f\x31tgtg", (address, 0))
        end = time.time() + SECONDS
        while time.time() < end:
            data, peer = sock.recvfrom(2048)
            if peer[0] == address and data[0 if six else 20] in (0, 129):
                raise Result(OPEN, "an echo came back")
        raise Result(CLOSED, "no echo")


def multicast() -> None:
    """Ask the neighbours who they are (mDNS)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.sendto(_question("_services._dns-sd._udp.local", 12), ("224.0.0.251", 5353))
        raise Result(OPEN, "a neighbour answered: " + str(sock.recvfrom(2048)[1][0]))


def name_leads_out(name: str) -> None:
    """Look a name up as programs do, and see whether its address answers for itself."""
    tcp(str(socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)[0][4][0]), 80)


def via_proxy(target: str, absolute: bool = False) -> None:
    """Ask the proxy of the environment for what no policy may allow."""
    url = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    found = re.match(r"http://(?:([^@]*)@)?\[?([^\]/]+?)\]?:(\d+)", url)
    if not found:
        raise Result(UNTRIED, "no proxy in the environment")
    import base64
    from urllib.parse import unquote

    login = base64.b64encode(unquote(found.group(1) or "").encode()).decode()
    first = f"GET http://{target}/ HTTP/1.1" if absolute else f"CONNECT {target} HTTP/1.1"
    head = f"{first}\r\nHost: {target}\r\nProxy-Authorization: Basic {login}\r\nConnection: close\r\n\r\n"
    with _connect(found.group(2), int(found.group(3))) as sock:
        sock.sendall(head.encode())
        said = _read(sock) if absolute else sock.recv(4096)
    if OURS not in said and said.split(b" ")[1:2] == [b"200"]:
        raise Result(OPEN, "the proxy let it through")
    raise Result(CLOSED, "the proxy said " + said[9:12].decode("ascii", "replace"))


def unix(path: str) -> None:
    """Connect to a socket of the host's."""
    if not os.path.exists(path):
        raise Result(CLOSED, "not there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SECONDS)
        sock.connect(path)
    raise Result(OPEN, "it takes connections")


def abstract() -> None:
    """Connect to every abstract socket that is listed."""
    taken = []
    with open("/proc/net/unix") as table:
        names = {line.split()[-1] for line in table if "@" in line}
    for name in sorted(names)[:200]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.2)
            try:
                sock.connect("\0" + name[1:])
                taken.append(name)
            except OSError:
                continue
    if taken:
        raise Result(OPEN, "takes connections: " + ", ".join(taken[:5]))
    raise Result(CLOSED, "%d listed, none takes a connection" % len(names))


def packet_socket() -> None:
    """Open a socket below IP and look for another neighbour than one."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)):
        pass
    raise Result(CLOSED, "allowed, but the link has its own wall: see the others")


def kernel(path: str) -> None:
    """Open a file that shows the kernel or the host."""
    if not os.path.exists(path):
        raise Result(CLOSED, "not there")
    if os.path.isdir(path):
        if os.listdir(path):
            raise Result(OPEN, "can be listed")
        raise Result(CLOSED, "empty")
    with open(path, "rb") if path != "/proc/sysrq-trigger" else open(path, "ab"):
        raise Result(OPEN, "can be opened")


def ambient_environment() -> None:
    """Look for credentials in the environment that are no placeholders."""
    found = [
        name for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= 12 and not PLACEHOLDER.search(value) and not value.startswith("/")
    ]  # fmt: skip
    if found:
        raise Result(OPEN, "no placeholder: " + ", ".join(sorted(found)))
    raise Result(CLOSED, "none")


def ambient_file(pattern: str) -> None:
    """Look for credentials at home."""
    found = [path for path in glob.glob(os.path.join(os.path.expanduser("~"), pattern)) if os.path.getsize(path)]
    for path in found:
        with open(path, "rb") as file:
            if not PLACEHOLDER.search(file.read(65536).decode("latin-1")):
                raise Result(OPEN, path)
    raise Result(CLOSED, "none" if not found else "placeholders only")


def gateways() -> list[str]:
    """Return the default gateways and name servers: the neighbours that this sandbox knows."""
    found = []
    try:
        with open("/proc/net/route") as table:
            for line in list(table)[1:]:
                gateway = line.split()[2]
                if gateway != "00000000":
                    found.append(socket.inet_ntoa(struct.pack("<I", int(gateway, 16))))
    except OSError:
        pass
    return sorted(set(found))


def ways() -> Iterator[Way]:
    """Yield every way out as its name, its kind and a call that raises `Result` or `OSError`."""
    for address in PUBLIC4 + PUBLIC6:
        yield "direct", "TCP 80 of " + address, partial(tcp, address, 80)
        yield "direct", "TCP 443 of " + address, partial(tls, address, 443, None)
    for port in (22, 25, 465, 587, 853, 8443):
        yield "direct", "TCP %d of 1.1.1.1" % port, partial(tcp, "1.1.1.1", port, b"EHLO x\r\n")
    for address in METADATA:
        yield "metadata", address, partial(tcp, address, 80)
    for name in METADATA_NAMES:
        yield "metadata", name, partial(name_leads_out, name)
    for address in PRIVATE:
        yield "private", "TCP 80 of " + address, partial(tcp, address, 80)
    for name in HOST_NAMES:
        yield "host", name, partial(name_leads_out, name)
    for gateway in gateways():
        for port in HOST_PORTS:
            yield "host", "TCP %d of the gateway %s" % (port, gateway), partial(tcp, gateway, port)
        yield "host", "echo of the gateway " + gateway, partial(ping, gateway)
    for server in PUBLIC4 + PUBLIC6[:1]:
        yield "dns", "UDP 53 of " + server, partial(dns_udp, server)
        yield "dns", "TCP 53 of " + server, partial(dns_tcp, server)
    yield "dns", "TXT of a name of nobody's", partial(dns_udp, "8.8.8.8", "o-o.myaddr.l.google.com", 16, None)
    yield "dns", "UDP 5353 of 1.1.1.1", partial(dns_udp, "1.1.1.1", port=5353)
    yield "dns", "DNS over TLS", partial(tls, "1.1.1.1", 853, "one.one.one.one", b"\0\x1d" + _question("example.com"))
    for name in ("cloudflare-dns.com", "dns.google", "dns.quad9.net"):
        yield "dns", "DNS over HTTPS at " + name, partial(tls, "1.1.1.1", 443, name)
    for port, data in UDP:
        yield "udp", "UDP %d of 1.1.1.1" % port, partial(udp, "1.1.1.1", port, data)
    yield "udp", "multicast", multicast
    for address in ("1.1.1.1", "2606:4700:4700::1111"):
        yield "icmp", "echo of " + address, partial(ping, address)
    yield "link", "packet socket", packet_socket
    for target in ("169.254.169.254:80", "127.0.0.1:22", "localhost:8080", "1.1.1.1:25", "[::1]:80", "metadata:80"):
        yield "proxy", "CONNECT " + target, partial(via_proxy, target)
    yield "proxy", "GET http://169.254.169.254/", partial(via_proxy, "169.254.169.254", absolute=True)
    yield "proxy", "SOCKS5 greeting", partial(tcp, gateways()[0] if gateways() else "127.0.0.1", 1080, b"\5\1\0")
    for path in UNIX:
        yield "unix", path, partial(unix, path)
    yield "unix", "abstract sockets", abstract
    for path in KERNEL:
        yield "kernel", path, partial(kernel, path)
    yield "ambient", "environment", ambient_environment
    for pattern in FILES:
        yield "ambient", "~/" + pattern, partial(ambient_file, pattern)


def attempt(way: Way) -> dict[str, str]:
    """Try one way; return its row."""
    kind, name, call = way
    try:
        call()
        state, evidence = CLOSED, "nothing came of it"
    except Result as result:
        state, evidence = result.state, result.evidence
    except PermissionError as fault:
        state, evidence = CLOSED, f"not permitted: {fault.strerror}"
    except (OSError, ValueError) as fault:
        state, evidence = CLOSED, getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
    return {"kind": kind, "way": name, "state": state, "evidence": evidence}


def main() -> int:
    """Try everything, print the card, say by the exit code whether anything is open."""
    global SECONDS
    parser = argparse.ArgumentParser(description="Try the ways out of this sandbox.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long to wait for each answer")
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="ways of these kinds alone")
    given = parser.parse_args()
    SECONDS = given.seconds
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        rows = list(pool.map(attempt, [way for way in ways() if not given.only or way[0] in given.only]))
    count = {state: sum(row["state"] == state for row in rows) for state in (CLOSED, OPEN, UNTRIED)}
    if given.json:
        print(json.dumps({"count": count, "ways": rows}, indent=1))
    else:
        for row in rows:
            print("%-12s  %-8s  %-38s  %s" % (row["state"], row["kind"], row["way"], row["evidence"]))
        print("%(closed)d closed, %(open)d open, %(not testable)d not testable" % count)
    return 1 if count[OPEN] else 0


if __name__ == "__main__":
    sys.exit(main())
