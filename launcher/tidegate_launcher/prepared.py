"""What is made around a sandbox before it stands, in this order, and unmade in the reverse.

| made | for | unmade |
|---|---|---|
| a folder of this launch | what the sandbox is given, what the boundary needs | removed |
| a landing (`veth`) | the sandbox's link, the wall, the gate's doors | let go of: it ends with the last socket in it |
| sockets in a folder (`uds`) | the gate's doors; inside, a shim leads to them | removed with the folder |
| a lease | the session, its placeholders, its doors at the gate | closed: the session is revoked |
"""

import contextlib
import functools
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate.sdk.redact import redact_argv
from tidegate_launcher.afterwards import Afterwards
from tidegate_launcher.boundary import Cancelled, Ground
from tidegate_launcher.files.forbidden import Forbidden
from tidegate_launcher.files.inputs import copy_in
from tidegate_launcher.job import Bind, Job, Limits
from tidegate_launcher.lease import Door, Lease, Line
from tidegate_launcher.net.hosts import hosts_text
from tidegate_launcher.net.landing import RESOLV_CONF, Landing
from tidegate_launcher.net.shimmed import shim_bind, shimmed
from tidegate_launcher.net.sockets import listen_in
from tidegate_launcher.order import Launched, Order
from tidegate_launcher.place import ROOM, LaunchPlace
from tidegate_launcher.result import Outcome, Result
from tidegate_launcher.threads import Later

