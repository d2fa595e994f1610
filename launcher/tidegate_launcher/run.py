"""One launch, from what is wanted to what came of it: everything is made in this order, and unmade in the reverse.

| made | for | unmade |
|---|---|---|
| a folder of this launch | what the sandbox is given, what the boundary needs | removed |
| a landing (`veth`) | the sandbox's link, the wall, the gate's doors | let go of: it ends with the last socket in it |
| sockets in a folder (`uds`) | the gate's doors; inside, a shim leads to them | removed with the folder |
| a lease | the session, its placeholders, its doors at the gate | closed: the session is revoked |
| a record | that it begins, or is refused | that it has ended, and how |
| the sandbox | the command | by the boundary, with nothing left |

A launcher that is killed leaves its folder and an empty control group; the next one takes both (`sweep`).
"""

import contextlib
import functools
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate.sdk.redact import redact_argv
from tidegate_launcher.boundary import Boundary, Cancelled, Capability, Ground, Sink, require
from tidegate_launcher.files.forbidden import Forbidden
from tidegate_launcher.files.inputs import copy_in
from tidegate_launcher.files.outputs import Collected, check_folder, collect
from tidegate_launcher.job import Bind, Job, Limits, Net
from tidegate_launcher.lease import Ask, Door, Lease
from tidegate_launcher.net.hosts import hosts_text
from tidegate_launcher.net.landing import RESOLV_CONF, Landing
from tidegate_launcher.net.shimmed import TOLD, fault_of, shim_bind, shimmed
from tidegate_launcher.net.sockets import listen_in
from tidegate_launcher.place import ROOM, LaunchPlace
from tidegate_launcher.result import Outcome, Result

__all__ = ["INPUTS", "LIMITS", "NETWORK", "Launched", "Order", "launch"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GIVEN: Final = "/tidegate"
INPUTS: Final = "/in"
"""Where a sandbox finds its inputs."""
NETWORK: Final[dict[Net, Capability]] = {
    "none": Capability.NET_NONE,
    "uds": Capability.NET_UDS,
    "veth": Capability.NET_VETH,
}
"""What a kind of network asks of a boundary."""
LIMITS: Final = frozenset(
    {Capability.MEMORY, Capability.CPUS, Capability.PIDS, Capability.DISK, Capability.TIME, Capability.OUTPUT}
)
"""All limits."""
_ARGV: Final = 4096
_WORD_BYTES: Final = 4096
_NOTHING: Final = Forbidden()
_BROKEN_OFF: Final = "interrupted"
_CANCELLED: Final = "cancelled"
"""On record only: there is no result of a launch that its own launcher broke off, or that was wanted no more."""

type _Note = Callable[..., None]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted. `root` is the image's folder and `image` its digest; `ask` None: no gate, and so no network.

    `environment` is added to what the session gives, and wins over it nowhere that a placeholder or a certificate is.
    """

    argv: tuple[str, ...]
    root: Path
    image: str = ""
    ask: Ask | None = None
    net: Net = "none"
    limits: Limits = Limits()
    inputs: tuple[Path, ...] = ()
    out: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()
    wanted: frozenset[Capability] | None = None
    """What must be enforced: None, the network and all limits. The rest is, where the boundary can."""


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `dropped` are packets that the wall dropped, by rule; `session` is empty without a gate.

    `faults` are ours, of what was done after the command: the record of its end, the copying of its files. The result
    stands beside them, since it has run; it is no success.
    """

    id: str
    result: Result
    session: str = ""
    outputs: Collected | None = None
    dropped: dict[str, int] = {}
    faults: tuple[str, ...] = ()


def launch(
    order: Order,
    boundary: Boundary,
    *,
    place: LaunchPlace,
    state: Path | None = None,
    forbidden: Forbidden = _NOTHING,
    stdin: BinaryIO | None = None,
    sink: Sink | None = None,
    cancel: int | None = None,
) -> Launched:
    """Run an order to its end. `state` is the gate's state folder; `forbidden` what never goes in.

    Raises `LaunchError` for what is wrong before the command could start, and `Cancelled` once the descriptor `cancel`
    is readable.
    """
    _check(order, boundary, state)
    with contextlib.ExitStack() as stack:
        one = secrets.token_hex(16)
        scratch = stack.enter_context(place.folder(one))
        landing = stack.enter_context(Landing.make()) if order.net == "veth" else None
        doors = () if landing is None else landing.doors
        doors = listen_in(scratch / "doors") if order.net == "uds" else doors
        lease = _lease(stack, order, state, doors)
        note = functools.partial(_note, lease, one, order, boundary.name)
        with _refusal_noted(note):
            job = Job(
                id=one, argv=shimmed(order.argv) if order.net == "uds" else order.argv, root=order.root,
                environment=_environment(order, lease), limits=order.limits,
                binds=_give(scratch, order, lease, forbidden), net=order.net,
            )  # fmt: skip
        note(act="start", limits=_amounts(order.limits))
        after = _Afterwards(order)
        with _break_noted(note):
            result = boundary.run(
                job,
                Ground(
                    scratch=scratch / "boundary",
                    namespace=None if landing is None else landing.sandbox.path,
                    door=scratch / "doors" if order.net == "uds" else None,
                ),
                stdin=stdin,
                sink=sink,
                collect=after.look if order.out is not None or order.net == "uds" else None,
                cancel=cancel,
            )
        with after.kept():
            note(
                act="end", outcome=result.outcome.value, untrusted_exit_code=result.untrusted_exit_code,
                seconds=round(result.seconds, 3), truncated=result.truncated,
            )  # fmt: skip
        dropped: dict[str, int] = {}
        with after.kept():
            dropped = {} if landing is None else landing.dropped()
        return Launched(
            id=one,
            result=result if result.detail else msgspec.structs.replace(result, detail=after.shim),
            session="" if lease is None else str(lease.id),
            outputs=after.outputs,
            dropped=dropped,
            faults=tuple(after.faults),
        )


def _check(order: Order, boundary: Boundary, state: Path | None) -> None:
    require(boundary, LIMITS | {NETWORK[order.net]} if order.wanted is None else order.wanted)
    if order.net != "none" and (order.ask is None or state is None):
        raise LaunchError("a network leads to a gate, and there is none", where="--net", hint="give --policy, or none")
    if order.out is not None:
        check_folder(order.out)


def _lease(stack: contextlib.ExitStack, order: Order, state: Path | None, doors: tuple[Door, ...]) -> Lease | None:
    """Open the session, and give our own copies of the doors up."""
    if order.ask is None or state is None:
        return None
    try:
        ask = msgspec.structs.replace(order.ask, names=order.net == "uds")
        return stack.enter_context(Lease.open(state, ask, doors))
    finally:
        for door in doors:
            for sock in door.sockets:
                sock.close()


def _give(scratch: Path, order: Order, lease: Lease | None, forbidden: Forbidden) -> tuple[Bind, ...]:
    """Write what the sandbox is given, and return it as binds."""
    (scratch / "boundary").mkdir(mode=0o700)
    binds = []
    if lease is not None:
        folder = scratch / "tidegate"
        folder.mkdir(mode=0o755)
        for name, data in lease.files.items():
            _write(folder / name, data)
        binds.append(Bind(source=folder, target=_GIVEN))
    if order.net == "veth":
        _write(scratch / "resolv.conf", RESOLV_CONF.encode())
        binds.append(Bind(source=scratch / "resolv.conf", target="/etc/resolv.conf"))
    if order.net == "uds":
        _write(scratch / "hosts", hosts_text(() if lease is None else lease.names).encode())
        binds += [Bind(source=scratch / "hosts", target="/etc/hosts"), shim_bind()]
    if order.inputs:
        copy_in(order.inputs, scratch / "in", forbidden=forbidden)
        binds.append(Bind(source=scratch / "in", target=INPUTS))
    return tuple(binds)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o444)


