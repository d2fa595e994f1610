#!/usr/bin/env python3
"""Try the ways out of this sandbox, and say which are open. One file, Python 3.8 or newer, nothing else.

    python3 probe.py [--json] [--allowed NAME[:PORT][/PATH]] [--proxy URL] [--only KIND …]

A way is `closed` when the gate itself refused, when nothing came back, or when it is not there; `open` when somebody
beyond answered, or something lies here that should not; `not testable` when nothing was proved either way. Exit 1 if
anything is open. What is sent is harmless: a question, a greeting, a request for a page.

Three rules keep the verdicts honest:

| danger | rule |
|---|---|
| a way that is closed for a reason of its own | ways through the gate count only after a good request came through |
| a refusal that has nothing to do with the way | a spent budget or an unknown session proves nothing |
| a connection that was taken, and then silence | closed only if the gate takes connections to nobody's address too |

Longer than a module should be, since it must be one file: it is fed to the sandbox's own Python.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import contextlib
import errno
import glob
import ipaddress
import json
import os
import re
import resource
import select
import shutil
import socket
import ssl
import stat
import struct
import sys
import textwrap
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Set, Tuple
from urllib.parse import unquote, urlsplit

CLOSED, OPEN, UNTRIED = "closed", "open", "not testable"
KINDS = {
    "direct": "TCP to public addresses, IPv4 and IPv6, TLS and other ports",
    "transition": "IPv4 inside IPv6: mapped, NAT64, 6to4, Teredo, ISATAP",
    "metadata": "cloud metadata services, by every address and name",
    "private": "private networks",
    "host": "the host and its gateways: names, TCP, UDP and echo",
    "dns": "DNS to others over UDP, TCP, TLS and HTTPS, and data inside of questions",
    "udp": "datagrams: NTP, QUIC, WireGuard, STUN, SNMP, multicast, broadcast",
    "icmp": "echo, by raw and by datagram sockets",
    "ip": "IP protocols other than TCP, UDP and ICMP",
    "link": "frames: other neighbours, other people's addresses",
    "proxy": "what a proxy must refuse: CONNECT to odd places and ports, SOCKS",
    "name": "one name outside, another inside, by every way into the gate",
    "smuggling": "requests with two readings, by every way into the gate",
    "h2": "both over HTTP/2, by every way into the gate",
    "unix": "sockets of the host's, in folders and abstract",
    "kernel": "/proc, /sys and /dev",
    "ambient": "credentials in the environment, at home and in other processes",
    "flood": "more connections than the wall lets through, with --flood",
}
NETWORK = tuple(kind for kind in KINDS if kind not in ("unix", "kernel", "ambient"))
"""The kinds that say something of a sandbox that is a network namespace and no more."""

SECONDS = 2.0
ADDRESS_BYTES = 108
"""The most that the address of a unix socket holds (unix(7))."""
THREADS = 64
OURS = b"urn:tidegate:reason:"
ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""The gate's alert in clear, where a ClientHello is refused."""
WENT_ON = (
    "destination_unavailable", "dns_failure", "resolved_blocked", "resolved_metadata", "upstream_tls",
    "upstream_timeout", "bad_upstream", "unscannable_response",
)  # fmt: skip
"""Reasons that say: the rules let it pass, and it failed beyond them."""
BESIDE = (
    "session_required", "session_invalid", "session_frozen", "budget", "audit_budget", "audit_unavailable",
    "keeper_unavailable", "internal_fault", "lane_refused", "client_timeout", "credential_unavailable",
    "path_not_allowed", "method_not_allowed",
)  # fmt: skip
"""Reasons that have nothing to do with what was tried."""
PUBLIC4, PUBLIC6 = ("1.1.1.1", "8.8.8.8", "9.9.9.9"), ("2606:4700:4700::1111", "2001:4860:4860::8888")
NOBODY = ("203.0.113.77", "198.51.100.123")
"""Nobody's (RFC 5737): who answers at both takes every connection, as a transparent gate does."""
TRANSITION = (
    ("IPv4-mapped", "::ffff:1.1.1.1"), ("NAT64", "64:ff9b::101:101"),
    ("local NAT64", "64:ff9b:1::101:101"), ("6to4", "2002:101:101::1"), ("Teredo", "2001:0:101:101::1"),
    ("IPv4-translated", "::ffff:0:101:101"),
)  # fmt: skip
METADATA = (
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.253", "169.254.169.123", "169.254.0.23",
    "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1",
)  # fmt: skip
METADATA_NAMES = (
    "metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal",
    "metadata.azure.internal", "metadata.packet.net", "metadata.tencentyun.com",
)  # fmt: skip
PRIVATE = (
    "10.0.0.1", "10.0.2.2", "172.17.0.1", "172.18.0.1", "192.168.0.1", "192.168.65.2", "192.168.122.1", "100.64.0.1",
    "fc00::1",
)  # fmt: skip
HOST_NAMES = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal", "kubernetes.default.svc")
HOST_PORTS = (22, 80, 111, 445, 2049, 2375, 2376, 3128, 5000, 5432, 6379, 6443, 8000, 9000, 10250, 11211)
NTP = b"\x1b" + bytes(47)
SNMP = bytes.fromhex("302602010104067075626c6963a019020471b4b568020100020100300b300906052b060102010500")
PORTMAP = struct.pack("!10I", 0x74670001, 0, 2, 100000, 2, 0, 0, 0, 0, 0)
HOST_UDP = (
    (69, b"\0\1probe\0octet\0"), (111, PORTMAP), (123, NTP), (161, SNMP), (1900, b"M-SEARCH * HTTP/1.1\r\n\r\n"),
    (11211, b"\0\0\0\0\0\1\0\0version\r\n"),
)  # fmt: skip
UDP = (
    (123, NTP), (161, SNMP), (443, b"\xc0\x1a\x1a\x1a\x1a\x08probe-tg\x08tg-probe" + bytes(1180)), (51820, bytes(148)),
    (3478, bytes.fromhex("000100002112a442") + b"tidegateprob"), (40000, b"probe"),
)  # fmt: skip
PROTOCOLS = ((4, "IPIP"), (41, "6in4"), (47, "GRE"), (50, "ESP"), (132, "SCTP"), (253, "experimental"))
UNIX = (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/buildkit/buildkitd.sock",
    "/run/snapd.socket", "/var/lib/lxd/unix.socket", "/var/lib/kubelet/pod-resources/kubelet.sock",
)  # fmt: skip
UNIX_FOLDERS = ("/run", "/tmp", "/var/run", "/var/tmp", "/dev/shm")
KERNEL = (
    "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/dev/mem", "/dev/kmsg", "/dev/port",
    "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/uevent_helper", "/sys/firmware/efi/efivars",
    "/sys/firmware/dmi/tables", "/dev/mapper/control",
)  # fmt: skip
TO_WRITE = (
    "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
    "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper",
)  # fmt: skip
"""What does harm only where it can be written to."""
FILES = (
    "~/.aws/credentials", "~/.netrc", "~/.git-credentials", "~/.docker/config.json", "~/.kube/config", "~/.ssh/id_*",
    "~/.npmrc", "~/.pypirc", "~/.cargo/credentials*", "~/.config/gcloud/*.json", "~/.config/gh/hosts.yml",
    "~/.azure/*.json", "~/.vault-token", "~/.terraform.d/credentials*", "~/.gem/credentials", "~/.m2/settings.xml",
    "~/.config/pip/pip.conf", "~/.pgpass", "/run/secrets/*", "/var/run/secrets/kubernetes.io/serviceaccount/token",
)  # fmt: skip
ODD_PORTS = (22, 25, 80, 853, 3389, 5432, 6379, 9200, 65535)
SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
SECRET_VALUE = re.compile(r"gh[pousr]_\w{30}|github_pat_|AKIA[0-9A-Z]{16}|sk-[\w-]{20}|xox[abp]-|eyJ[\w-]{20,}\.eyJ")
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File|LS0tLS1CRUdJTi(?!BDRVJU|BQVUJM)")
"""PEM as it is, and in base64 as configurations hold it, where that begins neither a certificate nor a public key."""
CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----|LS0tLS1CRUdJTiBDRVJUSUZJQ0FUR[\w+/=]*"
)
JWT_HEAD = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJ0aWRlZ2F0ZSIsImV4cCI6NDEwMjQ0NDgwMH0."
PLACEHOLDER = re.compile(
    r"(?<![\w.+/-])(?:"
    + "|".join((
        "71de9a7e[0-9a-f]{32}", "(?:ghp|ghs|npm)_71de9a7e[0-9A-Za-z]{28}",
        "github_pat_[0-9A-Za-z]{22}_71de9a7e[0-9A-Za-z]{51}", "sk-proj-71de9a7e[0-9A-Za-z]{40}",
        "sk-ant-api03-71de9a7e[0-9A-Za-z]{85}AA", "pypi-71de9a7e[0-9A-Za-z]{52}", "hf_71de9a7e[0-9A-Za-z]{26}",
        "AIza71de9a7e[0-9A-Za-z]{27}", re.escape(JWT_HEAD) + "71de9a7e[0-9A-Za-z]{34}A",
        "[A-Za-z0-9_.-]{1,32}71de9a7e[0-9A-Za-z]{22}",  # tg_, glpat-, xoxb-, or whatever the configuration says
    ))
    + r")(?![\w+/=-])"
)  # fmt: skip
"""The gate's placeholders in their exact shapes, and nothing around them that could be part of a secret."""
CUT = "\0"
"""What stands where a placeholder stood."""
NAMED = re.compile(
    r"(?<![\w-])[\w-]*(?:passw(?:or)?d|secret|token|key|credential|auth(?!ors?\b))[\w-]*[\"']?"
    r"(?:[ \t]*[:=>][ \t]*|\s+)[\"']?(?:(?:basic|bearer|token) )?([^\s\"',;{}\[\]<>]+)",
    re.IGNORECASE,
)
"""A value behind a name that tells."""
IN_ADDRESS = re.compile(r"://(?:[^/\s:@]*:([^/\s@]+)|([^/\s:@]{16,}))@")
"""What logs in inside of a URL."""
ALONE = re.compile(r"^[ \t]*(?!password\s)([^\s:=\"'<>{}\[\]\0]{8,})[ \t]*$", re.MULTILINE)
"""A line of one word, as in a file that holds a token and nothing else."""
PGPASS = re.compile(r"^(?:[^:\s]+:){4}(\S+)$", re.MULTILINE)
LONG = re.compile(r"(?<![\w+=-])((?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{24,})")
"""A word too long for a name, with letters and digits: a key, or a blob that may hold one."""
HARMLESS = re.compile(
    r"\0|true|false|null|none|yes|no|\d{1,4}|x-oauth-basic|x-access-token|https?://[^@]*"
    r"|~?(?:/[\w.-]+){2,}|\$\{?\w+\}?",
    re.IGNORECASE,
)
"""A placeholder that was cut, a switch, a number, an address, a path, a variable."""


