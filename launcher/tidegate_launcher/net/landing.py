"""The other end of a sandbox's link: an empty namespace with nothing in it but the gate's listening sockets.

```
 sandbox's namespace            landing                      the gate's own namespace
 eth0 10.77.0.2 ──── veth ──── gate0 10.77.0.1               workers ──▶ upstreams
                               wall, listening sockets ────▶ (handed over by descriptor)
```

The machine's own network has no part in it: no device, no route, no address that could be taken, and all sandboxes
have the same ones. A hole in the wall would lead into a namespace from which nothing leads on. It ends with the last
socket in it.
"""

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from types import TracebackType
from typing import Final, Self

from tidegate.errors import LaunchError
from tidegate.session.door import DoorSpec, DoorWay
from tidegate_launcher.lease import Door
from tidegate_launcher.net.iproute import ip_batch
from tidegate_launcher.net.space import Space
from tidegate_launcher.wall import nft
from tidegate_launcher.wall.link import Link, table_name, transaction
from tidegate_launcher.wall.rules import Listener

__all__ = ["GATE", "RESOLV_CONF", "SANDBOX", "Landing"]

GATE: Final = ("10.77.0.1", "fd77::1")
SANDBOX: Final = ("10.77.0.2", "fd77::2")
RESOLV_CONF: Final = f"nameserver {GATE[0]}\nnameserver {GATE[1]}\noptions timeout:2 attempts:2\n"
_DEVICE: Final = "gate0"
_BACKLOG: Final = 1024
_PORTS: Final[tuple[tuple[DoorWay, int], ...]] = (
    ("http", 8080), ("tls", 443), ("tls", 80), ("transparent", 8443), ("dns", 53)
)  # fmt: skip

# Without another number than its peer's the kernel takes the link for one whose news can wait, for a second at a time;
# and it would wait another second for somebody else to claim a link-local address.
_SANDBOX_LINK: Final = f"""\
link set lo up
link add name eth0 index 16 type veth peer name {_DEVICE} netns {{landing}}
link set eth0 addrgenmode none
address add {SANDBOX[0]}/30 dev eth0
address add {SANDBOX[1]}/126 dev eth0 nodad
link set eth0 up
route add default via {GATE[0]} dev eth0
route add default via {GATE[1]} dev eth0
"""
_LANDING_LINK: Final = f"""\
link set {_DEVICE} addrgenmode none
address add {GATE[0]}/30 dev {_DEVICE}
address add {GATE[1]}/126 dev {_DEVICE} nodad
link set {_DEVICE} up
"""


class Landing:
    """A sandbox's namespace, its landing, the wall between, and the doors. A context manager; close it at the end."""

    def __init__(self, sandbox: Space, landing: Space) -> None:
        self.sandbox = sandbox
        self._landing = landing
        self.doors: tuple[Door, ...] = ()

    @classmethod
    def make(cls) -> Self:
        """Make all of it. Raises `LaunchError`: then nothing of it is left."""
        made = cls.begin()
        try:
            made.finish()
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def begin(cls) -> Self:
        """Make the two namespaces, with nothing in them yet. Raises `LaunchError`."""
        with contextlib.ExitStack() as stack:
            landing = stack.enter_context(Space.make())
            sandbox = stack.enter_context(Space.make())
            stack.pop_all()
        return cls(sandbox, landing)

    def finish(self) -> None:
        """Make link, wall and doors. Raises `LaunchError`; what was made until then is for `close`."""
        self.sandbox.within(lambda: ip_batch(_SANDBOX_LINK.format(landing=self._landing.path)))
        self.doors = self._landing.within(_land)

    def dropped(self) -> dict[str, int]:
        """Return the packets that the wall has dropped, by rule. Raises `LaunchError`."""
        counts = self._landing.within(lambda: nft.read().counts(table_name(_DEVICE)))
        return {name.partition(": ")[2]: packets for name, (packets, _) in counts.items() if packets}

    def close(self) -> None:
        """Let go of all of it; it ends when the sandbox and the gate have let go too."""
        for door in self.doors:
            for sock in door.sockets:
                sock.close()
        self.sandbox.close()
        self._landing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _land() -> tuple[Door, ...]:
    """In the landing: the wall first, then the link up, then the doors."""
    nft.apply(transaction(_link()))
    ip_batch(_LANDING_LINK)
    return tuple(_doors())


def _link() -> Link:
    def listeners(*ways: str) -> tuple[Listener, ...]:
        return tuple((ip_address(host), port) for way, port in _PORTS if way in ways for host in GATE)

    return Link(
        device=_DEVICE,
        sandbox=tuple(map(ip_address, SANDBOX)),
        listeners=listeners("http", "tls"),
        transparent=listeners("transparent"),
        dns=listeners("dns"),
        gate=tuple(map(ip_address, GATE)),
    )


def _doors() -> Iterator[Door]:
    made: list[socket.socket] = []
    try:
        for way, port in _PORTS:
            for host in GATE:
                kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM) if way == "dns" else (socket.SOCK_STREAM,)
                for kind in kinds:
                    made.append(_listening(host, port, kind))
                yield Door(DoorSpec(way), tuple(made[-len(kinds) :]))
    except OSError as fault:
        for sock in made:
            sock.close()
        raise LaunchError(f"the gate's doors cannot be made: {fault.strerror}", where="landing") from fault


def _listening(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind | socket.SOCK_CLOEXEC)
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            # Accepted sockets inherit it: an event must not wait for the acknowledgement of the one before.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