def _environment(order: Order, lease: Lease | None) -> tuple[tuple[str, str], ...]:
    """Return all that the command sees: nothing of the launcher's own is in it (S-05)."""
    base = {"PATH": _PATH, "LANG": "C.UTF-8", **dict(order.environment)}
    return tuple((base | ({} if lease is None else lease.environment)).items())


class _Afterwards:
    """What is done once a command has run. A fault there is told beside the result, which stands: it has run."""

    def __init__(self, order: Order) -> None:
        self._out, self._shim = order.out, order.net == "uds"
        self.outputs: Collected | None = None
        self.faults: list[str] = []
        self.shim = ""
        """What became of the shim, by its own word: it explains a result, and decides nothing."""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except (LaunchError, OSError) as fault:
            self.faults.append(str(fault))

    def look(self, folder: int) -> None:
        """Look into what the command has left in /work."""
        if self._shim:
            self.shim = fault_of(_word(folder))
        if self._out is not None:
            with self.kept():
                self.outputs = collect(folder, self._out)


def _word(folder: int) -> bytes | None:
    """Return what the shim has written, and take it away: it is no output of the command's."""
    name = Path(TOLD).name
    try:
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with open(found, "rb", buffering=0) as file:
        plain = stat.S_ISREG(os.fstat(found).st_mode)
        word = file.read(_WORD_BYTES) if plain else None
    if plain:
        os.unlink(name, dir_fd=folder)
    return word


def _note(lease: Lease | None, one: str, order: Order, boundary: str, **fields: Any) -> None:
    if lease is not None:
        argv = _bounded(redact_argv(order.argv, environment=lease.environment))
        lease.record(id=one, boundary=boundary, net=order.net, image=order.image or None, argv=argv, **fields)


@contextlib.contextmanager
def _refusal_noted(note: _Note) -> Iterator[None]:
    try:
        yield
    except (LaunchError, OSError) as fault:
        with contextlib.suppress(LaunchError):  # the fault itself is what is to be told
            note(act="refuse", outcome=Outcome.LAUNCH_ERROR.value)
        if isinstance(fault, LaunchError):
            raise
        raise LaunchError(f"what the sandbox is given cannot be written: {fault.strerror}", hint=ROOM) from fault


@contextlib.contextmanager
def _break_noted(note: _Note) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    except BaseException as fault:
        outcome = Outcome.LAUNCH_ERROR.value if isinstance(fault, LaunchError) else _BROKEN_OFF
        outcome = _CANCELLED if isinstance(fault, Cancelled) else outcome
        with contextlib.suppress(LaunchError):  # as above
            note(act="end", outcome=outcome, seconds=round(time.monotonic() - begun, 3))
        raise


def _bounded(text: str) -> str:
    """Cut a command line for a record. Who writes the record escapes what is not printable: here it would be twice."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _ARGV else f"{text[: _ARGV - 16]}…+{len(text) - _ARGV + 16}"


def _amounts(limits: Limits) -> dict[str, float]:
    return {name: float(value) for name, value in msgspec.structs.asdict(limits).items()}