class Way(NamedTuple):
    """A way out: its kind, its name, and a call that raises `Result` or `OSError`."""

    kind: str
    name: str
    call: Callable[[], None]


class Result(Exception):
    """What a way turned out to be."""

    def __init__(self, state: str, evidence: str) -> None:
        super().__init__(evidence)
        self.state, self.evidence = state, evidence


class Allowed(NamedTuple):
    """What the policy lets through, to try with; `denied` is a name that it does not."""

    name: str
    port: int
    path: str
    denied: str

    @property
    def host(self) -> str:
        """The Host of a request for it."""
        return self.name if self.port == 443 else "%s:%d" % (self.name, self.port)


ALLOWED: Optional[Allowed] = None
PROXY: Optional[str] = None
FLOOD = False

# ---- connections ---------------------------------------------------------------------------------


class Wire:
    """A connection, in clear or inside TLS, that remembers whether anything came back at all."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.raw = sock, b""
        self._tls: Optional[ssl.SSLObject] = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def start_tls(self, name: Optional[str], alpn: Tuple[str, ...] = ()) -> None:
        """Shake hands under a name, without a check of the certificate; raise `OSError`, with `raw` as it came."""
        context = ssl._create_unverified_context()
        if alpn:
            context.set_alpn_protocols(list(alpn))
        self.raw = b""
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self._run(self._tls.do_handshake)

    @property
    def alpn(self) -> Optional[str]:
        """What the two sides agreed on."""
        return self._tls.selected_alpn_protocol() if self._tls else None

    def send(self, data: bytes) -> None:
        """Send all of it."""
        if self._tls is None:
            self.sock.sendall(data)
        else:
            self._run(partial(self._tls.write, data))

    def piece(self) -> bytes:
        """Return what is there, b"" at the end; raise `socket.timeout`."""
        try:
            if self._tls is None:
                return self.sock.recv(65536)
            return bytes(self._run(partial(self._tls.read, 65536)))
        except (ConnectionError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def read(self, most: int = 65536) -> Tuple[bytes, bool]:
        """Return what comes, and whether the other side ended it (False: it kept the connection and said no more)."""
        said = b""
        try:
            while len(said) < most:
                piece = self.piece()
                if not piece:
                    return said, True
                said += piece
        except socket.timeout:
            pass
        except OSError as fault:
            must_have_ended(fault)
            return said, True
        return said, False

    def _run(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                self._flush()
                data = self.sock.recv(65536)
                self.raw += data[:4096]
                if data:
                    self._in.write(data)
                else:
                    self._in.write_eof()
            finally:
                self._flush()

    def _flush(self) -> None:
        data = self._out.read()
        if data:
            self.sock.sendall(data)


class Pace:
    """Lets so many through in a second, whoever asks: what the wall's bound on connections dropped proves nothing."""

    def __init__(self, a_second: int) -> None:
        self._step, self._next, self._lock = 1 / a_second, 0.0, threading.Lock()

    def wait(self) -> None:
        """Wait for a turn."""
        with self._lock:
            self._next = max(self._next + self._step, time.monotonic())
            pause = self._next - time.monotonic()
        time.sleep(max(0.0, pause))


PACE = Pace(120)


def dial(address: str, port: int) -> Wire:
    """Connect, when there is a turn; raise `OSError`."""
    PACE.wait()
    family, kind, proto, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    sock.settimeout(SECONDS)
    try:
        with on_way_to(address):
            sock.connect(where)
    except (OSError, Result):
        sock.close()
        raise
    return Wire(sock)


class Once:
    """The outcome of a call that is made once, whoever asks."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._lock = call, threading.Lock()
        self._done: List[Tuple[Any, Optional[Exception]]] = []

    def __call__(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        with self._lock:
            if not self._done:
                try:
                    self._done.append((self._call(), None))
                except Exception as fault:
                    self._done.append((None, fault))
        value, fault_ = self._done[0]
        if isinstance(fault_, Result):
            raise Result(fault_.state, fault_.evidence)
        if fault_ is not None:
            raise Result(UNTRIED, told(fault_))
        return value


PROOF = frozenset((
    errno.EPERM, errno.EACCES, errno.EROFS,  # we may not
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ESRCH,  # it is not there
    errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EPROTOTYPE, errno.EOPNOTSUPP,
    errno.ENOPROTOOPT, errno.ENOSYS,  # the kernel has no such thing
    errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH,  # no road leads there
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.ETIMEDOUT,  # somebody refused, or nobody answered
))  # fmt: skip
"""Faults that prove a way closed. Of any other, be it that files, memory or ports ran out, nothing follows."""
UNKNOWN_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", -5), getattr(socket, "EAI_ADDRFAMILY", -9))
"""What a look-up says of a name that leads nowhere; others say that it was not looked up."""


def is_proof(fault: OSError) -> bool:
    """Return whether a fault proves that a way is closed: silence does, having run out of something does not."""
    if isinstance(fault, ssl.SSLError):  # its numbers are of another kind
        return False
    if isinstance(fault, socket.gaierror):
        return fault.errno in UNKNOWN_NAME
    return isinstance(fault, socket.timeout) or fault.errno in PROOF


def must_prove(fault: OSError) -> None:
    """Raise a fault that must not be taken for «it is not there»."""
    if not is_proof(fault):
        raise fault


def must_have_ended(fault: OSError) -> None:
    """Raise a fault of a connection that says nothing of the other side: that breaks off, or breaks TLS."""
    if not isinstance(fault, ssl.SSLError):
        must_prove(fault)


@contextlib.contextmanager
def on_way_to(address: str) -> Iterator[None]:
    """Tell a sandbox that has no IPv6 address to send from (closed) from one whose ports ran out (the same error)."""
    try:
        yield
    except OSError as fault:
        if fault.errno == errno.EADDRNOTAVAIL and ":" in address and not has_ipv6():
            raise Result(CLOSED, "no IPv6 here") from None
        raise


def has_ipv6() -> bool:
    """Return whether a device of this sandbox besides its loopback has an IPv6 address."""
    try:
        with open("/proc/net/if_inet6") as table:
            return any(line.split()[-1] != "lo" for line in table)
    except FileNotFoundError:
        return False


def told(fault: BaseException) -> str:
    """Return what went wrong in a few words."""
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__


def _captures() -> bool:
    try:
        for address in NOBODY:
            dial(address, 9).sock.close()
    except OSError:
        return False
    return True


captures = Once(_captures)
"""Whether something here takes connections to whatever address."""

# ---- verdicts ------------------------------------------------------------------------------------


def reasons(said: bytes) -> List[str]:
    """Return the gate's reasons in an answer."""
    return [word.decode() for word in re.findall(re.escape(OURS) + rb"([a-z_0-9]+)", said)]


def judge(said: bytes, who: str = "it", *, ended: bool) -> None:
    """Tell an answer from beyond from the gate's own refusal and from silence."""
    found = reasons(said)
    if found:
        raise Result(CLOSED, "the gate refused: " + found[0])
    if said == ACCESS_DENIED:
        raise Result(CLOSED, "the gate refused the handshake")
    if said:
        raise Result(OPEN, "%s answered: %s" % (who, shown(said)))
    if not ended:
        raise Result(OPEN, who + " took the connection and kept it, without a word")
    if not captures():
        raise Result(OPEN, who + " took the connection, and nothing here takes all of them")
    raise Result(CLOSED, "taken by what takes every connection here, and closed without a word")


def shown(said: bytes) -> str:
    """Return the first words of an answer, fit for a line."""
    first = said[:60].split(b"\r\n")[0]
    return first.decode() if re.match(rb"[ -~]+$", first) else "%d bytes, %s…" % (len(said), said[:12].hex())


def judge_refusal(said: bytes, answers: int = 0, *, ended: bool) -> None:
    """Ask for a refusal by the gate where a way went through it; `answers` from beyond may come before."""
    beyond = [one for one in re.split(rb"(?=HTTP/1\.[01] \d{3})", said) if one and OURS not in one]
    found = reasons(said)
    if len(beyond) > answers:
        raise Result(OPEN, "somebody beyond answered: " + shown(beyond[answers]))
    judge_reasons(found)
    if not ended:
        raise Result(UNTRIED, "neither answered nor closed within %g s" % SECONDS)
    if answers and not beyond:
        raise Result(UNTRIED, "not even the good request was answered")
    raise Result(CLOSED, "closed without an answer")


def judge_reasons(found: List[str]) -> None:
    """Raise what the gate's reasons say, if there are any."""
    if not found:
        return
    if any(word in WENT_ON for word in found):
        raise Result(OPEN, "no rule refused it, it failed beyond them: " + ", ".join(found))
    if all(word in BESIDE for word in found):
        raise Result(UNTRIED, "refused for another reason: " + ", ".join(found))
    raise Result(CLOSED, "the gate refused: " + ", ".join(dict.fromkeys(found)))


# ---- straight out --------------------------------------------------------------------------------


def tcp(address: str, port: int, greeting: bytes = b"", who: str = "it") -> None:
    """Dial, greet, listen."""
    host = "[%s]" % address.split("%")[0] if ":" in address else address
    with dial(address, port) as wire:
        wire.send(greeting or b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % host.encode())
        said, ended = wire.read(4096)
    judge(said, who, ended=ended)


def tls(address: str, port: int, name: Optional[str], request: bytes = b"") -> None:
    """Dial, shake hands under a name without a check of the certificate, ask."""
    with dial(address, port) as wire:
        try:
            wire.start_tls(name)
        except OSError as fault:
            must_have_ended(fault)
            judge(wire.raw, ended=not isinstance(fault, socket.timeout))
        host = (name or address).encode()
        wire.send(request or b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % host)
        said, ended = wire.read(4096)
    judge(said or b"a handshake", ended=ended)


def name_leads_out(name: str) -> None:
    """Look a name up as programs do, and see whether its address answers for itself."""
    address = str(socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)[0][4][0])
    tcp(address, 80, who=address)


