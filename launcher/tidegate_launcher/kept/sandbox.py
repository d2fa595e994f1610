"""A sandbox with all that is around it, which stands before its command: for one, made ahead, or for one after another.

Its session is open, its link is up, its root and scratch are fresh. What a command brings (inputs, environment, its own
word on record) goes in when it is run. What a command leaves running is ended before the next one; files in /work and
/tmp stay, until the sandbox is another (`reset`, by who holds it: nothing of one sandbox is in the next).
"""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tidegate.errors import LaunchError
from tidegate_launcher.afterwards import Afterwards
from tidegate_launcher.boundary import Boundary, Capability, Sink, require
from tidegate_launcher.files.forbidden import Forbidden
from tidegate_launcher.files.outputs import check_folder
from tidegate_launcher.kept.held import Held, Holding
from tidegate_launcher.order import Launched, Order, check_order
from tidegate_launcher.place import LaunchPlace
from tidegate_launcher.prepared import Prepared, prepared

__all__ = ["Kept", "kept"]

_NOBODY: Final = ("sandbox",)


@contextlib.contextmanager
def kept(
    order: Order, boundary: Boundary, *, place: LaunchPlace, state: Path | None, forbidden: Forbidden, many: bool
) -> Iterator["Kept"]:
    """Yield a sandbox for `order`, whose command does not count, or for `many`; nothing is left of it afterwards.

    It lives as long as the thread that made it, at the most. Raises `LaunchError`.
    """
    order = msgspec.structs.replace(order, argv=_NOBODY, inputs=(), out=None)
    require(boundary, frozenset({Capability.WAITS}))
    if not isinstance(boundary, Holding):
        raise LaunchError(f"the boundary {boundary.name} holds no sandbox", where="--boundary")
    check_order(order, boundary, state)
    if order.net == "uds":
        raise LaunchError("a sandbox that waits has a link or no network", where="--net", hint="veth or none")
    with prepared(order, boundary=boundary.name, place=place, state=state) as made:
        with made.refusal_noted(order, made.id):
            job = made.job(order, forbidden, inputs=True)
        with boundary.hold(job, made.ground, many=many) as held:
            yield Kept(order, made, held, forbidden)


class Kept:
    """Such a sandbox. One command at a time."""

    def __init__(self, order: Order, made: Prepared, held: Held, forbidden: Forbidden) -> None:
        self._order, self._made, self._held, self._forbidden = order, made, held, forbidden
        self._born = time.monotonic()
        self.lost = False
        """Whether a command was refused since the sandbox, or its session, was no more: another would take it."""

    @property
    def id(self) -> str:
        """The sandbox' own, which its folder has too."""
        return self._made.id

    @property
    def session(self) -> str:
        """The session's id; empty without a gate."""
        return self._made.session

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._born

    def alive(self) -> bool:
        """Tell whether it still stands, and its session is open."""
        return self._held.alive() and self._made.leased()

    def run(
        self, order: Order, *, stdin: BinaryIO | None = None, sink: Sink | None = None, cancel: int | None = None
    ) -> Launched:
        """Run one command of those that it has, to its end and that of all it started. See `launch`."""
        return self._run(order, many=True, stdin=stdin, sink=sink, cancel=cancel)

    def become(
        self, order: Order, *, stdin: BinaryIO | None = None, sink: Sink | None = None, cancel: int | None = None
    ) -> Launched:
        """Run the one command that it has, to its end, which is the sandbox's. See `launch`."""
        return self._run(order, many=False, stdin=stdin, sink=sink, cancel=cancel)

    def forget(self) -> None:
        """Put on record that the sandbox goes, and another takes its place. Raises `LaunchError`."""
        self._made.note(msgspec.structs.replace(self._order, argv=()), self.id, act="reset")

    def _run(
        self, order: Order, *, many: bool, stdin: BinaryIO | None, sink: Sink | None, cancel: int | None
    ) -> Launched:
        if not self._held.alive():
            self.lost = True
            raise LaunchError("the sandbox has ended", where=self.id, hint="reset it, or make another")
        self._check(order)
        if order.out is not None:
            check_folder(order.out)
        one = secrets.token_hex(16) if many else self.id
        with self._made.refusal_noted(order, one):
            job = self._made.next_job(order, self._forbidden)
        after = Afterwards(order)
        run = self._held.run if many else self._held.become
        with self._made.break_noted(order, one):
            try:
                self._made.start(order, one)
            except LaunchError:
                self.lost = True
                raise
            result = run(job, stdin=stdin, sink=sink, collect=after.look if after.looks else None, cancel=cancel)
        return self._made.ended(order, one, result, after)

    def _check(self, order: Order) -> None:
        """Refuse an order for another sandbox than this: all but its command, its time and its output is made."""
        free = {"seconds": self._order.limits.seconds, "output_bytes": self._order.limits.output_bytes}
        same = msgspec.structs.replace(
            order,
            argv=self._order.argv,
            inputs=(),
            out=None,
            environment=self._order.environment,
            limits=msgspec.structs.replace(order.limits, **free),
        )
        if same != self._order:
            raise LaunchError("the command asks for another sandbox than this", where=self.id)
