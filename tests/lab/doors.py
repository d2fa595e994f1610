"""Doors for a session of the launcher's, and a launcher that is a process of its own.

with landing() as room, tcp_door(room) as (door, place), Lease.open(gate.state, Ask(policy="default"), [door]):
    fetch(place, "api.allowed.test", 443, token=None)
"""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab.gate import environment
from tests.lab.sockets import bind_pair, dial_in_namespace, in_namespace
from tidegate.session.door import DoorSpec, DoorWay
from tidegate_launcher.lease import Door

__all__ = ["Place", "Process", "dns_door", "landing", "launcher", "tcp_door", "unix_door", "within"]

_LAUNCHER = """
import json, os, socket, sys
from pathlib import Path
from tidegate.session.door import DoorSpec
from tidegate_launcher.lease import Ask, Door, Lease

home = os.open("/proc/self/ns/net", os.O_RDONLY)
os.setns(os.open("/run/netns/" + sys.argv[1], os.O_RDONLY), os.CLONE_NEWNET)
sock = socket.create_server(("127.0.0.1", 0))
os.setns(home, os.CLONE_NEWNET)
with Lease.open(Path(sys.argv[2]), Ask(policy="default"), [Door(DoorSpec("http"), (sock,))]) as lease:
    print(json.dumps([lease.id, sock.getsockname()[1]]), flush=True)
    sys.stdin.read()
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a door is: a place in a network namespace, or a unix socket, whose path is its host."""

    host: str
    port: int = 0
    space: str = ""

    def dial(self, timeout: float) -> socket.socket:
        """Return a connection to it."""
        if self.space:
            sock = dial_in_namespace(self.space, self.host, self.port)
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.host)
        sock.settimeout(timeout)
        return sock


@contextlib.contextmanager
def landing() -> Iterator[str]:
    """Make a network namespace with nothing but loopback; needs root."""
    name = f"tgdoor-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@contextlib.contextmanager
def tcp_door(
    space: str, way: DoorWay = "http", address: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[Door, Place]]:
    """Make a TCP door in a network namespace."""
    with in_namespace(space)(address, port, socket.SOCK_STREAM) as sock:
        bound, number = sock.getsockname()[:2]
        yield Door(DoorSpec(way), (sock,)), Place(bound, number, space)


@contextlib.contextmanager
def dns_door(space: str, address: str, port: int) -> Iterator[Door]:
    """Make a DNS door in a network namespace."""
    udp, tcp = bind_pair(in_namespace(space), address, port)
    with udp, tcp:
        yield Door(DoorSpec("dns"), (udp, tcp))


@contextlib.contextmanager
def unix_door(way: DoorWay = "http", port: int = 3128) -> Iterator[tuple[Door, Place]]:
    """Make a door that is a unix socket in a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="tg-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{folder}/gate.sock")
        sock.listen(64)
        yield Door(DoorSpec(way, port), (sock,)), Place(f"{folder}/gate.sock")


@dataclasses.dataclass(frozen=True)
class Process:
    """A launcher with one http door."""

    process: subprocess.Popen[str]
    session: str
    place: Place


@contextlib.contextmanager
def launcher(state: Path, space: str) -> Iterator[Process]:
    """Run a launcher that holds a session until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _LAUNCHER, space, str(state)],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        try:
            session, port = json.loads(process.stdout.readline())
            yield Process(process, session, Place("127.0.0.1", port, space))
        finally:
            process.kill()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Tell whether a condition of other processes holds within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # nothing else can be waited for
    return True