def looked_up(name: str, address: str) -> None:
    """Look a name up as programs do, and see whether the world's answer comes."""
    found = {info[4][0] for info in socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)}
    if address in found:
        raise Result(OPEN, "the world's answer came: " + address)
    raise Result(CLOSED, "it leads to " + ", ".join(sorted(str(one) for one in found)))


def question(name: str, kind: int = 1) -> bytes:
    """Return a DNS question."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!HHHHHH", 0x7467, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def judge_dns(reply: bytes, wanted: Optional[bytes]) -> None:
    """Tell a resolver that knows the world from one that does not."""
    if len(reply) < 12 or reply[:2] != b"tg":
        raise Result(CLOSED, "no answer")
    code, answers = reply[3] & 15, struct.unpack("!H", reply[6:8])[0]
    if wanted is None and answers and code == 0:
        raise Result(OPEN, "%d records came back" % answers)
    if wanted is not None and wanted in reply:
        raise Result(OPEN, "a resolver beyond answered")
    raise Result(CLOSED, "answered code %d, %d records, none from beyond" % (code, answers))


ONE = ("one.one.one.one", 1, b"\1\1\1\1")
"""A name with one answer in the world."""
CARRIED = ("tidegate-probe-" + "x" * 40 + ".1-1-1-1.sslip.io", 1, b"\1\1\1\1")
"""A name that carries what it likes: a wildcard that anybody may ask."""
TXT = ("o-o.myaddr.l.google.com", 16, None)
ROOT = ("", 2, None)
Question = Tuple[str, int, Optional[bytes]]


def dns_udp(server: str, asked: Question, port: int = 53) -> None:
    """Ask over UDP."""
    name, kind, wanted = asked
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        with on_way_to(server):
            sock.sendto(question(name, kind), (server, port))
        judge_dns(sock.recv(4096), wanted)


def dns_tcp(server: str, asked: Question) -> None:
    """Ask over TCP."""
    name, kind, wanted = asked
    with dial(server, 53) as wire:
        query = question(name, kind)
        wire.send(struct.pack("!H", len(query)) + query)
        said = wire.piece()
        while 2 <= len(said) < 2 + struct.unpack("!H", said[:2])[0]:
            piece = wire.piece()
            if not piece:
                break
            said += piece
        judge_dns(said[2:], wanted)


def udp(address: str, port: int, data: bytes) -> None:
    """Send a datagram that a server of that port answers."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        with on_way_to(address):
            sock.connect((address, port))
        sock.send(data)
        raise Result(OPEN, "%d bytes came back" % len(sock.recv(4096)))


def shouted(address: str, port: int, data: bytes) -> None:
    """Ask all neighbours at once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(data, (address, port))
        raise Result(OPEN, "a neighbour answered: " + str(sock.recvfrom(2048)[1][0]))


def is_own(peer: Tuple[Any, ...]) -> bool:
    """Return whether an address is this sandbox's own: who may stand on it, has it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in peer[0] else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((peer[0], 0, *peer[2:]))
    except OSError:
        return False
    return True


def ping(address: str, kind: socket.SocketKind = socket.SOCK_RAW) -> None:
    """Send an echo request; whoever answers, be it all nodes of a link, is somebody."""
    six = ":" in address
    proto = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0][4]
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET, kind, proto) as sock:
        with on_way_to(address):
            sock.sendto(b"\x80\0\0\0tgtg" if six else b"\x08\0\x0f\x31tgtg", where)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            sock.settimeout(max(0.01, end - time.monotonic()))
            data, peer = sock.recvfrom(2048)
            head = 0 if six or kind == socket.SOCK_DGRAM else 20
            asked = where[0] == peer[0] or ipaddress.ip_address(address.split("%")[0]).is_multicast
            if asked and data[head : head + 1] in (b"\0", b"\x81") and not is_own(peer):
                raise Result(OPEN, "an echo came back from " + str(peer[0]))
        raise Result(CLOSED, "no echo")


def protocol(address: str, number: int) -> None:
    """Send a bare packet of another protocol, and see whether a host says that it got it."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, number) as sock:
        sock.settimeout(SECONDS)
        sock.connect((address, 0))
        sock.send(bytes(24))
        try:
            raise Result(OPEN, "%d bytes came back" % len(sock.recv(2048)))
        except OSError as fault:
            if fault.errno == errno.ENOPROTOOPT:
                raise Result(OPEN, "it arrived: %s has no such protocol" % address) from None
            raise


# ---- frames --------------------------------------------------------------------------------------


class Card(NamedTuple):
    """A network device of this sandbox: name, hardware address, own address, length of its network."""

    name: str
    mac: bytes
    address: str
    length: int


def cards() -> List[Card]:
    """Return the devices that have an IPv4 address."""
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answers = [fcntl.ioctl(sock.fileno(), number, request) for number in (0x8915, 0x891B, 0x8927)]
            except OSError:
                continue
            mask = int.from_bytes(answers[1][20:24], "big")
            if name != "lo":
                address = socket.inet_ntoa(answers[0][20:24])
                found.append(Card(name, answers[2][18:24], address, bin(mask).count("1")))
    return found


def frames(card: Card, sent: List[bytes], wanted: Callable[[bytes], bool]) -> List[bytes]:
    """Send frames from a device, and return those that come and are wanted."""
    found = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as sock:
        sock.bind((card.name, 0))
        for frame in sent:
            sock.send(frame)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            sock.settimeout(max(0.01, end - time.monotonic()))
            try:
                frame, where = sock.recvfrom(2048)
            except socket.timeout:
                break
            if where[2] != socket.PACKET_OUTGOING and wanted(frame):
                found.append(frame)
    return found


def who_has(card: Card, address: str) -> bytes:
    """Return an ARP request."""
    asked = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + card.mac + socket.inet_aton(card.address)
    return b"\xff" * 6 + card.mac + b"\x08\x06" + asked + bytes(6) + socket.inet_aton(address)


def answered(card: Card, addresses: List[str]) -> Dict[str, bytes]:
    """Return the hardware addresses of those of `addresses` that answer on a device."""
    replies = frames(
        card, [who_has(card, one) for one in addresses], lambda one: one[12:14] == b"\x08\x06" and one[21] == 2
    )
    found = {socket.inet_ntoa(frame[28:32]): frame[22:28] for frame in replies}
    return {address: mac for address, mac in found.items() if address in addresses}


def around(card: Card) -> List[str]:
    """Return some addresses of a device's network besides its own; of a tiny network those that would be next."""
    own = ipaddress.ip_address(card.address)
    near = [own + step for step in (-3, -2, -1, 1, 2, 3, 4, 5, 7)]
    network = ipaddress.ip_network("%s/%d" % (card.address, card.length), strict=False)
    edge = (network.network_address, network.broadcast_address) if card.length < 31 else ()
    return [str(one) for one in near if one not in edge]


def neighbours() -> None:
    """Ask who else is on the link, besides the gateway."""
    seen = []
    for card in cards():
        known = gateways()
        found = answered(card, sorted({*known, *around(card)}))
        own = {mac for address, mac in found.items() if address in known} | {card.mac}
        seen += [address for address, mac in found.items() if mac not in own]
    if seen:
        raise Result(OPEN, "other neighbours answer: " + ", ".join(seen[:5]))
    raise Result(CLOSED, "nobody but the gateway answers")


def _checksum(data: bytes) -> int:
    total = 0
    for (word,) in struct.iter_unpack("!H", data):
        total += word
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def knock(source: str, target: str, port: int) -> bytes:
    """Return an IPv4 packet that asks for a connection."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!HHIIBBHHH", 0x7467, port, 1, 0, 5 << 4, 2, 1024, 0, 0)
    head = head[:16] + struct.pack("!H", _checksum(ends + struct.pack("!HH", 6, 20) + head)) + head[18:]
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0x7467, 0, 64, 6, 0) + ends
    return packet[:10] + struct.pack("!H", _checksum(packet)) + packet[12:] + head


def other_source() -> None:
    """Knock at the gateway under somebody else's address; whoever is answered, or looked for, was believed."""
    tried = 0
    for card in cards():
        found = answered(card, sorted({*gateways(), *around(card)}))
        macs = {address: mac for address, mac in found.items() if address in gateways()}
        # Nobody's: a gateway that looks for one of them has heard of it here.
        others = [one for one in around(card) if one not in found]
        sent = [
            mac + card.mac + b"\x08\x00" + knock(source, gateway, port)
            for gateway, mac in macs.items() for source in others for port in (53, 80, 443, 8080)
        ]  # fmt: skip
        raw = {socket.inet_aton(one) for one in others}

        def believed(frame: bytes, raw: frozenset[bytes] = frozenset(raw)) -> bool:
            looked_for = frame[12:14] == b"\x08\x06" and frame[21] == 1 and frame[38:42] in raw
            return looked_for or (frame[12:14] == b"\x08\x00" and frame[30:34] in raw and frame[36:38] == b"tg")

        tried += len(sent)
        if sent and frames(card, sent, believed):
            raise Result(OPEN, "the gateway took packets of another source than %s" % card.address)
    if not tried:
        raise Result(UNTRIED, "no gateway answers on this link")
    raise Result(CLOSED, "%d packets of other sources, none was answered" % tried)


# ---- through the gate ----------------------------------------------------------------------------


def proxy_place() -> Tuple[str, int, bytes]:
    """Return the proxy's host and port, and the header that logs in."""
    url = PROXY or os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise Result(UNTRIED, "no proxy to try with: --proxy URL" if not url else "not an http:// proxy: --proxy URL")
    login = unquote("%s:%s" % (parts.username or "", parts.password or "")).encode()
    header = b"Proxy-Authorization: Basic " + base64.b64encode(login) + b"\r\n" if parts.username else b""
    return parts.hostname, parts.port or 80, header


def allowed() -> Allowed:
    """Return what to try with."""
    if ALLOWED is None:
        raise Result(UNTRIED, "no allowed name to try with: --allowed NAME")
    return ALLOWED


def connect(target: str, more: bytes = b"") -> Tuple[Wire, bytes, bool]:
    """Say CONNECT to the proxy; return the connection, the answer, and whether the connection ended."""
    host, port, login = proxy_place()
    wire = dial(host, port)
    wire.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n%b" % (target.encode(), target.encode(), login, more))
    said = b""
    try:
        while not is_whole(said):
            piece = wire.piece()
            if not piece:
                return wire, said, True
            said += piece
    except socket.timeout:
        pass
    return wire, said, False


