"""An internet of network namespaces: the client's only neighbour is the gate.

    client 10.77.0.2 ──── 10.77.0.1 gate 10.99.0.1 ──── 10.99.0.2 internet (any address we give it)

There is no router: the client has no route beyond the gate's end of its cable, and the gate forwards
nothing. The gate's default route leads into the internet's namespace, so that every address given there,
169.254.169.254 too, *can* be reached from the gate; what keeps it away is the gate alone. Nothing of
the machine's own namespace changes. Names carry the pid; what an ended process left is removed.

`relay` carries bytes from an address of that internet to the same address of the real one, so that the
machine's package index can be reached by a gate that has no other way out; `inlet` lets a test's own clients
ask as the client would.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.lab.loop import loop_thread
from tests.lab.sockets import Bind, bind_loopback, dial_in_namespace, in_namespace

__all__ = ["Leg", "World", "inlet", "leg", "relay", "resolver_of", "unwalled", "why_no_world", "world"]

CLIENT, GATE, UPLINK, INTERNET = "10.77.0.2", "10.77.0.1", "10.99.0.1", "10.99.0.2"
_PREFIX = "tglab"
_numbers = itertools.count()
"""Of the worlds of one process: one that lasts for all its tests may stand beside one for a few."""


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@functools.cache
def why_no_world() -> str | None:
    """Return what keeps this process from making network namespaces, or None."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "no `ip` (iproute2)"
    name = f"{_PREFIX}-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


@dataclasses.dataclass(frozen=True)
class Leg:
    """One more sandbox: its namespace, its addresses, and the gate's device and addresses on that link."""

    space: str
    device: str
    own: tuple[str, str]
    gate: tuple[str, str]

    @property
    def prefix(self) -> list[str]:
        """What goes before a command of that sandbox."""
        return ["ip", "netns", "exec", self.space]


@dataclasses.dataclass(frozen=True)
class World:
    """Three namespaces; `bind` makes listening sockets in the internet's."""

    client: str
    gate: str
    internet: str

    @property
    def bind(self) -> Bind:
        """Make listening sockets on the internet."""
        return in_namespace(self.internet)

    @property
    def client_prefix(self) -> list[str]:
        """What goes before a command of the client."""
        return ["ip", "netns", "exec", self.client]

    @property
    def gate_prefix(self) -> list[str]:
        """What goes before the gate's command."""
        return ["ip", "netns", "exec", self.gate]

    def give(self, *addresses: str) -> None:
        """Give the internet more addresses."""
        for address in addresses:
            wide = f"{address}/128" if ":" in address else f"{address}/32"
            # nodad: an IPv6 address is usable at once.
            _ip("-n", self.internet, "address", "add", wide, "dev", "cable", *(["nodad"] if ":" in address else []))


def _cable(one: str, one_name: str, one_address: str, two: str, two_name: str, two_address: str) -> None:
    _ip("link", "add", one_name, "netns", one, "type", "veth", "peer", "name", two_name, "netns", two)
    for space, name, address in ((one, one_name, one_address), (two, two_name, two_address)):
        _ip("-n", space, "address", "add", address, "dev", name)
        _ip("-n", space, "link", "set", name, "up")


@contextlib.contextmanager
def world(*, addresses: Sequence[str] = ()) -> Iterator[World]:
    """Make the namespaces and remove them at the end, with every process that still runs in one."""
    _sweep()
    name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
    made = World(*(f"{name}-{part}" for part in ("client", "gate", "internet")))
    spaces = (made.client, made.gate, made.internet)
    try:
        for space in spaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _cable(made.client, "eth0", f"{CLIENT}/30", made.gate, "sandbox", f"{GATE}/30")
        _cable(made.gate, "uplink", f"{UPLINK}/24", made.internet, "cable", f"{INTERNET}/24")
        _ip("-n", made.gate, "route", "add", "default", "via", INTERNET)
        made.give(*addresses)
        yield made
    finally:
        for space in spaces:
            _remove(space)


@contextlib.contextmanager
def leg(place: World, number: int) -> Iterator[Leg]:
    """Give the gate a link to one more sandbox, of both families; its names and its routes lead there.

    An even one asks for names by IPv4, an odd one by IPv6.
    """
    four, six = f"10.78.{number}", f"fd78:{number + 1}:"
    space = f"{place.client.removesuffix('client')}leg{number}"
    made = Leg(space, f"leg{number}", (f"{four}.2", f"{six}:2"), (f"{four}.1", f"{six}:1"))
    folder = Path("/etc/netns", made.space)
    try:
        _ip("netns", "add", made.space)
        _ip("-n", made.space, "link", "set", "lo", "up")
        _cable(made.space, "eth0", f"{made.own[0]}/30", place.gate, made.device, f"{made.gate[0]}/30")
        for space, name, address in ((made.space, "eth0", made.own[1]), (place.gate, made.device, made.gate[1])):
            _ip("-n", space, "address", "add", f"{address}/64", "dev", name, "nodad")
        for address in made.gate:
            _ip("-n", made.space, "route", "add", "default", "via", address)
        folder.mkdir(parents=True)
        (folder / "resolv.conf").write_text(f"nameserver {made.gate[number % 2]}\n")
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove(made.space)


@contextlib.contextmanager
def unwalled(place: World, number: int) -> Iterator[str]:
    """Yield a namespace whose cable leads into the internet, past the gate: a sandbox as it is without one."""
    space = f"{place.client.removesuffix('client')}open{number}"
    own, far = f"10.98.{number}.2", f"10.98.{number}.1"
    try:
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
        _cable(space, "eth0", f"{own}/30", place.internet, f"open{number}", f"{far}/30")
        _ip("-n", space, "route", "add", "default", "via", far)
        yield space
    finally:
        _remove(space)


def _remove(space: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        running = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, timeout=10)
        for pid in running.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", space)


def _sweep() -> None:
    for path in Path("/run/netns").glob(f"{_PREFIX}-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(path.name)


@contextlib.contextmanager
def resolver_of(space: str, server: str) -> Iterator[None]:
    """Have programs of a namespace ask `server` for names (ip-netns(8) binds this file over theirs)."""
    folder = Path("/etc/netns", space)
    folder.mkdir(parents=True)
    (folder / "resolv.conf").write_text(f"nameserver {server}\n")
    try:
        yield
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def relay(place: World, address: str, port: int) -> Iterator[None]:
    """Carry connections to `address:port` of the namespace's internet to the same place of the real one."""

    # This thread lives in the machine's own namespace: only the listening socket was made inside.
    def dial() -> socket.socket:
        return socket.create_connection((address, port), 20)

    with _carry(place.bind(address, port, socket.SOCK_STREAM), dial, name=f"relay-{address}"):
        yield


@contextlib.contextmanager
def inlet(place: World, address: str, port: int) -> Iterator[tuple[str, int]]:
    """Carry connections to a place on loopback, which is returned, to `address:port` as the client would reach it."""
    listener = bind_loopback("127.0.0.1", 0, socket.SOCK_STREAM)
    host, own_port = listener.getsockname()
    with _carry(listener, lambda: dial_in_namespace(place.client, address, port), name=f"inlet-{address}"):
        yield host, own_port


@contextlib.contextmanager
def _carry(listener: socket.socket, dial: Callable[[], socket.socket], *, name: str) -> Iterator[None]:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await asyncio.to_thread(dial)
            far_reader, far_writer = await asyncio.open_connection(sock=far)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, sock=listener)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        server.abort_clients()

    with loop_thread(name) as thread:
        server = thread.run(start())
        try:
            yield
        finally:
            thread.run(stop(server))