__all__ = ["INPUTS", "Prepared", "prepared"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GIVEN: Final = "/tidegate"
INPUTS: Final = "/in"
"""Where a sandbox finds its inputs."""
_ARGV: Final = 4096
_LIMITS: Final = "see how many descriptors and processes we may have: ulimit -n, ulimit -u"
_BROKEN_OFF: Final = "interrupted"
_CANCELLED: Final = "cancelled"
"""On record only: there is no result of a launch that its own launcher broke off, or that was wanted no more."""


@contextlib.contextmanager
def prepared(
    order: Order, *, boundary: str, place: LaunchPlace, state: Path | None, early: bool = False
) -> Iterator["Prepared"]:
    """Yield what an order's sandbox stands on; its command does not count. Raises `LaunchError`.

    `early`: network and session are still being made then, and are waited for when they are asked for.
    """
    with contextlib.ExitStack() as stack:
        one = secrets.token_hex(16)
        scratch = stack.enter_context(place.folder(one))
        landing = stack.enter_context(Landing.begin()) if order.net == "veth" else None
        line = stack.enter_context(contextlib.closing(Line()))
        work = functools.partial(_lease, order, state, scratch, landing, line)
        later = Later(work, _close, give_up=line.cut, meanwhile=early and order.net != "none")
        lease = stack.enter_context(later)
        yield Prepared(one, boundary, scratch, order, landing, lease)


def _lease(order: Order, state: Path | None, scratch: Path, landing: Landing | None, line: Line) -> Lease | None:
    """Make the network, open the session, and give our own copies of the doors up. Raises `LaunchError`."""
    doors: tuple[Door, ...] = ()
    try:
        if landing is not None:
            landing.finish()
            doors = landing.doors
        elif order.net == "uds":
            doors = listen_in(scratch / "doors")
        if order.ask is None or state is None:
            return None
        return Lease.open(state, msgspec.structs.replace(order.ask, names=order.net == "uds"), doors, line=line)
    except OSError as fault:  # no descriptor is to be had, or no process
        raise LaunchError(f"network and session cannot be made: {fault.strerror or fault}", hint=_LIMITS) from fault
    finally:
        for door in doors:
            for sock in door.sockets:
                sock.close()


def _close(lease: Lease | None) -> None:
    if lease is not None:
        lease.close()


class Prepared:
    """The ground of one sandbox, and the records of what runs on it."""

    def __init__(
        self,
        one: str,
        boundary: str,
        scratch: Path,
        order: Order,
        landing: Landing | None,
        lease: Later[Lease | None],
    ) -> None:
        self.id, self._boundary, self._scratch = one, boundary, scratch
        self._net, self._image, self._landing, self._leased = order.net, order.image, landing, lease
        self._noted: dict[str, str] = {}
        self._told: dict[str, int] = {}
        self.ground = Ground(
            scratch=scratch / "boundary",
            namespace=None if landing is None else landing.sandbox.path,
            door=scratch / "doors" if order.net == "uds" else None,
        )
        self.ground.scratch.mkdir(mode=0o700)

    @property
    def _lease(self) -> Lease | None:
        return self._leased.result()

    @property
    def session(self) -> str:
        """The session's id; empty without a gate."""
        return "" if self._lease is None else str(self._lease.id)

    def leased(self) -> bool:
        """Tell whether the gate still holds the session for us; true without a gate."""
        return self._lease is None or self._lease.alive()

    def job(self, order: Order, forbidden: Forbidden, *, inputs: bool = False) -> Job:
        """Write what the sandbox is given, and return its job; `inputs`: they may come later too (`take_in`).

        Raises `LaunchError` and `OSError`.
        """
        return self._job(order, self._give(order, forbidden, inputs=inputs))

    def sketch(self, order: Order) -> Job:
        """Return the job without what it is given. Raises `LaunchError`."""
        return Job(id=self.id, argv=self._argv(order), root=order.root, limits=order.limits, net=self._net)

    def next_job(self, order: Order, forbidden: Forbidden) -> Job:
        """Return the job of a command in the sandbox that stands, once its inputs are there. Raises as `job` does."""
        folder, fresh = self._scratch / "in", self._scratch / "next"
        for old in folder.iterdir():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        if order.inputs:
            try:
                copy_in(order.inputs, fresh, forbidden=forbidden)
                for path in fresh.iterdir():
                    path.rename(folder / path.name)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return self._job(order, ())

    def _job(self, order: Order, binds: tuple[Bind, ...]) -> Job:
        return Job(
            id=self.id,
            argv=self._argv(order),
            root=order.root,
            environment=self._environment(order),
            limits=order.limits,
            binds=binds,
            net=self._net,
        )

    def _argv(self, order: Order) -> tuple[str, ...]:
        return shimmed(order.argv) if self._net == "uds" else order.argv

    def _environment(self, order: Order) -> tuple[tuple[str, str], ...]:
        """Return all that the command sees: nothing of the launcher's own is in it (S-05)."""
        base = {"PATH": _PATH, "LANG": "C.UTF-8", **dict(order.environment)}
        return tuple((base | ({} if self._lease is None else self._lease.environment)).items())

    def _give(self, order: Order, forbidden: Forbidden, *, inputs: bool) -> tuple[Bind, ...]:
        """Write what the sandbox is given, and return it as binds."""
        scratch, lease = self._scratch, self._lease
        binds = []
        if lease is not None:
            folder = scratch / "tidegate"
            folder.mkdir(mode=0o755)
            for name, data in lease.files.items():
                _write(folder / name, data)
            binds.append(Bind(source=folder, target=_GIVEN))
        if self._net == "veth":
            _write(scratch / "resolv.conf", RESOLV_CONF.encode())
            binds.append(Bind(source=scratch / "resolv.conf", target="/etc/resolv.conf"))
        if self._net == "uds":
            _write(scratch / "hosts", hosts_text(() if lease is None else lease.names).encode())
            binds += [Bind(source=scratch / "hosts", target="/etc/hosts"), shim_bind(scratch)]
        if order.inputs or inputs:
            copy_in(order.inputs, scratch / "in", forbidden=forbidden)
            binds.append(Bind(source=scratch / "in", target=INPUTS))
        return tuple(binds)

    def ended(self, order: Order, one: str, result: Result, after: Afterwards) -> Launched:
        """Put a command's end on record, with what the wall has dropped meanwhile, and return what came of it."""
        dropped: dict[str, int] = {}
        with after.kept():
            dropped = self._dropped()
        with after.kept():
            self.note(
                order, one, act="end", outcome=result.outcome.value, untrusted_exit_code=result.untrusted_exit_code,
                seconds=round(result.seconds, 3), truncated=result.truncated, dropped=dropped,
            )  # fmt: skip
        return Launched(
            id=one,
            result=result if result.detail else msgspec.structs.replace(result, detail=after.shim),
            session=self.session,
            outputs=after.outputs,
            dropped=dropped,
            faults=tuple(after.faults),
        )

    def _dropped(self) -> dict[str, int]:
        """Return what the wall has dropped since this was asked the last time, by rule. Raises `LaunchError`."""
        found = {} if self._landing is None else self._landing.dropped()
        fresh = {rule: packets - self._told.get(rule, 0) for rule, packets in found.items()}
        self._told = found
        return {rule: packets for rule, packets in fresh.items() if packets > 0}

    def note(self, order: Order, one: str, **fields: Any) -> None:
        """Put something on record, if there is a gate. Raises `LaunchError`."""
        if self._lease is not None:
            argv = _bounded(redact_argv(order.argv, environment=self._lease.environment)) if order.argv else None
            try:
                self._lease.record(
                    id=one, boundary=self._boundary, net=self._net, image=self._image or None, argv=argv, **fields
                )
            except Exception:
                raise
            except BaseException:  # we are told to end, and the gate may have it
                self._noted[one] = fields["act"]
                raise
            self._noted[one] = fields["act"]

    def start(self, order: Order, one: str) -> None:
        """Put on record that a command begins. Raises `LaunchError`."""
        self.note(order, one, act="start", limits=_amounts(order.limits))

    @contextlib.contextmanager
    def refusal_noted(self, order: Order, one: str) -> Iterator[None]:
        """Put on record that there will be no command. What fails here is a `LaunchError`."""
        try:
            yield
        except (LaunchError, OSError) as fault:
            self._note_refusal(order, one)
            if isinstance(fault, LaunchError):
                raise
            raise LaunchError(f"what the sandbox is given cannot be written: {fault.strerror}", hint=ROOM) from fault

    def _note_refusal(self, order: Order, one: str) -> None:
        if one not in self._noted:
            with contextlib.suppress(LaunchError):  # the fault itself is what is to be told
                self.note(order, one, act="refuse", outcome=Outcome.LAUNCH_ERROR.value)

    @contextlib.contextmanager
    def break_noted(self, order: Order, one: str) -> Iterator[None]:
        """Put on record that a command was broken off, or refused where it was not begun."""
        begun = time.monotonic()
        try:
            yield
        except BaseException as fault:
            if self._noted.get(one) != "start":
                if isinstance(fault, LaunchError | OSError):
                    self._note_refusal(order, one)
                raise
            outcome = Outcome.LAUNCH_ERROR.value if isinstance(fault, LaunchError) else _BROKEN_OFF
            outcome = _CANCELLED if isinstance(fault, Cancelled) else outcome
            seconds, dropped = round(time.monotonic() - begun, 3), dict[str, int]()
            with contextlib.suppress(LaunchError, OSError):  # as above
                dropped = self._dropped()
            with contextlib.suppress(LaunchError):
                self.note(order, one, act="end", outcome=outcome, seconds=seconds, dropped=dropped)
            raise


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o444)


def _bounded(text: str) -> str:
    """Cut a command line for a record. Who writes the record escapes what is not printable: here it would be twice."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _ARGV else f"{text[: _ARGV - 16]}…+{len(text) - _ARGV + 16}"


def _amounts(limits: Limits) -> dict[str, float]:
    return {name: float(value) for name, value in msgspec.structs.asdict(limits).items()}