def is_whole(said: bytes) -> bool:
    """Return whether an answer to CONNECT has come to its end: a refusal leaves the connection open."""
    head, end, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and (head[9:10] == b"2" or (length is not None and len(body) >= int(length.group(1))))


def by_proxy() -> Wire:
    """Return a tunnel to the allowed name."""
    found = allowed()
    wire, said, _ = connect("%s:%d" % (found.name, found.port))
    if not re.match(rb"HTTP/1\.[01] 200", said):
        wire.sock.close()
        why = reasons(said)
        raise Result(UNTRIED, "the proxy refuses the allowed name: " + (why[0] if why else shown(said or b"nothing")))
    return wire


def by_name() -> Wire:
    """Return a connection to where the allowed name leads."""
    return dial(allowed().name, allowed().port)


def by_any() -> Wire:
    """Return a connection to an address of nobody's: only a gate that takes all connections answers."""
    return dial(NOBODY[0], allowed().port)


LANES: Dict[str, Callable[[], Wire]] = {"tunnel": by_proxy, "by name": by_name, "any address": by_any}
"""The ways into the gate for an allowed name."""


def asked(found: Allowed, more: bytes = b"Connection: close\r\n", path: Optional[str] = None) -> bytes:
    """Return a good request."""
    return b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % ((path or found.path).encode(), found.host.encode(), more)


def opened(lane: str, name: Optional[str], alpn: Tuple[str, ...] = ()) -> Wire:
    """Open a lane and shake hands under a name; raise the verdict where the gate refuses that."""
    wire = LANES[lane]()
    try:
        wire.start_tls(name, alpn)
    except OSError as fault:
        wire.sock.close()
        must_have_ended(fault)
        if wire.raw and wire.raw != ACCESS_DENIED and wire.raw[:1] != b"\x15":
            raise Result(OPEN, "somebody answered: " + shown(wire.raw)) from None
        if isinstance(fault, socket.timeout):
            raise Result(UNTRIED, "no handshake within %g s" % SECONDS) from None
        said = "an alert" if wire.raw else "no answer"
        raise Result(CLOSED, "the handshake was refused with " + said) from None
    return wire


def _good(lane: str) -> None:
    found = allowed()
    try:
        with opened(lane, found.name) as wire:
            wire.send(asked(found))
            said, _ = wire.read()
    except Result as result:
        raise Result(UNTRIED, "the good request: " + result.evidence) from None
    except OSError as fault:
        raise Result(UNTRIED, "the good request: " + told(fault)) from None
    if reasons(said):
        raise Result(UNTRIED, "the good request was refused: " + reasons(said)[0])
    if not said.startswith(b"HTTP/1"):
        raise Result(UNTRIED, "the good request had no answer")


GOOD = {lane: Once(partial(_good, lane)) for lane in LANES}
"""Whether a good request comes through a lane: without that a refusal there proves nothing."""


def through(lane: str, request: Callable[[Allowed], bytes], answers: int = 0) -> None:
    """Send what must be refused inside a connection to the allowed name."""
    GOOD[lane]()
    found = allowed()
    with opened(lane, found.name) as wire:
        try:
            wire.send(request(found))
        except (ConnectionError, ssl.SSLError):
            pass
        said, ended = wire.read()
    judge_refusal(said, answers, ended=ended)


def other_server_name(lane: str, *, inner: bool) -> None:
    """Shake hands under another name than the connection's, and ask for it, or for the allowed one, inside."""
    GOOD[lane]()
    found = allowed()
    host = found.denied if inner else found.host
    with opened(lane, found.denied) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % host.encode())
        said, ended = wire.read()
    judge_refusal(said, ended=ended)


def in_clear(lane: str, data: Callable[[Allowed], bytes]) -> None:
    """Send something else than TLS where TLS is due."""
    GOOD[lane]()
    with LANES[lane]() as wire:
        wire.send(data(allowed()))
        said, ended = wire.read()
    judge_refusal(said, ended=ended)


def plain_proxy(request: Callable[[Allowed], bytes]) -> None:
    """Send the proxy a request in clear that it must refuse."""
    GOOD["tunnel"]()
    host, port, login = proxy_place()
    with dial(host, port) as wire:
        wire.send(request(allowed()).replace(b"\r\n", b"\r\n" + login, 1))
        said, ended = wire.read()
    judge_refusal(said, ended=ended)


def via_proxy(target: str) -> None:
    """Ask the proxy to connect to what no policy may allow."""
    known_session()
    target = target.replace("{allowed}", allowed().name) if "{" in target else target
    wire, said, ended = connect(target)
    with wire:
        if re.match(rb"HTTP/1\.[01] 2", said):
            judge_tunnel(wire, target.rpartition(":")[0].strip("[]"), shown(said))
    if not said and not ended:
        raise Result(UNTRIED, "the proxy neither answered nor closed within %g s" % SECONDS)
    judge_reasons(reasons(said))
    raise Result(CLOSED, "the proxy said " + shown(said) if said else "the proxy closed the connection")


def judge_tunnel(wire: Wire, name: str, said: str) -> None:
    """Look inside a tunnel that was opened: a gate may have done so only to tell the refusal under the name's TLS."""
    try:
        wire.start_tls(name)
        wire.send(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % name.encode())
        answer, ended = wire.read()
    except (OSError, ValueError):  # no TLS there, or not a name for it
        answer, ended = b"", False
    if not reasons(answer):
        raise Result(OPEN, "the proxy connected: " + said)
    judge_refusal(answer, ended=ended)


def _known_session() -> None:
    """See to it that the proxy knows us: whom it does not know it refuses everything."""
    wire, said, _ = connect("169.254.169.254:80")
    wire.sock.close()
    found = reasons(said)
    if found and found[0] in BESIDE:
        raise Result(UNTRIED, "the proxy refuses us whatever we ask: " + found[0])
    if b" 407 " in said[:16]:
        raise Result(UNTRIED, "the proxy wants a login: --proxy http://USER:TOKEN@HOST:PORT")


known_session = Once(_known_session)


def after_refusal() -> None:
    """Go on talking on a connection whose CONNECT was refused."""
    known_session()
    found = allowed()
    more = b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (found.denied.encode(), found.denied.encode())
    wire, said, _ = connect("169.254.169.254:80", more)
    rest, ended = wire.read()
    wire.sock.close()
    judge_refusal(said + rest, ended=ended or bool(reasons(said)))


def socks(address: str, port: int, version: int) -> None:
    """Ask for metadata by SOCKS."""
    target = struct.pack("!H", 80) + b"\xa9\xfe\xa9\xfe"
    with dial(address, port) as wire:
        wire.send(b"\5\1\0" if version == 5 else b"\4\1" + target + b"\0")
        said = wire.read(2)[0] if version == 5 else wire.read(8)[0]
        if version == 5 and said == b"\5\0":
            wire.send(b"\5\1\0\1" + target[2:] + target[:2])
            said = wire.read(10)[0]
        if said[:2] in (b"\5\0", b"\0\x5a"):
            raise Result(OPEN, "a SOCKS server connected to metadata")
    raise Result(CLOSED, "answered " + said[:8].hex() if said else "taken, and no SOCKS answer")


BODY = b"x" * 5


def _framed(fields: bytes, body: bytes) -> Callable[[Allowed], bytes]:
    return lambda found: asked(found, fields) + body


def _hidden(fields: bytes) -> Callable[[Allowed], bytes]:
    """Return a request behind which another one hides, for who reads an empty chunked body."""
    return lambda found: asked(found, fields) + b"0\r\n\r\n" + asked(found, path="/tidegate-probe-hidden")


def _second(found: Allowed) -> bytes:
    return asked(found, b"") + b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % found.denied.encode()


def _start(line: bytes, fields: bytes = b"Host: {A}\r\n") -> Callable[[Allowed], bytes]:
    """Return a request as it stands; {A} is the allowed authority, {B} the denied one, {P} the path."""

    def made(found: Allowed) -> bytes:
        text = line + b"\r\n" + fields + b"Connection: close\r\n\r\n"
        text = text.replace(b"{A}", found.host.encode()).replace(b"{B}", found.denied.encode())
        return text.replace(b"{P}", found.path.encode())

    return made


CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED: Tuple[Tuple[str, Callable[[Allowed], bytes]], ...] = (
    ("Content-Length before Transfer-Encoding", _hidden(b"Content-Length: 5\r\n" + CHUNKED)),
    ("Transfer-Encoding before Content-Length", _hidden(CHUNKED + b"Content-Length: 5\r\n")),
    ("two Content-Lengths", _framed(b"Content-Length: 5\r\nContent-Length: 0\r\n", BODY)),
    ("Content-Length 5, 0", _framed(b"Content-Length: 5, 0\r\n", BODY)),
    ("Content-Length +5", _framed(b"Content-Length: +5\r\n", BODY)),
    ("Content-Length 0x5", _framed(b"Content-Length: 0x5\r\n", BODY)),
    ("Content-Length -1", _framed(b"Content-Length: -1\r\n", BODY)),
    ("Content-Length of twenty digits", _framed(b"Content-Length: 18446744073709551621\r\n", BODY)),
    ("Transfer-Encoding: xchunked", _hidden(b"Transfer-Encoding: xchunked\r\n")),
    ("Transfer-Encoding: chunked, identity", _hidden(b"Transfer-Encoding: chunked, identity\r\n")),
    ("two Transfer-Encodings", _hidden(CHUNKED + b"Transfer-Encoding: identity\r\n")),
    ("Transfer-Encoding after a vertical tab", _hidden(b"Transfer-Encoding: \x0bchunked\r\n")),
    ("Transfer-Encoding, a space, a colon", _hidden(b"Transfer-Encoding : chunked\r\n")),
    ("Transfer-Encoding on a folded line", _hidden(b"Transfer-Encoding:\r\n chunked\r\n")),
    ("Transfer-Encoding behind a bare LF", _hidden(b"X: y\nTransfer-Encoding: chunked\r\n")),
    ("Transfer-Encoding behind a bare CR", _hidden(b"X: y\rTransfer-Encoding: chunked\r\n")),
    ("NUL in a value", _framed(b"X: a\0b\r\nConnection: close\r\n", b"")),
    ("a line without a colon", _framed(b"Xyz\r\nConnection: close\r\n", b"")),
    ("Connection: Content-Length", _framed(b"Content-Length: 5\r\nConnection: Content-Length\r\n", BODY)),
    ("chunk size 0x5", _framed(CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n")),
    ("chunk size +5", _framed(CHUNKED, b"+5\r\nhello\r\n0\r\n\r\n")),
    ("chunk data without its CRLF", _framed(CHUNKED, b"5\r\nhelloXX0\r\n\r\n")),
    ("chunk size ended by a bare LF", _framed(CHUNKED, b"5\nhello\r\n0\r\n\r\n")),
    ("HTTP/1.0 with Transfer-Encoding", lambda found: _hidden(CHUNKED)(found).replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
)
"""Requests with two readings; each reading but refusal lets one side see what the other did not judge."""
MISNAMED: Tuple[Tuple[str, Callable[[Allowed], bytes]], ...] = (
    ("Host of another name", _start(b"GET {P} HTTP/1.1", b"Host: {B}\r\n")),
    ("Host of another port", _start(b"GET {P} HTTP/1.1", b"Host: {A}:9\r\n")),
    ("Host an address", _start(b"GET {P} HTTP/1.1", b"Host: 169.254.169.254\r\n")),
    ("two Hosts, the other one last", _start(b"GET {P} HTTP/1.1", b"Host: {A}\r\nHost: {B}\r\n")),
    ("two Hosts, the other one first", _start(b"GET {P} HTTP/1.1", b"Host: {B}\r\nHost: {A}\r\n")),
    ("Host with a user part", _start(b"GET {P} HTTP/1.1", b"Host: {A}@{B}\r\n")),
    ("Host of two names", _start(b"GET {P} HTTP/1.1", b"Host: {A}, {B}\r\n")),
    ("no Host", _start(b"GET {P} HTTP/1.1", b"")),
    ("absolute target of another name", _start(b"GET https://{B}/ HTTP/1.1", b"Host: {B}\r\n")),
    ("absolute target, Host of the allowed name", _start(b"GET https://{B}{P} HTTP/1.1")),
    ("absolute target, Host of another name", _start(b"GET https://{A}{P} HTTP/1.1", b"Host: {B}\r\n")),
    ("absolute target in clear, inside TLS", _start(b"GET http://169.254.169.254/ HTTP/1.1")),
    ("target with a user part", _start(b"GET https://{A}@{B}/ HTTP/1.1")),
    ("CONNECT inside", _start(b"CONNECT {B}:443 HTTP/1.1", b"Host: {B}:443\r\n")),
)
"""Requests that name another place than the connection that they come in."""
PLAIN = (
    ("absolute target of another name", _start(b"GET http://{B}/ HTTP/1.1", b"Host: {B}\r\n")),
    ("absolute target of another name, Host of the allowed", _start(b"GET http://{B}/ HTTP/1.1")),
    ("absolute target of metadata, Host of the allowed", _start(b"GET http://169.254.169.254/ HTTP/1.1")),
    ("https target of another name", _start(b"GET https://{B}/ HTTP/1.1", b"Host: {B}\r\n")),
    ("origin target, Host of another name", _start(b"GET / HTTP/1.1", b"Host: {B}\r\n")),
    ("ftp target", _start(b"GET ftp://{B}/ HTTP/1.1", b"Host: {B}\r\n")),
    ("file target", _start(b"GET file:///etc/passwd HTTP/1.1", b"Host: {B}\r\n")),
)
IN_CLEAR: Tuple[Tuple[str, Callable[[Allowed], bytes]], ...] = (
    ("HTTP in clear for another name", _start(b"GET / HTTP/1.1", b"Host: {B}\r\n")),
    ("an SSH greeting", lambda found: b"SSH-2.0-probe\r\n"),
    ("an odd method and HTTP in clear", _start(b"X-Y / HTTP/1.1", b"Host: {B}\r\n")),
    ("an empty line and HTTP in clear", lambda found: b"\r\n" + _start(b"GET / HTTP/1.1", b"Host: {B}\r\n")(found)),
    ("64 zeros", lambda found: bytes(64)),
)
TARGETS = (
    "169.254.169.254:80", "127.0.0.1:22", "localhost:8080", "1.1.1.1:25", "1.1.1.1:443", "[::1]:80", "metadata:80",
    "metadata.google.internal.:80", "2852039166:80", "0xa9fea9fe:80", "0251.0376.0251.0376:80", "169.254.43518:80",
    "127.1:80", "[::ffff:169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80", "169.254.169.254.nip.io:80",
    "one.one.one.one:443", "cloudflare-dns.com:443", "dns.google:853",
)  # fmt: skip
ALLOWED_TARGETS = (
    *("{allowed}:%d" % port for port in ODD_PORTS),
    "{allowed}@169.254.169.254:80", "169.254.169.254#{allowed}:443", "{allowed}%00.169.254.169.254:443",
    "{allowed}:443@169.254.169.254:443", "x.{allowed}.1.1.1.1.nip.io:443",
)  # fmt: skip

# ---- HTTP/2 --------------------------------------------------------------------------------------

Fields = List[Tuple[bytes, bytes]]


def _number(value: int, bits: int, flags: int = 0) -> bytes:
    """Return an integer of HPACK (RFC 7541 section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([flags | value])
    out, value = bytearray([flags | most]), value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out) + bytes([value])


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def headers(fields: Fields, stream: int, *, end: bool = True) -> bytes:
    """Return a HEADERS frame whose fields are literals that nobody keeps."""
    block = b"".join(
        b"\0" + _number(len(name), 7) + name + _number(len(value), 7) + value for name, value in fields
    )  # fmt: skip
    return frame(1, 4 | (1 if end else 0), stream, block)


class H2Answer(NamedTuple):
    """What came back on a stream: whether a head did, the body, whether it was cut, whether it ended."""

    head: bool
    body: bytes
    cut: bool
    ended: bool


def h2_read(wire: Wire, stream: int) -> H2Answer:
    """Read until a stream has ended, or the connection."""
    data, head, body = b"", False, b""
    try:
        while True:
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
                number, payload, data = (
                    int.from_bytes(data[5:9], "big") & 0x7FFFFFFF,
                    data[9 : 9 + size],
                    data[9 + size :],
                )
                if kind == 4 and not flags & 1:
                    wire.send(frame(4, 1, 0))
                if kind == 7 or (kind == 3 and number == stream):
                    return H2Answer(head, body, cut=True, ended=True)
                if number == stream:
                    head, body = head or kind == 1, body + (payload if kind == 0 else b"")
                    if kind in (0, 1) and flags & 1:
                        return H2Answer(head, body, cut=False, ended=True)
            piece = wire.piece()
            if not piece:
                return H2Answer(head, body, cut=True, ended=True)
            data += piece
    except socket.timeout:
        return H2Answer(head, body, cut=False, ended=False)
    except OSError as fault:
        must_have_ended(fault)
        return H2Answer(head, body, cut=True, ended=True)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


def h2_request(found: Allowed, **changed: str) -> Fields:
    """Return the pseudo-fields of a good request, with some of them changed; "" leaves one out."""
    parts = {"method": "GET", "scheme": "https", "authority": found.host, "path": found.path, **changed}
    return [(b":" + name.encode(), value.encode()) for name, value in parts.items() if value]


def opened_h2(lane: str) -> Wire:
    """Open a lane with HTTP/2, which each of the gate's workers offers once it has seen that the server can."""
    found = allowed()
    for _ in range(8):
        wire = opened(lane, found.name, ("h2", "http/1.1"))
        if wire.alpn == "h2":
            return wire
        with wire:
            wire.send(asked(found))
            wire.read()
    raise Result(UNTRIED, "no HTTP/2 here for the allowed name")


def _h2_good(lane: str) -> None:
    GOOD[lane]()
    with opened_h2(lane) as wire:
        wire.send(PREFACE + headers(h2_request(allowed()), 1))
        answer = h2_read(wire, 1)
    if not answer.head or OURS in answer.body:
        raise Result(UNTRIED, "the good request over HTTP/2 was not answered")


H2_GOOD = {lane: Once(partial(_h2_good, lane)) for lane in LANES}


def h2(lane: str, made: Callable[[Allowed], Fields], body: bytes = b"", *, second: bool = False) -> None:
    """Send over HTTP/2 what must be refused, on a connection of its own, or behind a good request."""
    H2_GOOD[lane]()
    found = allowed()
    with opened_h2(lane) as wire:
        wire.send(PREFACE)
        stream = 1
        if second:
            wire.send(headers(h2_request(found), 1))
            if not h2_read(wire, 1).head:
                raise Result(UNTRIED, "the good request before was not answered")
            stream = 3
        wire.send(headers(made(found), stream, end=not body) + (frame(0, 1, stream, body) if body else b""))
        answer = h2_read(wire, stream)
    judge_reasons(reasons(answer.body))
    if answer.head:
        raise Result(OPEN, "somebody beyond answered: %d bytes" % len(answer.body))
    if not answer.ended:
        raise Result(UNTRIED, "neither answered nor closed within %g s" % SECONDS)
    raise Result(CLOSED, "the stream was reset" if answer.cut else "ended without an answer")


def _beside(name: bytes, value: bytes) -> Callable[[Allowed], Fields]:
    return lambda found: [*h2_request(found), (name, value.replace(b"{B}", found.denied.encode()))]


H2: Tuple[Tuple[str, Callable[[Allowed], Fields], bytes], ...] = (
    (":authority of another name", lambda found: h2_request(found, authority=found.denied), b""),
    (":authority with a user part", lambda found: h2_request(found, authority=found.name + "@" + found.denied), b""),
    (":authority an address", lambda found: h2_request(found, authority="169.254.169.254"), b""),
    ("host of another name beside :authority", _beside(b"host", b"{B}"), b""),
    (
        "host of another name, no :authority",
        lambda found: [*h2_request(found, authority=""), (b"host", found.denied.encode())],
        b"",
    ),
    (":path an absolute target", lambda found: h2_request(found, path="https://%s/" % found.denied), b""),
    (
        "CONNECT",
        lambda found: h2_request(found, method="CONNECT", scheme="", path="", authority=found.denied + ":443"),
        b"",
    ),
    ("CR and LF in a value", _beside(b"x", b"y\r\nhost: {B}"), b""),
    ("CR and LF in :path", lambda found: h2_request(found, path="/ HTTP/1.1\r\nhost: " + found.denied), b""),
    ("CR and LF in :method", lambda found: h2_request(found, method="GET / HTTP/1.1\r\nx:"), b""),
    ("a colon in a name", _beside(b"x: y", b"z"), b""),
    ("an upper-case name", _beside(b"Host", b"{B}"), b""),
    ("transfer-encoding", _beside(b"transfer-encoding", b"chunked"), b"0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"),
    ("content-length of less than is sent", _beside(b"content-length", b"0"), b"GET /hidden HTTP/1.1\r\n\r\n"),
)  # fmt: skip

# ---- what lies in the sandbox --------------------------------------------------------------------


def _spaces(pid: str) -> Tuple[str, ...]:
    return tuple(os.readlink("/proc/%s/ns/%s" % (pid, kind)) for kind in ("pid", "mnt", "net", "user"))


def is_ours(sock: socket.socket) -> bool:
    """Return whether at the other end of a unix socket is this sandbox itself: same namespaces, same user."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        return pid > 0 and uid == os.geteuid() and _spaces(str(pid)) == _spaces("self")
    except OSError:
        return False


@contextlib.contextmanager
def named(address: str | bytes) -> Iterator[str | bytes]:
    """Name a socket so that it can be dialled: one with a path longer than an address by its descriptor (unix(7))."""
    if isinstance(address, bytes) or len(os.fsencode(address)) < ADDRESS_BYTES:
        yield address
        return
    found = os.open(address, os.O_PATH)
    try:
        yield "/proc/self/fd/%d" % found
    finally:
        os.close(found)


class Others:
    """Whose sockets take connections. A fault of one, which proves nothing, keeps none of the rest from being tried."""

    def __init__(self) -> None:
        self.found: Set[str] = set()
        self._fault: Optional[OSError] = None

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Try one."""
        try:
            yield
        except OSError as fault:
            self.fail(fault)

    def fail(self, fault: OSError) -> None:
        """Take note of a fault, if it must not be taken for «it is not there»."""
        self._fault = self._fault or (None if is_proof(fault) else fault)

    def judge(self, none: str) -> NoReturn:
        """Say what came of it; `none`: where all were tried."""
        if self.found:
            raise Result(OPEN, "takes connections: " + ", ".join(sorted(self.found)[:5]))
        if self._fault is not None:
            raise self._fault
        raise Result(CLOSED, none)


def talk(address: str | bytes, kind: int = socket.SOCK_STREAM) -> Optional[str]:
    """Connect to a unix socket; return whose it is: «ours», «gate», «other», or None where nobody takes it."""
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.settimeout(0.5)
        try:
            with named(address) as dialled:
                sock.connect(dialled)
        except (socket.timeout, BlockingIOError):
            return "other"  # somebody listens, and has no room just now
        except OSError as fault:
            must_prove(fault)
            return None
        if kind == socket.SOCK_DGRAM:
            return "other"  # a datagram socket says nothing of whose it is
        if is_ours(sock):
            return "ours"
        try:
            sock.settimeout(SECONDS)  # a gate that is busy is still the gate
            sock.sendall(b"GET / HTTP/1.1\r\nHost: tidegate-probe\r\nConnection: close\r\n\r\n")
            return "gate" if OURS in sock.recv(65536) else "other"
        except OSError:
            return "other"


def unix(path: str) -> None:
    """Connect to a socket of the host's."""
    if not os.path.exists(path):
        raise Result(CLOSED, "not there")
    who = talk(path)
    if who == "other":
        raise Result(OPEN, "it takes connections")
    raise Result(CLOSED, {"ours": "of this sandbox itself", "gate": "the gate itself"}.get(who or "", "takes none"))


def unix_folders() -> None:
    """Connect to every socket that lies in the usual folders or is named in the environment."""
    others, count = Others(), 0
    places = [*UNIX_FOLDERS, os.path.expanduser("~"), os.environ.get("XDG_RUNTIME_DIR") or ""]
    end = time.monotonic() + 3 * SECONDS
    for place in dict.fromkeys(places):
        for folder, inner, names in os.walk(place, onerror=others.fail) if place else ():
            inner[:] = [] if folder[len(place) :].count("/") > 3 or time.monotonic() > end else inner
            for path in (os.path.join(folder, name) for name in names):
                with others.trying():
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        count += 1
                        if talk(path) == "other":
                            others.found.add(path)
    others.judge("%d there, none of the host's takes a connection" % count)


def agent() -> None:
    """Look for an SSH agent: it signs for whoever asks."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        raise Result(CLOSED, "none")
    unix(path)


def held_here(inode: str) -> bool:
    """Return whether a process of this sandbox itself holds a socket."""
    for folder in glob.glob("/proc/[0-9]*/fd"):
        pid = folder.split("/")[2]
        try:
            if os.stat("/proc/" + pid).st_uid != os.geteuid() or _spaces(pid) != _spaces("self"):
                continue
            if any(os.readlink(one) == "socket:[%s]" % inode for one in glob.glob(folder + "/*")):
                return True
        except OSError:
            continue
    return False


def abstract() -> None:
    """Connect to every abstract socket that is listed; those of this sandbox itself are its own affair."""
    try:
        with open("/proc/net/unix", "rb") as table:
            rows = [line.rstrip(b"\n").split(None, 7) for line in list(table)[1:]]
    except OSError as fault:
        raise Result(UNTRIED, "/proc/net/unix: " + told(fault)) from None
    names = {(row[7], int(row[4], 16), row[6].decode()) for row in rows if len(row) == 8 and row[7].startswith(b"@")}
    others = Others()
    for name, kind, inode in sorted(names)[:200]:
        if len(others.found) == 5:
            break
        # NUL bytes are listed as @.
        for spelled in {b"\0" + name[1:], b"\0" + name[1:].replace(b"@", b"\0")}:
            # Who holds a datagram socket, only the list of open files tells.
            with others.trying():
                if talk(spelled, kind) == "other" and not (kind == socket.SOCK_DGRAM and held_here(inode)):
                    others.found.add(name.decode("utf-8", "replace"))
    others.judge("%d listed, none of others takes a connection" % len(names))


def kernel(path: str) -> None:
    """Open a file that shows the kernel or the host, or that would change it."""
    if not os.path.exists(path):
        raise Result(CLOSED, "not there")
    if os.path.isdir(path):
        if os.listdir(path):
            raise Result(OPEN, "can be listed")
        raise Result(CLOSED, "empty")
    if stat.S_ISCHR(os.stat(path).st_mode) and os.stat(path).st_rdev == os.stat("/dev/null").st_rdev:
        raise Result(CLOSED, "/dev/null lies over it")
    mode = os.O_WRONLY | os.O_APPEND if path in TO_WRITE else os.O_RDONLY
    with open(os.open(path, mode | os.O_NONBLOCK), "ab" if path in TO_WRITE else "rb", buffering=0) as file:
        if path in TO_WRITE:
            raise Result(OPEN, "can be written to")
        try:
            said = file.read(1)
        except PermissionError:
            raise
        except OSError:  # it is open, and wants to be read in another way
            said = None
    if said is None:  # nothing to read just now: who waits for it gets it
        raise Result(OPEN, "can be opened")
    raise Result(*((OPEN, "can be read") if said else (CLOSED, "empty")))


def disks() -> None:
    """Open a disk of the host's."""
    found = [path for pattern in ("sd?", "vd?", "nvme?n?", "xvd?", "dm-?") for path in glob.glob("/dev/" + pattern)]
    for path in found:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as fault:
            must_prove(fault)
            continue
        raise Result(OPEN, "can be opened: " + path)
    raise Result(CLOSED, "%d there, none can be opened" % len(found))


def release_agents() -> None:
    """Look for a control group that would run a program of our choice on the host."""
    for path in glob.glob("/sys/fs/cgroup/release_agent") + glob.glob("/sys/fs/cgroup/*/release_agent"):
        if os.access(path, os.W_OK):
            raise Result(OPEN, "can be written to: " + path)
    raise Result(CLOSED, "none can be written to")


def holds_secret(text: str) -> bool:
    """Return whether a text from which placeholders were cut still holds what may be a secret; doubt says yes."""
    if PRIVATE_KEY.search(text) or SECRET_VALUE.search(text):
        return True
    rest = CERTIFICATE.sub("", text)
    found = (word for shape in (NAMED, IN_ADDRESS, ALONE, PGPASS, LONG) for one in shape.finditer(rest)
             for word in one.groups() if word)  # fmt: skip
    return any(not HARMLESS.fullmatch(word) for word in found)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a credential that is no placeholder, whatever placeholders stand beside it."""
    rest = PLACEHOLDER.sub(CUT, value)
    if PRIVATE_KEY.search(rest) or SECRET_VALUE.search(rest):
        return True
    if not SECRET_NAME.search(name):
        return False
    if rest == value:
        return len(value) >= 12 and value[:1] != "/"
    words = re.split(r"[\s,;]+", re.sub(r"https?://[^/\s:@]*:?\0@\S*", "", rest))
    return holds_secret(rest) or any(len(word.replace(CUT, "")) >= 8 for word in words)


def _secrets(environment: Dict[str, str]) -> List[str]:
    return sorted(name for name, value in environment.items() if is_secret(name, value))


def ambient_environment() -> None:
    """Look for credentials in the environment that are no placeholders."""
    found = _secrets(dict(os.environ))
    if found:
        raise Result(OPEN, "no placeholder: " + ", ".join(found))
    raise Result(CLOSED, "%d variables, none holds a credential" % len(os.environ))


def ambient_processes() -> None:
    """Look for credentials in the environment of the other processes that can be seen."""
    seen = 0
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                pairs = [one.partition("=") for one in file.read(262144).decode("latin-1").split("\0")]
        except OSError as fault:
            must_prove(fault)
            continue
        seen += 1
        found = _secrets({name: value for name, _, value in pairs})
        if found:
            raise Result(OPEN, "process %s: %s" % (path.split("/")[2], ", ".join(found)))
    raise Result(CLOSED, "%d can be read, none holds a credential" % seen)


def ambient_file(pattern: str) -> None:
    """Look for credentials in files."""
    found = [path for path in glob.glob(os.path.expanduser(pattern)) if os.path.isfile(path) and os.path.getsize(path)]
    read = 0
    for path in found:
        if path.endswith(".pub"):
            continue
        try:
            with open(path, "rb") as file:
                text = file.read(1 << 20).decode("latin-1")
        except OSError as fault:
            must_prove(fault)
            continue
        read += 1
        rest = PLACEHOLDER.sub(CUT, text)
        if rest == text or holds_secret(rest):
            raise Result(OPEN, path)
    unread = "%d there, none can be read" % len(found) if found else "none"
    raise Result(CLOSED, "placeholders only" if read else unread)


# ---- more than the wall lets through -------------------------------------------------------------


class Flood:
    """Connections to one place, as many at once as are asked for; counted are those that were taken and still stand."""

    def __init__(self, where: Tuple[str, int]) -> None:
        self._where = where
        self._socks: List[socket.socket] = []

    def __enter__(self) -> Flood:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 4096), hard))
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks:
            sock.close()

    def grow(self, count: int, seconds: float) -> None:
        """Begin so many connections, evenly over a time."""
        begun = time.monotonic()
        for number in range(count):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socks.append(sock)
            sock.settimeout(0)
            sock.connect_ex(self._where)
            pause = begun + seconds * number / count - time.monotonic()
            if pause > 0:
                time.sleep(pause)

    def standing(self) -> int:
        """Return how many are connected, and not closed again."""
        found = 0
        for sock in self._socks:
            poll = select.poll()
            poll.register(sock, select.POLLOUT | select.POLLIN | getattr(select, "POLLRDHUP", 0x2000))
            events = poll.poll(0)
            found += bool(events) and events[0][1] == select.POLLOUT
        return found


MOST, NEW_A_SECOND, SLACK = 1024, 200, 32
"""What the wall lets through, at once and new in a second; the kernel may miss a few that begin together."""


def _flood_place() -> Tuple[str, int]:
    if not FLOOD:
        raise Result(UNTRIED, "it is a burden on the gate: --flood tries it")
    places = [(NOBODY[0], 443), *((gateway, port) for gateway in gateways() for port in (443, 8080))]
    for place in places:
        try:
            dial(*place).sock.close()
            return place
        except OSError as fault:
            must_prove(fault)
    raise Result(CLOSED, "nobody takes a connection here")


flood_place = Once(_flood_place)


def flood_fast() -> None:
    """Begin more connections in less than a second than the wall lets through."""
    place = flood_place()
    tried, seconds = 520, 0.5
    time.sleep(1.2)  # what was let through before must not count
    begun = time.monotonic()
    with Flood(place) as flood:
        flood.grow(tried, seconds)
        time.sleep(0.3)  # less than a second in all: what was dropped has not been sent again
        came = flood.standing()
        took = time.monotonic() - begun
    most = NEW_A_SECOND * (1 + took) + 40  # a burst, then the rate
    if most >= tried:
        raise Result(UNTRIED, "this sandbox is too slow to try it: %.1f s" % took)
    state = OPEN if came > most else CLOSED
    raise Result(state, "%d of %d connections came through within %.1f s" % (came, tried, took))


def flood_many() -> None:
    """Hold more connections at once than the wall lets stand."""
    place = flood_place()
    tried = MOST + 76
    time.sleep(1.2)
    with Flood(place) as flood:
        try:
            flood.grow(tried, tried / (NEW_A_SECOND * 0.9))
        except OSError as fault:
            raise Result(UNTRIED, "this sandbox cannot hold as many: " + told(fault)) from None
        time.sleep(0.5)
        stand = flood.standing()
    if stand > MOST + SLACK:
        raise Result(OPEN, "%d of %d connections stand at once" % (stand, tried))
    raise Result(CLOSED, "%d of %d connections stand at once" % (stand, tried))


# ---- the list ------------------------------------------------------------------------------------


def gateways() -> List[str]:
    """Return the IPv4 gateways and name servers beyond this sandbox: the neighbours that it knows."""
    found = []
    try:
        with open("/proc/net/route") as table:
            for line in list(table)[1:]:
                if line.split()[2] != "00000000":
                    found.append(socket.inet_ntoa(struct.pack("<I", int(line.split()[2], 16))))
    except OSError:
        pass
    return sorted({*found, *(one for one in resolvers() if ":" not in one and not one.startswith("127."))})


def gateways6() -> List[str]:
    """Return the IPv6 gateways, with their device where they are of one link."""
    found = set()
    try:
        with open("/proc/net/ipv6_route") as table:
            for line in table:
                words = line.split()
                address = str(ipaddress.IPv6Address(bytes.fromhex(words[4])))
                if int(words[4], 16) and words[9] != "lo":
                    found.add(address + ("%" + words[9] if address.startswith("fe80:") else ""))
    except (OSError, ValueError, IndexError):
        pass
    return sorted(found)


def resolvers() -> List[str]:
    """Return the name servers of this sandbox."""
    try:
        with open("/etc/resolv.conf") as file:
            found = [line.split()[1] for line in file if line.startswith("nameserver") and len(line.split()) > 1]
    except OSError:
        return []
    return list(dict.fromkeys(one.split("%")[0] for one in found))


def _straight() -> Iterator[Way]:
    for address in PUBLIC4 + PUBLIC6:
        yield Way("direct", "TCP 80 of " + address, partial(tcp, address, 80))
        yield Way("direct", "TCP 443 of " + address, partial(tls, address, 443, None))
    for port in (22, 25, 465, 587, 853, 8443):
        yield Way("direct", "TCP %d of 1.1.1.1" % port, partial(tcp, "1.1.1.1", port, b"EHLO x\r\n"))
    for form, address in TRANSITION:
        yield Way("transition", "%s %s" % (form, address), partial(tcp, address, 80))
    for address in METADATA:
        yield Way("metadata", address, partial(tcp, address, 80))
    for _, device in socket.if_nameindex():
        if device != "lo":
            address = "fe80::5efe:101:101%" + device
            yield Way("transition", "ISATAP " + address, partial(tcp, address, 80))
            address = "fe80::a9fe:a9fe%" + device
            yield Way("metadata", address, partial(tcp, address, 80))
    for name in METADATA_NAMES:
        yield Way("metadata", name, partial(name_leads_out, name))
    for address in PRIVATE:
        yield Way("private", "TCP 80 of " + address, partial(tcp, address, 80))


def _host() -> Iterator[Way]:
    for name in HOST_NAMES:
        yield Way("host", name, partial(name_leads_out, name))
    for gateway in gateways() + gateways6():
        for port in HOST_PORTS:
            yield Way("host", "TCP %d of the gateway %s" % (port, gateway), partial(tcp, gateway, port))
        for port, data in HOST_UDP:
            yield Way("host", "UDP %d of the gateway %s" % (port, gateway), partial(udp, gateway, port, data))
    for gateway in gateways() + gateways6():
        yield Way("host", "echo of the gateway " + gateway, partial(ping, gateway))


def _dns() -> Iterator[Way]:
    for server in dict.fromkeys((*resolvers(), *PUBLIC4, *PUBLIC6[:1])):
        yield Way("dns", "UDP 53 of " + server, partial(dns_udp, server, ONE))
        yield Way("dns", "TCP 53 of " + server, partial(dns_tcp, server, ONE))
    for server in dict.fromkeys((*resolvers(), "8.8.8.8")):
        yield Way("dns", "the root's servers, of " + server, partial(dns_udp, server, ROOT))
        yield Way("dns", "TXT tunnel by " + server, partial(dns_udp, server, TXT))
        yield Way("dns", "TXT tunnel by TCP of " + server, partial(dns_tcp, server, TXT))
        yield Way("dns", "data in labels by " + server, partial(dns_udp, server, CARRIED))
    yield Way("dns", "the system's own look-up", partial(looked_up, "one.one.one.one", "1.1.1.1"))
    yield Way("dns", "data in labels by the system", partial(looked_up, CARRIED[0], "1.1.1.1"))
    yield Way("dns", "UDP 5353 of 1.1.1.1", partial(dns_udp, "1.1.1.1", ONE, 5353))
    over_tls = struct.pack("!H", len(question("example.com"))) + question("example.com")
    yield Way("dns", "DNS over TLS", partial(tls, "1.1.1.1", 853, "one.one.one.one", over_tls))
    for name in ("cloudflare-dns.com", "dns.google", "dns.quad9.net"):
        yield Way("dns", "DNS over HTTPS at " + name, partial(tls, "1.1.1.1", 443, name))


def _datagrams() -> Iterator[Way]:
    for port, data in UDP:
        yield Way("udp", "UDP %d of 1.1.1.1" % port, partial(udp, "1.1.1.1", port, data))
    yield Way("udp", "UDP 443 of " + PUBLIC6[0], partial(udp, PUBLIC6[0], 443, UDP[2][1]))
    mdns = question("_services._dns-sd._udp.local", 12)
    yield Way("udp", "multicast, mDNS", partial(shouted, "224.0.0.251", 5353, mdns))
    search = (
        b'M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMAN: "ssdp:discover"\r\nMX: 1\r\nST: ssdp:all\r\n\r\n'
    )
    yield Way("udp", "multicast, SSDP", partial(shouted, "239.255.255.250", 1900, search))
    yield Way("udp", "broadcast, NTP", partial(shouted, "255.255.255.255", 123, NTP))
    for address in ("1.1.1.1", PUBLIC6[0]):
        yield Way("icmp", "echo of " + address, partial(ping, address))
        yield Way("icmp", "echo of %s by a datagram socket" % address, partial(ping, address, socket.SOCK_DGRAM))
    for _, name in socket.if_nameindex():
        if name != "lo":
            yield Way("icmp", "echo of all nodes on " + name, partial(ping, "ff02::1%" + name))
    for place in ("1.1.1.1", *gateways()):
        for number, name in PROTOCOLS:
            yield Way("ip", "%s (%d) to %s" % (name, number, place), partial(protocol, place, number))
    yield Way("link", "other neighbours", neighbours)
    yield Way("link", "another source address", other_source)


def _gate() -> Iterator[Way]:
    for target in TARGETS + ALLOWED_TARGETS:
        yield Way("proxy", "CONNECT " + target.replace("{allowed}", "NAME"), partial(via_proxy, target))
    yield Way("proxy", "more after a refused CONNECT", after_refusal)
    for name, made in PLAIN:
        yield Way("proxy", name, partial(plain_proxy, made))
    for gateway in gateways() or ["127.0.0.1"]:
        for port in (1080, 8080):
            for version in (5, 4):
                where = "SOCKS%d at %s port %d" % (version, gateway, port)
                yield Way("proxy", where, partial(socks, gateway, port, version))
    for lane in LANES:
        yield Way("name", "server name of another, Host too, " + lane, partial(other_server_name, lane, inner=True))
        if lane == "tunnel":
            name = "server name of another, allowed Host, " + lane
            yield Way("name", name, partial(other_server_name, lane, inner=False))
        for name, made in MISNAMED:
            yield Way("name", "%s, %s" % (name, lane), partial(through, lane, made))
        yield Way("name", "second request for another name, " + lane, partial(through, lane, _second, 1))
    for name, made in IN_CLEAR:
        yield Way("name", name + ", tunnel", partial(in_clear, "tunnel", made))
    for lane in LANES:
        for name, made in SMUGGLED:
            yield Way("smuggling", "%s, %s" % (name, lane), partial(through, lane, made))
    for lane in LANES:
        for name, fields, body in H2:
            yield Way("h2", "%s, %s" % (name, lane), partial(h2, lane, fields, body))
        yield Way("h2", "second stream for another name, " + lane, partial(h2, lane, H2[0][1], second=True))


def _here() -> Iterator[Way]:
    for path in UNIX:
        yield Way("unix", path, partial(unix, path))
    yield Way("unix", "sockets in the usual folders", unix_folders)
    yield Way("unix", "SSH agent", agent)
    yield Way("unix", "abstract sockets", abstract)
    for path in KERNEL:
        yield Way("kernel", path, partial(kernel, path))
    yield Way("kernel", "disks", disks)
    yield Way("kernel", "release agents", release_agents)
    yield Way("ambient", "environment", ambient_environment)
    yield Way("ambient", "other processes", ambient_processes)
    for pattern in FILES:
        yield Way("ambient", pattern, partial(ambient_file, pattern))


def ways() -> Iterator[Way]:
    """Yield every way out that can be tried beside the others."""
    for part in (_straight, _host, _dns, _datagrams, _gate, _here):
        yield from part()


def last_ways() -> Iterator[Way]:
    """Yield what can only be tried alone, after the others: it would close them."""
    yield Way("flood", "%d connections at once" % (MOST + 76), flood_many)
    yield Way("flood", "520 connections in half a second", flood_fast)


def attempt(way: Way) -> Dict[str, str]:
    """Try one way; return its row."""
    state, evidence = UNTRIED, "the way said nothing"
    try:
        way.call()
    except Result as result:
        state, evidence = result.state, result.evidence
    except OSError as fault:
        state = CLOSED if is_proof(fault) else UNTRIED
        evidence = ("not permitted: " if isinstance(fault, PermissionError) else "") + told(fault)
    except Exception as fault:
        evidence = "a fault of the probe itself: %s: %s" % (type(fault).__name__, fault)
    if state == CLOSED and not spare_file():
        state, evidence = UNTRIED, "open files ran out meanwhile: " + evidence
    return {"kind": way.kind, "way": way.name, "state": state, "evidence": evidence}


def spare_file() -> bool:
    """Return whether a file can be opened: where none can, what is listed by a pattern only seems not to be there."""
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError as fault:
        return is_proof(fault)
    return True


def run(kinds: Tuple[str, ...], progress: Callable[[int, int], None]) -> Dict[str, Any]:
    """Try the ways of some kinds, and return the report."""
    begun = time.monotonic()
    chosen = [way for way in ways() if way.kind in kinds]
    alone = [way for way in last_ways() if way.kind in kinds]
    rows: List[Dict[str, str]] = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:  # nearly all of them only wait
        for row in pool.map(attempt, chosen):
            rows.append(row)
            progress(len(rows), len(chosen) + len(alone))
    for way in alone:
        rows.append(attempt(way))
        progress(len(rows), len(chosen) + len(alone))
    count = {state: sum(row["state"] == state for row in rows) for state in (CLOSED, OPEN, UNTRIED)}
    verdict = OPEN if count[OPEN] else CLOSED
    seconds = round(time.monotonic() - begun, 1)
    return {"version": 1, "verdict": verdict, "seconds": seconds, "count": count, "ways": rows}


# ---- the card ------------------------------------------------------------------------------------


COLOURS = {CLOSED: "32", OPEN: "1;31", UNTRIED: "33"}
COLUMN = 16
"""Where evidence begins."""


def card(report: Dict[str, Any], width: int = 80, *, colour: bool = False) -> str:
    """Return a report for people: each kind with its ways by what came of them, then the sums, then what is open."""

    def painted(code: str, text: str) -> str:
        return "\033[%sm%s\033[0m" % (code, text) if colour else text

    def block(indent: int, text: str) -> List[str]:
        wrapped = textwrap.wrap(clean(text), max(30, width - indent), break_on_hyphens=False)
        return [" " * indent + line for line in wrapped]

    kinds = list(dict.fromkeys(row["kind"] for row in report["ways"]))
    lines: List[str] = []
    for kind in kinds:
        lines.append(painted("1", kind) + "  " + KINDS.get(kind, ""))
        for (state, evidence), names in _alike(report["ways"], kind):
            first, *rest = block(COLUMN, evidence)
            lines += ["  " + painted(COLOURS[state], state.ljust(COLUMN - 2)) + first.lstrip(), *rest]
            lines += [painted("2", line) for line in block(COLUMN, DOT.join(names))]
        lines.append("")
    for row, red in _sums(report, kinds):
        lines.append(painted(COLOURS[OPEN], row) if red else row)
    lines.append("")
    for kind in kinds:
        for (state, evidence), names in _alike(report["ways"], kind):
            if state == OPEN:
                lines += [painted(COLOURS[OPEN], line) for line in block(0, "open  %s: %s" % (kind, DOT.join(names)))]
                lines += block(6, evidence)
    *middle, end = _verdict(report)
    lines += [*middle, painted(COLOURS[report["verdict"]], end)]
    return "\n".join(lines).replace(NARROW, " ") + "\n"


def _alike(rows: List[Dict[str, str]], kind: str) -> List[Tuple[Tuple[str, str], List[str]]]:
    """Return the ways of a kind by what came of them, what is open first."""
    together: Dict[Tuple[str, str], List[str]] = {}
    for row in rows:
        if row["kind"] == kind:
            together.setdefault((row["state"], row["evidence"]), []).append(row["way"])
    merged = [(key, _merged(names)) for key, names in together.items()]
    return sorted(merged, key=lambda one: (OPEN, UNTRIED, CLOSED).index(one[0][0]))


def _merged(names: List[str]) -> List[str]:
    """Return names of which those that differ in a port, or in the way into the gate, are one."""
    lanes = "|".join(LANES)
    found: Dict[Tuple[str, str], List[str]] = {}
    for name in names:
        parts = re.match(r"((?:TCP|UDP|CONNECT NAME:) ?)(\d+)(.*)$", name) or re.match(r"(.*, )(%s)()$" % lanes, name)
        head, middle, tail = parts.groups() if parts else (name, "", "")
        found.setdefault((head, tail), []).append(middle)
    every = list(LANES)
    shorter = [
        head[:-2] if middles == every else head + ", ".join(middles) + tail for (head, tail), middles in found.items()
    ]
    # A line breaks between two ways, not inside of one that is short.
    return [one.replace(" ", NARROW) if len(one) < 50 else one for one in shorter]


def _sums(report: Dict[str, Any], kinds: List[str]) -> Iterator[Tuple[str, bool]]:
    """Yield the lines of the table of sums, and whether each is to be seen."""
    states = (CLOSED, OPEN, UNTRIED)
    yield "%-14s%8s%8s%15s" % ("", *states), False
    for kind in kinds:
        each = [sum(row["kind"] == kind and row["state"] == state for row in report["ways"]) for state in states]
        yield "%-14s%8s%8s%15s" % (kind, *(str(number or "-") for number in each)), bool(each[1])
    yield "%-14s%8d%8d%15d" % ("all", *(report["count"][state] for state in states)), bool(report["count"][OPEN])


def _verdict(report: Dict[str, Any]) -> Iterator[str]:
    """Yield the last lines."""
    count = report["count"]
    if count[OPEN]:
        yield ""
    whole = "%d ways tried in %.1f s" % (len(report["ways"]), report["seconds"])
    if count[UNTRIED]:
        whole += "; of %d nothing was proved" % count[UNTRIED]
    yield whole + "."
    if count[OPEN]:
        yield "%d open: this sandbox has a way out besides the gate (exit code 1)." % count[OPEN]
    else:
        yield "Nothing is open (exit code 0)."


NARROW = "\u00a0"
"""A space at which no line breaks; the card prints it as any other."""
DOT = NARROW + "\u00b7 "


def clean(text: str) -> str:
    """Return a text of which nothing drives the terminal: a peer may have written it."""
    return "".join(letter if letter.isprintable() or letter == NARROW else "\ufffd" for letter in text)


def _allowed(text: str, denied: str) -> Allowed:
    found = re.match(r"(?:https://)?([A-Za-z0-9.-]+)(?::(\d+))?(/[!-~]*)?$", text)
    if not found:
        raise ValueError("--allowed is NAME[:PORT][/PATH], as in api.example.com/status")
    return Allowed(found.group(1), int(found.group(2) or 443), found.group(3) or "/", denied)


def _progress(done: int, whole: int) -> None:
    if sys.stderr.isatty():
        end = "\r\033[K" if done == whole else ""
        sys.stderr.write("\rprobing: %d of %d%s" % (done, whole, end))
        sys.stderr.flush()


def main() -> int:
    """Try everything, print the card, say by the exit code whether anything is open."""
    global SECONDS, ALLOWED, PROXY, FLOOD
    parser = argparse.ArgumentParser(
        description="Try the ways out of this sandbox. Exits 1 when one is open, 0 when none is.",
        epilog="kinds: " + ", ".join(KINDS),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--allowed", metavar="NAME[:PORT][/PATH]", help="an https page that the policy allows")
    parser.add_argument("--denied", metavar="NAME", default="example.com", help="a name that it does not [%(default)s]")
    parser.add_argument("--proxy", metavar="URL", help="the gate's proxy [$HTTPS_PROXY]")
    parser.add_argument("--flood", action="store_true", help="also try more connections than the wall lets through")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long to wait for each answer [%(default)s]")
    parser.add_argument(
        "--only", nargs="*", choices=KINDS, default=[], metavar="KIND", help="ways of these kinds alone"
    )
    given = parser.parse_args()
    SECONDS, PROXY, FLOOD = given.seconds, given.proxy, given.flood
    try:
        ALLOWED = _allowed(given.allowed, given.denied) if given.allowed else None
    except ValueError as fault:
        parser.error(str(fault))
    os.environ.setdefault("RES_OPTIONS", "timeout:2 attempts:1")  # a resolver that is silent must not take all the time
    report = run(tuple(given.only or KINDS), _progress)
    if given.json:
        print(json.dumps(report, indent=1))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = card(report, min(100, shutil.get_terminal_size((80, 24)).columns), colour=colour)
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    return 1 if report["count"][OPEN] else 0


if __name__ == "__main__":
    sys.exit(main())
